"""Calls an ASGI application in the same event loop: one request, one answer or a stream, no sockets."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

import msgspec
from starlette.types import ASGIApp, Message

from corral.base.tasks import start_task
from tests.kit.waiting import within_timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class AsgiAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        return msgspec.json.decode(self.body)


async def call(
    app: ASGIApp,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    leaves: asyncio.Event | None = None,
) -> AsgiAnswer:
    """The whole answer; for streams that never end use `open_stream`. The client has left once it has sent its body, or
    when `leaves` is set."""
    sent: list[Message] = []
    received = _body(body, leaves)

    async def receive() -> Message:
        return await anext(received)

    async def send(message: Message) -> None:
        sent.append(message)

    await app(_scope(method, url, headers or {}), receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    return AsgiAnswer(
        status=start["status"],
        headers={name.decode(): value.decode() for name, value in start["headers"]},
        body=b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body"),
    )


def _scope(method: str, url: str, headers: Mapping[str, str]) -> dict[str, object]:
    parts = urlsplit(url)
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(parts.path),
        "raw_path": quote(parts.path, safe="/%").encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


async def _body(body: bytes, leaves: asyncio.Event | None) -> AsyncIterator[Message]:
    yield {"type": "http.request", "body": body, "more_body": False}
    if leaves is not None:
        await leaves.wait()
    while True:
        yield {"type": "http.disconnect"}


class AsgiStream:
    """A streamed answer, as it arrives."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._left = b""

    def put(self, chunk: bytes) -> None:
        self._chunks.put_nowait(chunk)

    async def next(self) -> bytes:
        """The next whole event of a stream of events."""
        while b"\n\n" not in self._left:
            self._left += await within_timeout(self._chunks.get(), lambda: f"an event after {self._left!r}")
        event, _, self._left = self._left.partition(b"\n\n")
        return event

    @property
    def is_quiet(self) -> bool:
        """Whether nothing more has arrived."""
        return self._chunks.empty() and not self._left


@asynccontextmanager
async def open_stream(
    app: ASGIApp, url: str, *, headers: Mapping[str, str], gate: asyncio.Event | None = None
) -> AsyncIterator[AsgiStream]:
    """A GET whose client leaves at the end of the block, and reads only while the gate is open, if there is one."""
    stream, left = AsgiStream(), asyncio.Event()

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200, message
        if gate is not None:
            await gate.wait()
        stream.put(message.get("body", b""))

    async def serve() -> None:
        await app(_scope("GET", url, headers), receive, send)

    task = start_task(serve(), name=f"stream of {url}")
    try:
        yield stream
    finally:
        left.set()
        await within_timeout(task, lambda: "the stream to end")
