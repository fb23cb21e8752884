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

    async def load(self, parameters: dict[str, Any]) -> None:
        told, telling = self._process.stdin, self._process.stdout
        if told is None or telling is None:
            raise RuntimeError("the engine was started without pipes")
        told.write(json.dumps(parameters).encode() + b"\n")
        answer = json.loads(await telling.readline() or b"{}")
        if "address" not in answer:
            path, port = parameters["model.path"], parameters["port"]
            listening = f", or could not listen at port {port}" if port else ""
            raise LoadFailed(f"llama.cpp could not load {path}{listening}; its log says why")
        parts = urlsplit(answer["address"])
        self._host = _LOOPBACK.get(parts.hostname or "", parts.hostname or "")
        self._port = parts.port or 0
        self.media_mark = str((await self._look("/props")).get("media_marker", ""))

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

    async def _whole(self, method: str, path: str, content: bytes) -> Any:
        return json.loads(b"".join([part async for part in self._request(method, path, content)]))

    async def events(self, path: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a streamed answer. Closing the iterator ends the work on it."""
        rest = b""
        async with contextlib.aclosing(self._request("POST", path, json.dumps(body).encode())) as parts:
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: ") and line != b"data: [DONE]":
                        yield _checked(json.loads(line[6:]))
                    elif line.startswith(b"error: "):
                        _checked({"error": json.loads(line[7:])})

    async def _request(self, method: str, path: str, content: bytes) -> AsyncGenerator[bytes, None]:
        """The parts of the answer's body. llama.cpp notices a closed connection and stops the work."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=_LINE_BYTES)
        try:
            writer.write(_head(f"{method} {path}", self._key, len(content)) + content)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            parts = _body(reader, head.lower())
            if status != 200:
                raise _failure(status, b"".join([part async for part in parts]))
            async for part in parts:
                yield part
        finally:
            writer.close()


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


async def _body(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """In chunks, or to the end of the connection."""
    if b"transfer-encoding: chunked" not in head:
        yield await reader.read()
        return
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
