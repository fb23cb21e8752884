"""Sends files over HTTP, read in a thread piece by piece: whole, as LocalAI's frontends ask for them, or a range."""

import asyncio
import functools
import os
import re
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from corral.worker.files.refusals import FileRefused
from corral.worker.files.store import FileStore
from corral.worker.files.threads import Threads

PIECE: Final = 256 * 1024
LENGTH_STATED_BELOW: Final = 512
"""LocalAI's worker states the length of small bodies only, and sends others in chunks."""
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_BYTES: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes from `start` up to, but not including, `end`."""

    start: int
    end: int


class Downloads:
    def __init__(self, store: FileStore, threads: Threads, *, stall_seconds: float) -> None:
        self._store = store
        self._threads = threads
        self._stall_seconds = stall_seconds

    async def send_whole(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        """Send the whole file; an empty response for a directory, as LocalAI's worker does."""
        async with self._threads.opened(lambda: _Source(self._store, key)) as source:
            response = web.StreamResponse(headers={"Content-Type": _BYTES})
            if source.size < LENGTH_STATED_BELOW:
                response.content_length = source.size
            else:
                response.enable_chunked_encoding()
            return await self._send(request, response, source, Span(0, source.size))

    async def send_span(self, request: web.BaseRequest, key: str) -> web.StreamResponse:
        """Send the requested range, or the whole file. An extension: LocalAI's worker does not support ranges."""
        async with self._threads.opened(lambda: _Source(self._store, key)) as source:
            asked = request.headers.get("Range", "")
            span = parse_range(asked, source.size) if asked else Span(0, source.size)
            headers = {"Content-Type": _BYTES, "Accept-Ranges": "bytes"}
            if asked:
                headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{source.size}"
            response = web.StreamResponse(status=206 if asked else 200, headers=headers)
            response.content_length = span.end - span.start
            return await self._send(request, response, source, span)

    async def _send(
        self, request: web.BaseRequest, response: web.StreamResponse, source: "_Source", span: Span
    ) -> web.StreamResponse:
        await response.prepare(request)
        offset = span.start
        while offset < span.end:
            piece = await self._threads.run(functools.partial(source.read, offset, min(PIECE, span.end - offset)))
            if not piece:  # the file became shorter than announced: abort, so that the peer notices
                raise ConnectionResetError("the file became shorter while it was sent")
            async with asyncio.timeout(self._stall_seconds):
                await response.write(piece)
            offset += len(piece)
        await response.write_eof()
        return response


class _Source:
    """An open file, or a directory, which has no bytes."""

    def __init__(self, store: FileStore, key: str) -> None:
        self._file = store.open(key)
        self.size = 0 if self._file is None else os.fstat(self._file).st_size

    def read(self, offset: int, length: int) -> bytes:
        return b"" if self._file is None else os.pread(self._file, length, offset)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def parse_range(text: str, size: int) -> Span:
    """Parse one range of a file. Refuse with 416 when it is outside the file, or there are several ranges."""
    match = _RANGE.fullmatch(text.strip())
    first, last = match.groups() if match else ("", "")
    if first:
        span = Span(int(first), min(int(last) + 1, size) if last else size)
    else:
        span = Span(max(size - int(last), 0), size) if last else Span(0, 0)
    if span.start >= span.end:
        raise FileRefused(416, f"the range {text} is not in the file", headers={"Content-Range": f"bytes */{size}"})
    return span
