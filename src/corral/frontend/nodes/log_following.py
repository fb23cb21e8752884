"""Follows what backends of a node write, over the WebSocket of its worker, for as long as somebody reads it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.http_client import HttpFailed, open_session, open_socket
from corral.base.ids import NodeId
from corral.base.retry import Backoff
from corral.frontend.nodes.client import (
    NodeContacts,
    NodeGone,
    NodePending,
    NodeTokens,
    WorkerUnreachable,
    log_path,
)
from corral.frontend.nodes.decide.log_lines import LogFrame, LogTail, WantedLines, WorkerFrame
from corral.frontend.nodes.doors import NodeDoors
from corral.wire.nodes import InitialLines, LiveLine, LogGap, MissedLines

_IDLE: Final = timedelta(seconds=1)
"""After so long without a line the reader's side gets a turn."""
MOST_FOLLOWERS: Final = 64
"""Who reads at once, at one frontend: each may hold what a worker keeps."""
_CONNECT_WITHIN: Final = timedelta(seconds=10)
_MOST_BYTES: Final = 16 * 1024 * 1024
"""The largest frame: a worker sends all that it keeps at first."""
_RECONNECT: Final = Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=2))
_decoder: Final = msgspec.json.Decoder(InitialLines | LiveLine | MissedLines)


class TooManyFollowers(CorralError):
    """Too many people follow logs at this frontend; close one, or try again later."""

    code = "too_many_calls"
    retryable = True


class LogFollowing:
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
