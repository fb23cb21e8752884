"""The engine's life as its parent sees it: started, spoken to over its HTTP port, ended."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from corral_backend_sdk import LoadFailed, NotOffered, RequestRefused

_PROGRAM: Final = Path(__file__).with_name("engine.py")
_END_SECONDS: Final = 2.0
_LINE_BYTES: Final = 16 * 1024 * 1024
_NOT_IMPLEMENTED: Final = 501
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to dial what listens everywhere


async def start_engine(parameters: dict[str, Any]) -> "Engine":
    """Start it and wait until the model is loaded. A cancelled start leaves nothing behind."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        _PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
    )
    engine = Engine(process, key=parameters["api_keys"][0])
    try:
        await engine.load(parameters)
    except BaseException:
        await engine.end()
        raise
    return engine


class Engine:
    """llama.cpp's server in its process."""

    def __init__(self, process: asyncio.subprocess.Process, *, key: str) -> None:
        self._process = process
        self._key = key
        self._host = ""
        self._port = 0
        self.media_mark = ""
        """What stands for a picture or a sound in a prompt: another one for each engine."""
        self.offers_tools = False
        """Whether the model's template has a place for tools."""

    async def load(self, parameters: dict[str, Any]) -> None:
        told, telling = self._process.stdin, self._process.stdout
        if told is None or telling is None:
            raise RuntimeError("the engine was started without pipes")
        told.write(json.dumps(parameters).encode() + b"\n")
        answer = json.loads(await telling.readline() or b"{}")
        if "address" not in answer:
            raise LoadFailed(f"llama.cpp could not load {parameters['model.path']}; its log says why")
        parts = urlsplit(answer["address"])
        self._host = _LOOPBACK.get(parts.hostname or "", parts.hostname or "")
        self._port = parts.port or 0
        known = await self._look("/props")
        self.media_mark = str(known.get("media_marker", ""))
        self.offers_tools = bool((known.get("chat_template_caps") or {}).get("supports_tools"))

    async def wait(self) -> int:
        """Its exit code, when it has ended."""
        return await self._process.wait()

    async def end(self) -> None:
        """Ask it to end, then make it end."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def ask(self, path: str, body: dict[str, Any]) -> Any:
        """One request, one answer."""
        return await self._whole("POST", path, json.dumps(body).encode())

    async def _look(self, path: str) -> Any:
        return await self._whole("GET", path, b"")

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a streamed answer. Closing the iterator ends the work on it."""
        async with self.asked(path, body) as answer:
            await answer.check()
            async for event in answer.events():
                yield _checked(event)

    async def _whole(self, method: str, path: str, content: bytes) -> Any:
        async with self._request(method, path, content) as answer:
            await answer.check()
            return json.loads(await answer.whole())

    def asked(self, path: str, body: dict[str, Any]) -> contextlib.AbstractAsyncContextManager["EngineAnswer"]:
        """One request, and its answer whatever it is. Leaving the block early ends the work on it."""
        return self._request("POST", path, json.dumps(body).encode())

    @contextlib.asynccontextmanager
    async def _request(self, method: str, path: str, content: bytes) -> AsyncIterator["EngineAnswer"]:
        """llama.cpp notices a closed connection and stops the work."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=_LINE_BYTES)
        try:
            writer.write(_head(f"{method} {path}", self._key, len(content)) + content)
            yield EngineAnswer(await reader.readuntil(b"\r\n\r\n"), reader)
        finally:
            writer.close()


class EngineAnswer:
    """An answer as it comes; its body can be taken once, in any of the ways."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader) -> None:
        lower = head.lower()
        self.status = int(head.split(b" ", 2)[1])
        self.is_chunked = b"transfer-encoding: chunked" in lower
        kind = lower.partition(b"\r\ncontent-type:")[2].partition(b"\r\n")[0]
        self.content_type = kind.strip().decode("latin-1") or "application/json"
        self.parts = _chunks(reader) if self.is_chunked else _rest(reader)

    async def whole(self) -> bytes:
        return b"".join([part async for part in self.parts])

    async def check(self) -> None:
        """Raise what an answer other than 200 means."""
        if self.status != 200:
            raise _failure(self.status, await self.whole())

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Those of a stream; an error in it is an event with `error`."""
        rest = b""
        async for part in self.parts:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):  # others say nothing: null between two prompts, and the end
                    yield json.loads(line[6:])
                elif line.startswith(b"error: "):
                    yield {"error": json.loads(line[7:])}


def _head(what: str, key: str, length: int) -> bytes:
    lines = (
        f"{what} HTTP/1.1",
        "Host: engine",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        "Connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    yield await reader.read()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    if "error" in event:
        error = event["error"]
        raise _failure(int(error.get("code", 500)), json.dumps(event).encode())
    return event


def _failure(status: int, body: bytes) -> Exception:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"llama.cpp answered {status}"
    if status == _NOT_IMPLEMENTED:
        return NotOffered(message)
    return RequestRefused(message) if 400 <= status < 500 else RuntimeError(message)
