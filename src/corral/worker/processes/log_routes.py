"""The routes of backend logs, below /v1/backend-logs: as JSON, and live as a WebSocket. LocalAI's shapes and words."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import WSMsgType, web

from corral.base.tasks import first_done
from corral.wire.times import format_time
from corral.worker.files.keys import decoded
from corral.worker.files.refusals import FileRefused, bad_request
from corral.worker.processes.backend_logs import BackendLogs, Line, Watch

LOGS: Final = "/v1/backend-logs"
_LIVE: Final = "/ws"
_MOST_RECEIVED: Final = 4096
_CLOSE_SECONDS: Final = 2.0

LogHandler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTimes:
    """In seconds, as LocalAI's worker has them."""

    ping: float = 30
    """Between two questions whether the client is still there."""
    silence: float = 90
    """Without an answer, after which it is not."""
    write: float = 30
    """Maximum seconds for sending one message."""


class LogRoutes:
    def __init__(self, logs: BackendLogs, *, times: LiveTimes | None = None) -> None:
        self._logs = logs
        self._times = times or LiveTimes()
        self._ended = asyncio.Event()

    def end(self) -> None:
        """End live logs, which have no end of their own."""
        self._ended.set()

    def table(self) -> Mapping[str, LogHandler]:
        """By the beginning of the path; what comes after it is the model's name, decoded."""
        return {LOGS: self._models, f"{LOGS}/": self._lines}

    async def _models(self, request: web.BaseRequest, rest: str) -> web.StreamResponse:
        _only_get(request)
        return _json(self._logs.models())

    async def _lines(self, request: web.BaseRequest, rest: str) -> web.StreamResponse:
        _only_get(request)
        if rest.endswith(_LIVE):
            return await self._live(request, _model(rest.removesuffix(_LIVE)))
        return _json([_described(line) for line in self._logs.lines(_model(rest))])

    async def _live(self, request: web.BaseRequest, model: str) -> web.StreamResponse:
        if not _is_own_page(request):
            raise FileRefused(403, "Forbidden")
        socket = web.WebSocketResponse(
            autoping=False, compress=False, max_msg_size=_MOST_RECEIVED, timeout=_CLOSE_SECONDS
        )
        await socket.prepare(request)
        with self._logs.watch(model) as watch, contextlib.suppress(ConnectionError, TimeoutError):
            await first_done(self._listen(socket), self._tell(socket, watch), self._ended.wait())
        await socket.close()
        return socket

    async def _tell(self, socket: web.WebSocketResponse, watch: Watch) -> None:
        """The lines there are, then each that comes, with a ping in between from time to time."""
        lines = [_described(line) for line in watch.before]
        await self._send(socket.send_str(_text({"type": "initial", "lines": lines})))
        loop = asyncio.get_running_loop()
        next_ping = loop.time() + self._times.ping
        while True:
            line = await _next_line(watch, until=next_ping)
            if line is not None:
                await self._send(socket.send_str(_text({"type": "line", "line": _described(line)})))
            if loop.time() >= next_ping:
                next_ping = loop.time() + self._times.ping
                await self._send(socket.ping())

    async def _send(self, sending: Awaitable[None]) -> None:
        async with asyncio.timeout(self._times.write):
            await sending

    async def _listen(self, socket: web.WebSocketResponse) -> None:
        """Until the client leaves, or does not answer pings any more. What it says means nothing."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._times.silence
        while True:
            async with asyncio.timeout_at(deadline):
                message = await socket.receive()
            if message.type is WSMsgType.PONG:
                deadline = loop.time() + self._times.silence
            elif message.type is WSMsgType.PING:
                await self._send(socket.pong(message.data))
            elif message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
                return


async def _next_line(watch: Watch, *, until: float) -> Line | None:
    """Return the next line, or None when the time is over."""
    try:
        async with asyncio.timeout_at(until):
            return await watch.next()
    except TimeoutError:
        return None


def _only_get(request: web.BaseRequest) -> None:
    if request.method != "GET":
        raise FileRefused(405, "method not allowed")


def _model(text: str) -> str:
    """Frontends encode it twice, since names may hold slashes; who encodes it once is understood, too."""
    if not text:
        raise bad_request("model ID required")
    try:
        return decoded(text)
    except FileRefused:
        return text


def _is_own_page(request: web.BaseRequest) -> bool:
    """Whether a WebSocket may be opened: by programs, and by pages of this host. Browsers send the page's origin."""
    origin = request.headers.get("Origin", "")
    return not origin or urlsplit(origin).netloc.lower() == request.headers.get("Host", "").lower()


def _described(line: Line) -> dict[str, str]:
    return {"timestamp": format_time(line.at), "stream": line.stream.value, "text": line.text}


def _text(document: object) -> str:
    return msgspec.json.encode(document).decode()


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document) + b"\n", content_type="application/json")
