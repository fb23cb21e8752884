"""The last lines that backends wrote, kept in memory, and the routes that show them (LocalAI's shapes)."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from aiohttp import WSMsgType, web

from corral.base.clock import Clock
from corral.base.tasks import first_done
from corral.wire.go_json import format_time
from corral.worker.files.keys import decoded
from corral.worker.files.refusals import FileRefused, bad_request, check_method
from corral.worker.http import PathHandler

MOST_LINES: Final = 1000
"""Lines kept for one process key: as many as LocalAI's worker keeps."""
TAIL_LINES: Final = 20
"""Lines of standard error in the answer to a failed start: as many as LocalAI's worker sends."""
MOST_KEYS: Final = 1000
"""Logs that are kept. Beyond it the oldest is forgotten, because names of models may change for ever."""
LONGEST_LINE: Final = 16 * 1024
"""Bytes of a line that are kept; the entry states its full length."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Bytes kept for one process key, in lines of usual length more than all lines have."""
MOST_WAITING: Final = 100
"""Lines that a slow reader may be behind; more are dropped, as LocalAI's worker does."""
_LONGEST_IN_TAIL: Final = 4096
"""Bytes of a line in the answer to a failed start, which goes over NATS."""


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class Line(msgspec.Struct, frozen=True):
    at: datetime
    stream: OutputStream
    text: str
    length: int = 0
    """Bytes of the whole line where the text is only its beginning; 0 where it is all of it."""


class BackendLog:
    """The last lines of one process key, across restarts."""

    def __init__(self, clock: Clock, tell: Callable[[Line], None] = lambda _: None) -> None:
        self._clock = clock
        self._tell = tell
        self._lines: deque[Line] = deque()
        self._size = 0

    @property
    def lines(self) -> list[Line]:
        return list(self._lines)

    def add(self, stream: OutputStream, text: str, length: int = 0) -> None:
        line = Line(self._clock.now(), stream, text, length)
        self._lines.append(line)
        self._size += len(text)
        while len(self._lines) > MOST_LINES or self._size > MOST_BYTES:
            self._size -= len(self._lines.popleft().text)
        self._tell(line)


class LineWriter:
    """Makes lines of one stream of one process, and remembers the last ones of this process alone."""

    def __init__(self, log: BackendLog, stream: OutputStream) -> None:
        self._log = log
        self._stream = stream
        self._unfinished = b""
        self._left_out = 0
        """Bytes of the line that has begun which are not kept."""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def tail(self) -> list[str]:
        return list(self._tail)

    def feed(self, data: bytes) -> None:
        *whole, unfinished = (self._unfinished + data).split(b"\n")
        if len(whole) > MOST_LINES:
            whole, self._left_out = whole[-MOST_LINES:], 0
        for line in whole:
            self._add(line)
        self._unfinished = unfinished[:LONGEST_LINE]
        self._left_out += len(unfinished) - len(self._unfinished)

    def end(self) -> None:
        """The process is gone: what it began is a line, too."""
        if self._unfinished:
            self._add(self._unfinished)
            self._unfinished = b""

    def _add(self, line: bytes) -> None:
        whole = line.removesuffix(b"\r")
        length, self._left_out = len(whole) + self._left_out, 0
        text = whole[:LONGEST_LINE].decode(errors="replace")
        self._tail.append(text[:_LONGEST_IN_TAIL])
        self._log.add(self._stream, text, length if length > LONGEST_LINE else 0)


class NextLine(NamedTuple):
    """A line, and how many before it the reader missed."""

    line: Line
    missed: int


@dataclass(eq=False, slots=True)
class Watch:
    """Lines of one model as they come. A reader that is too slow misses some."""

    name: str
    before: list[Line]
    """What was there when the watch began."""
    new: "asyncio.Queue[NextLine]" = field(default_factory=lambda: asyncio.Queue(MOST_WAITING))
    _missed: int = 0

    def tell(self, line: Line) -> None:
        if self.new.full():
            self._missed += 1
            return
        self.new.put_nowait(NextLine(line, self._missed))
        self._missed = 0


