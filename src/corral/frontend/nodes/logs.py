"""What backends of a node have printed, fetched from the worker's own HTTP server when somebody asks for it."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec
from yarl import URL

from corral.base.errors import CorralError
from corral.base.http_client import HttpFailed, asked, open_session, read_body
from corral.base.ids import NodeId
from corral.frontend.nodes.client import NodeContacts, NodeTokens
from corral.wire.nodes import LogLine

log = logging.getLogger(__name__)

WITHIN: Final = timedelta(seconds=15)
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of an answer: a worker keeps a thousand lines of each process."""

_ERRORS_WITHIN: Final = timedelta(seconds=5)
"""Another node is tried only after the lines of this one are there."""
_MOST_ERRORS: Final = 15
_MOST_CHARACTERS: Final = 500


class WorkerUnreachable(CorralError):
    """The worker's HTTP server could not be asked."""

    code = "worker_unreachable"
    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """As it came, except for its headers: what a node calls its answer is nothing to go by."""

    status: int
    body: bytes


class NodeLogs:
    def __init__(self, contacts: NodeContacts, tokens: NodeTokens) -> None:
        self._contacts = contacts
        self._tokens = tokens

    async def names(self, node_id: NodeId) -> WorkerAnswer:
        """Of what there are logs. Fails as `NodeContacts` does for a node that must not be contacted."""
        return await self._ask(node_id, "/v1/backend-logs")

    async def lines(self, node_id: NodeId, model: str) -> WorkerAnswer:
        """Of all replicas of a model, or of one when its process key is given."""
        return await self._ask(node_id, f"/v1/backend-logs/{quote(model, safe='')}")

    async def last_errors(self, node_id: NodeId, process_key: str) -> tuple[str, ...]:
        """What a process wrote to standard error last; empty when its worker cannot be asked."""
        path = f"/v1/backend-logs/{quote(process_key, safe='')}"
        try:
            async with asyncio.timeout(_ERRORS_WITHIN.total_seconds()):
                answer = await self._ask(node_id, path)
            lines = msgspec.json.decode(answer.body, type=list[LogLine]) if answer.status == HTTPStatus.OK else []
        except (CorralError, TimeoutError, msgspec.MsgspecError) as error:
            log.info("no last lines of %s: %s", process_key, error, extra={"event": "load.no_last_lines"})
            return ()
        errors = [line.text[:_MOST_CHARACTERS] for line in lines if line.stream == "stderr" and line.text.strip()]
        return tuple(errors[-_MOST_ERRORS:])

    async def _ask(self, node_id: NodeId, path: str) -> WorkerAnswer:
        node = await self._contacts.of(node_id)
        if not node.http_address:
            raise WorkerUnreachable(f"failed to reach worker: {node.name} registered without an http_address")
        headers = {"Authorization": f"Bearer {await self._tokens.of(node_id)}"}
        try:
            url = URL(f"http://{node.http_address}{path}", encoded=True)
            async with (
                open_session(timeout=WITHIN, connect_timeout=WITHIN) as session,
                asked(session, "GET", url, headers=headers) as answer,
            ):
                return WorkerAnswer(status=answer.status, body=await read_body(answer, _MOST_BYTES))
        except (HttpFailed, ValueError) as error:
            said = error.reason if isinstance(error, HttpFailed) else str(error)
            raise WorkerUnreachable(f"failed to reach worker: http://{node.http_address}{path}: {said}") from error
