"""An engine that answers as a test wants it to, and remembers exactly what it was sent.

It reads requests with a small reader of its own, so that a mistake of the gateway's parser is not made twice.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Self

from corral.base.tasks import end_tasks, start_task

_LOOPBACK: Final = "127.0.0.1"

EVENTS: Final = tuple(b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % number for number in range(4))
LAST_EVENT: Final = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4,"total_tokens":11}}\n\n'
DONE: Final = b"data: [DONE]\n\n"
STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    def header(self, name: str) -> str | None:
        values = [value for own, value in self.headers if own.lower() == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None


class EngineConnection:
    """The connection on which a behaviour answers."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """ConnectionError when the other side is gone."""
        self._writer.write(data)
        await self._writer.drain()

    async def send_chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def until_gone(self) -> None:
        """Wait until the other side hangs up."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def cut(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


Behaviour = Callable[[EngineRequest, EngineConnection], Awaitable[bool]]
"""Answers one request; False ends the connection."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def json_answer(body: bytes, *, status: int = 200, head: bytes = b"") -> bytes:
    lines = b"HTTP/1.1 %d Fine\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (status, len(body))
    return lines + head + b"\r\n" + body


async def streaming(_: EngineRequest, connection: EngineConnection) -> bool:
    """A short stream, event by event, with usage."""
    await connection.send(STREAM_HEAD)
    for event in (*EVENTS, LAST_EVENT, DONE):
        await connection.send_chunk(event)
    await connection.send(b"0\r\n\r\n")
    return True


async def answering(request: EngineRequest, connection: EngineConnection) -> bool:
    """Answer at once, with how long the body was."""
    text = b'{"got":%d,"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}' % len(request.body)
    await connection.send(json_answer(text))
    return True


@dataclass(slots=True)
class GuidedStream:
    """A stream that a test steps through: each event waits until the test releases it."""

    first: bytes = EVENTS[0]
    begun: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released once per stream that has sent its first event."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, _: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(STREAM_HEAD + chunk(self.first))
        self.begun.release()
        gone = start_task(connection.until_gone(), name="gone")
        going = start_task(self.go_on.wait(), name="going on")
        try:
            await asyncio.wait({gone, going}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return False
        finally:
            await end_tasks(gone, going)
        await connection.send(b"".join(map(chunk, (LAST_EVENT, DONE))) + b"0\r\n\r\n")
        return True


class StubEngine:
    """`async with StubEngine() as engine:`, then `engine.behave = …`."""

    def __init__(self, behave: Behaviour = streaming, *, tls: ssl.SSLContext | None = None) -> None:
        self.behave = behave
        self._tls = tls
        self.requests: list[EngineRequest] = []
        self.broken: list[bytes] = []
        """Connections on which something came that was no request, with what came."""
        self.accepted = 0
        self.unfinished = 0
        """Requests whose sender hung up before the end of the answer."""
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{_LOOPBACK}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._serving)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked whenever a request or a connection comes or goes."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, _LOOPBACK, self.port, backlog=2048, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if killed: the port refuses, connections break."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._serving.values():
            writer.transport.abort()
        while self._serving:
            for task in self._serving:
                task.cancel()
            await asyncio.wait(self._serving)
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        self._serving[task] = writer
        connection = EngineConnection(self.accepted, reader, writer)
        try:
            while (request := await self._read(connection)) is not None:
                self.requests.append(request)
                self._changed.set()
                if not await self._answer(request, connection):
                    break
        except asyncio.CancelledError:
            pass  # by stop(); streams would log it
        finally:
            writer.close()
            del self._serving[task]
            self._changed.set()

    async def _answer(self, request: EngineRequest, connection: EngineConnection) -> bool:
        try:
            going_on = await self.behave(request, connection)
        except ConnectionError:
            self.unfinished += 1
            return False
        if not going_on and connection.reader.at_eof():
            self.unfinished += 1
        return going_on

    async def _read(self, connection: EngineConnection) -> EngineRequest | None:
        try:
            raw = await connection.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                self.broken.append(error.partial)
            return None
        except ConnectionError:
            return None
        line, *fields = raw[:-4].decode("latin-1").split("\r\n")
        try:
            method, target, version = line.split(" ")
            headers = [(name, value.strip()) for name, _, value in (field.partition(":") for field in fields)]
            assert version == "HTTP/1.1"
            lengths = [value for name, value in headers if name.lower() == "content-length"]
            assert len(lengths) <= 1
            assert not any(name.lower() == "transfer-encoding" for name, _ in headers)
            body = await connection.reader.readexactly(int(lengths[0]) if lengths else 0)
        except (AssertionError, ValueError, asyncio.IncompleteReadError, ConnectionError):
            self.broken.append(raw)
            return None
        return EngineRequest(method=method, target=target, headers=headers, body=body, connection=connection.number)
