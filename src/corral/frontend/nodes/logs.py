"""What backends of a node write: read once from the HTTP server of its worker, or followed over its WebSocket."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput
from corral.base.http_client import HttpFailed, asked, open_session, open_socket, read_body
from corral.base.ids import NodeId
from corral.base.retry import Backoff
from corral.frontend.nodes.contacts import (
    NodeContacts,
    NodeDoors,
    NodeGone,
    NodePending,
    NodeTokens,
    WorkerUnreachable,
)
from corral.frontend.nodes.decide.log_lines import LogFrame, LogTail, WantedLines, WorkerFrame
from corral.wire.logs import InitialLines, LiveLine, LogGap, LogLine, MissedLines

log = logging.getLogger(__name__)

_IDLE: Final = timedelta(seconds=1)
"""After so long without a line the reader's side gets a turn."""
MOST_FOLLOWERS: Final = 64
"""Who reads at once, at one frontend: each may hold what a worker keeps."""
_CONNECT_WITHIN: Final = timedelta(seconds=10)
_RECONNECT: Final = Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=2))
_decoder: Final = msgspec.json.Decoder(InitialLines | LiveLine | MissedLines)
_LOGS_WITHIN: Final = timedelta(seconds=15)
_MOST_BYTES: Final = 16 * 1024 * 1024
"""The largest answer or frame that is read: a worker keeps a thousand lines of each process, and a follower gets all of
them at first."""
_ERRORS_WITHIN: Final = timedelta(seconds=5)
"""Another node is tried only after the lines of this one are there."""
_MOST_ERRORS: Final = 15
_LONGEST_ERROR: Final = 500


class WorkerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker answered, without its headers: what a node calls its answer is nothing to go by."""

    status: int
    body: bytes


def log_path(model: str) -> str:
    """The path of a log on a worker's HTTP server. InvalidInput for a name that leads to another path there: clients of
    HTTP resolve it, however it is written."""
    if model in (".", ".."):
        raise InvalidInput("model", f"{model!r} is no name of a log; name one process, such as {model}#0")
    return f"/v1/backend-logs/{quote(model, safe='')}"


class NodeLogs:
    """What backends of a node have printed, fetched from the worker's own HTTP server when somebody asks for it."""

    def __init__(self, contacts: NodeContacts, tokens: NodeTokens, doors: NodeDoors) -> None:
        self._contacts = contacts
        self._tokens = tokens
        self._doors = doors

    async def names(self, node_id: NodeId) -> WorkerAnswer:
        """The names that have logs. Fails as `NodeContacts` does for a node that must not be contacted."""
        return await self._ask(node_id, "/v1/backend-logs")

    async def lines(self, node_id: NodeId, model: str) -> WorkerAnswer:
        """The lines of all replicas of a model, or of one replica when its process key is given."""
        return await self._ask(node_id, log_path(model))

    async def last_errors(self, node_id: NodeId, process_key: str) -> tuple[str, ...]:
        """What a process wrote to standard error last; empty when its worker cannot be asked."""
        try:
            async with asyncio.timeout(_ERRORS_WITHIN.total_seconds()):
                answer = await self._ask(node_id, log_path(process_key))
            lines = msgspec.json.decode(answer.body, type=list[LogLine]) if answer.status == HTTPStatus.OK else []
        except (CorralError, TimeoutError, msgspec.MsgspecError) as error:
            log.info("no last lines of %s: %s", process_key, error, extra={"event": "load.no_last_lines"})
            return ()
        errors = [line.text[:_LONGEST_ERROR] for line in lines if line.stream == "stderr" and line.text.strip()]
        return tuple(errors[-_MOST_ERRORS:])

    async def _ask(self, node_id: NodeId, path: str) -> WorkerAnswer:
        node = await self._contacts.of(node_id)
        if not node.http_address:
            raise WorkerUnreachable(f"failed to reach worker: {node.name} registered without an http_address")
        headers = {"Authorization": f"Bearer {await self._tokens.of(node_id)}"}
        try:
            url, tls = self._doors.url(node_id, node, path)
            async with (
                open_session(timeout=_LOGS_WITHIN, connect_timeout=_LOGS_WITHIN) as session,
                asked(session, "GET", url, headers=headers, tls=tls) as answer,
            ):
                return WorkerAnswer(status=answer.status, body=await read_body(answer, _MOST_BYTES))
        except (HttpFailed, ValueError) as error:
            reason = error.reason if isinstance(error, HttpFailed) else str(error)
            raise WorkerUnreachable(f"failed to reach worker: http://{node.http_address}{path}: {reason}") from error