class BackendLogs:
    """The logs of all process keys. They outlive their processes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logs: dict[str, BackendLog] = {}
        self._watches: set[Watch] = set()

    def of(self, key: str) -> BackendLog:
        if key not in self._logs:
            if len(self._logs) >= MOST_KEYS:
                del self._logs[next(iter(self._logs))]
            self._logs[key] = BackendLog(self._clock, lambda line: self._tell(key, line))
        return self._logs[key]

    def models(self) -> list[str]:
        """Names that have logs: process keys without their replicas."""
        return sorted({key.partition("#")[0] for key in self._logs})

    def lines(self, name: str) -> list[Line]:
        """Return the lines of one process key, or of all replicas of a model in the order of time."""
        lines = (line for key, log in self._logs.items() if _is_meant(key, name) for line in log.lines)
        return sorted(lines, key=lambda line: line.at)

    @contextmanager
    def watch(self, name: str) -> Iterator[Watch]:
        """Follow a process key or a model, including replicas that start later. No line is sent twice."""
        watch = Watch(name, self.lines(name))
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def _tell(self, key: str, line: Line) -> None:
        for watch in self._watches:
            if _is_meant(key, watch.name):
                watch.tell(line)


def _is_meant(key: str, name: str) -> bool:
    return key == name if "#" in name else key.partition("#")[0] == name


LOGS: Final = "/v1/backend-logs"
_LIVE: Final = "/ws"
MARKS: Final = "marks"
"""In the query of a WebSocket, 1 asks for marks of lines that the reader missed."""
_MOST_RECEIVED: Final = 4096
_CLOSE_SECONDS: Final = 2.0


class LiveTimes(msgspec.Struct, frozen=True, kw_only=True):
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

    def table(self) -> Mapping[str, PathHandler]:
        """Return handlers by the beginning of the path. The rest of a path is the decoded name of a model."""
        return {LOGS: self._models, f"{LOGS}/": self._lines}

    async def _models(self, request: web.BaseRequest, subpath: str) -> web.StreamResponse:
        check_method(request.method, "GET")
        return _json(self._logs.models())

    async def _lines(self, request: web.BaseRequest, subpath: str) -> web.StreamResponse:
        check_method(request.method, "GET")
        if subpath.endswith(_LIVE):
            return await self._live(request, _model(subpath.removesuffix(_LIVE)))
        return _json([_described(line) for line in self._logs.lines(_model(subpath))])

    async def _live(self, request: web.BaseRequest, model: str) -> web.StreamResponse:
        # Programs may open a WebSocket, and pages of this host: browsers send the page's origin.
        origin = request.headers.get("Origin", "")
        if origin and urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower():
            raise FileRefused(403, "Forbidden")
        socket = web.WebSocketResponse(
            autoping=False, compress=False, max_msg_size=_MOST_RECEIVED, timeout=_CLOSE_SECONDS
        )
        await socket.prepare(request)
        with self._logs.watch(model) as watch, contextlib.suppress(ConnectionError, TimeoutError):
            marks = request.query.get(MARKS) == "1"
            await first_done(self._listen(socket), self._tell(socket, watch, marks=marks), self._ended.wait())
        await socket.close()
        return socket

    async def _tell(self, socket: web.WebSocketResponse, watch: Watch, *, marks: bool) -> None:
        """The lines there are, then each that comes, with a ping in between from time to time. Lines that the reader
        missed are counted for those who understand that: LocalAI's frontends do not."""
        lines = [_described(line) for line in watch.before]
        await self._send(socket.send_str(_text({"type": "initial", "lines": lines})))
        loop = asyncio.get_running_loop()
        next_ping = loop.time() + self._times.ping
        while True:
            following = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_ping):
                    following = await watch.new.get()
            if following is not None:
                if marks and following.missed:
                    await self._send(socket.send_str(_text({"type": "missed", "count": following.missed})))
                await self._send(socket.send_str(_text({"type": "line", "line": _described(following.line)})))
            if loop.time() >= next_ping:
                next_ping = loop.time() + self._times.ping
                await self._send(socket.ping())

    async def _send(self, sending: Awaitable[None]) -> None:
        async with asyncio.timeout(self._times.write):
            await sending

    async def _listen(self, socket: web.WebSocketResponse) -> None:
        """Wait until the client disconnects or stops answering pings. Its messages are ignored."""
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


def _model(text: str) -> str:
    """Frontends encode it twice, since names may hold slashes; who encodes it once is understood, too."""
    if not text:
        raise bad_request("model ID required")
    try:
        return decoded(text)
    except FileRefused:
        return text


def _described(line: Line) -> dict[str, str | int]:
    """In LocalAI's form; a line that was cut also has its length."""
    fields: dict[str, str | int] = {"timestamp": format_time(line.at), "stream": line.stream.value, "text": line.text}
    return fields | ({"length": line.length} if line.length else {})


def _text(document: object) -> str:
    return msgspec.json.encode(document).decode()


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document) + b"\n", content_type="application/json")