class TooManyFollowers(CorralError):
    """Too many people follow logs at this frontend; close one, or try again later."""

    code = "too_many_calls"
    retryable = True


class LogFollowing:
    """Follows lines as they are written, for as long as somebody reads them."""

    def __init__(self, contacts: NodeContacts, tokens: NodeTokens, doors: NodeDoors, clock: Clock) -> None:
        self._contacts = contacts
        self._tokens = tokens
        self._doors = doors
        self._clock = clock
        self.followers = 0

    async def check(self, node_id: NodeId) -> None:
        """Raise what can be known before anything is read: NodeGone, NodePending, TooManyFollowers."""
        await self._contacts.of(node_id)
        if self.followers >= MOST_FOLLOWERS:
            raise TooManyFollowers

    async def frames(self, node_id: NodeId, model: str, query: WantedLines) -> AsyncGenerator[LogFrame | None, None]:
        """Lines and gaps as they come, None when nothing came for a while. Ends when the node is gone or may not be
        asked; a worker that cannot be reached is tried again. Closing it ends the connection to the worker."""
        tail, failures = LogTail(query), 0
        self.followers += 1
        try:
            while True:
                why = "the worker ended the stream"
                try:
                    async with aclosing(self._worker_frames(node_id, model)) as frames:
                        async for frame in frames:
                            failures = 0
                            for entry in (None,) if frame is None else tail.take(frame):
                                yield entry
                except (NodeGone, NodePending) as error:
                    yield LogGap(gap=error.message)
                    return
                except CorralError as error:  # the worker cannot be reached, or the database is away
                    why = error.message
                if failures == 0:
                    yield LogGap(gap=f"{why}; trying again")
                failures += 1
                await self._clock.sleep(_RECONNECT.delay(failures).total_seconds())
                yield None
        finally:
            self.followers -= 1

    async def _worker_frames(self, node_id: NodeId, model: str) -> AsyncGenerator[WorkerFrame | None, None]:
        """Frames of one connection; WorkerUnreachable when it cannot be made, breaks, or carries nonsense."""
        node = await self._contacts.of(node_id)
        if not node.http_address:
            raise WorkerUnreachable(f"failed to reach worker: {node.name} registered without an http_address")
        headers = {"Authorization": f"Bearer {await self._tokens.of(node_id)}"}
        try:
            url, tls = self._doors.url(node_id, node, f"{log_path(model)}/ws?marks=1")
            async with (
                open_session(connect_timeout=_CONNECT_WITHIN) as session,
                open_socket(session, url, headers=headers, tls=tls, most=_MOST_BYTES) as socket,
            ):
                while True:
                    text = await socket.receive(_IDLE)
                    if text == "":
                        return
                    yield None if text is None else _decoded(text, node.name)
        except (HttpFailed, ValueError) as error:
            reason = error.reason if isinstance(error, HttpFailed) else str(error)
            raise WorkerUnreachable(f"failed to reach worker: {node.name}: {reason}") from error


def _decoded(text: str, node: str) -> WorkerFrame:
    try:
        frame: WorkerFrame = _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise WorkerUnreachable(f"failed to reach worker: {node}: it sends what is no log") from error
    return frame
