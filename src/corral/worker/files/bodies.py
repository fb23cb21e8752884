"""Reads request bodies; large ones go directly from the socket to the file, outside the event loop.

On the direct path one thread reads and writes, another hashes, and they exchange a few buffers. This takes half of
the CPU time of the ordinary path, nearly all of it in the kernel and in SHA-256, and the event loop stays free.
"""

import asyncio
import contextlib
import math
import mmap
import os
import queue
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from aiohttp import web

from corral.worker.files.refusals import FileRefused

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_INVITED: Final = web.RequestKey("invited", bool)
_TAKEN: Final = web.RequestKey("taken", bool)
AT_ONCE: Final = 64 * 1024
"""Bytes up to which a file is small: it is opened, written, hashed and renamed by one thread without a break, because
handing it from thread to thread costs more than all of that."""
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


def parse_range(text: str, size: int) -> range:
    """Parse one range of a file. Refuse with 416 when it is outside the file, or there are several ranges."""
    match = _RANGE.fullmatch(text.strip())
    first, last = match.groups() if match else ("", "")
    if first:
        span = range(int(first), min(int(last) + 1, size) if last else size)
    else:
        span = range(max(size - int(last), 0), size) if last else range(0)
    if not span:
        raise FileRefused(416, f"the range {text} is not in the file", headers={"Content-Range": f"bytes */{size}"})
    return span


def invite(request: web.BaseRequest) -> None:
    """Send `100 Continue` if the client waits for it. A client that is refused before need not send its body."""
    if _asks_first(request) and request.transport is not None:
        request.transport.write(_CONTINUE)
        request[_INVITED] = True


def arrived_body(request: web.BaseRequest, length: int) -> bytes | None:
    """The whole body of a small file that came along with the head; None when it is larger, or still on its way."""
    if length > AT_ONCE or request.content_length != length or not request.content.is_eof():
        return None
    return request.content.read_nowait()


def mark_taken(request: web.BaseRequest, *, is_whole: bool) -> None:
    """Record that the body was read outside the event loop, so the connection cannot be used again."""
    request[_TAKEN] = is_whole


def is_left(request: web.BaseRequest) -> bool:
    """Whether a part of the body has not been read."""
    return request.body_exists and not request.content.is_eof() and not request.get(_TAKEN, False)


def is_spoilt(request: web.BaseRequest) -> bool:
    """Whether the connection cannot be used for another request."""
    return _TAKEN in request


async def drain(request: web.BaseRequest, *, seconds: float, at_most: float = math.inf) -> None:
    """Read and discard the body within limits of time and bytes, so that the sender sees the response."""
    if _asks_first(request) and _INVITED not in request:
        return
    if is_spoilt(request) and request.transport is not None:
        request.transport.resume_reading()
    try:
        async with asyncio.timeout(seconds):
            while request.content.total_bytes < at_most and await request.content.readany():
                pass
    except (TimeoutError, ConnectionError, web.RequestPayloadError):
        return


def _asks_first(request: web.BaseRequest) -> bool:
    return request.headers.get("Expect", "").lower() == "100-continue"


SHORTEST: Final = 8 * 1024 * 1024
"""Bytes from which the direct path pays off: its connection cannot be used again."""
MOST_LANES: Final = 8
"""Maximum number of direct transfers; further ones use the ordinary path."""
BUFFER: Final = 2 * 1024 * 1024
BUFFERS: Final = 4
ENOUGH: Final = 1024 * 1024
"""Bytes that must be in the kernel's buffer before a read wakes up, for fewer wake-ups. Less at the end of the body."""
_LOOK: Final = struct.pack("@ll", 0, 250_000)
"""Receive timeout (seconds, microseconds) after which a read returns what there is."""

Piece = bytes | memoryview


class Sink(Protocol):
    """Consumes the bytes. Each method is called by one thread, with all pieces in order."""

    def write(self, pieces: Sequence[Piece]) -> None: ...
    def hash(self, pieces: Sequence[Piece]) -> None: ...


class BodyTransfer:
    """One direct transfer. `run` blocks until the whole body has arrived."""

    def __init__(
        self,
        source: socket.socket,
        sink: Sink,
        *,
        begun: bytes,
        length: int,
        stall_seconds: float,
        is_ending: Callable[[], bool],
    ) -> None:
        """The transfer fails after `stall_seconds` without a byte, and when the server is ending."""
        self._source = source
        self._sink = sink
        self._begun = begun
        self._length = length
        self._stall_seconds = stall_seconds
        self._is_ending = is_ending
        self._taken = 0
        self._wakes_for = 1

    def run(self) -> int:
        """Return the number of bytes: all. Raise FileRefused when they stop coming; the sink keeps what arrived."""
        hashing = _HashingThread(self._sink)
        try:
            with _waiting(self._source):
                if self._begun:
                    self._pass_on(hashing, memoryview(self._begun))
                while self._taken < self._length:
                    self._take_next(hashing)
        finally:
            hashing.finish()
        hashing.check()
        return self._taken

    def _take_next(self, hashing: "_HashingThread") -> None:
        buffer = hashing.free_buffer()[: self._length - self._taken]
        filled = 0
        enough = ENOUGH if self._length - self._taken - len(buffer) >= ENOUGH else 1
        if enough != self._wakes_for:
            self._source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, enough)
            self._wakes_for = enough
        try:
            while filled < len(buffer):
                filled += self._receive(buffer[filled:])
        finally:
            if filled:
                self._pass_on(hashing, buffer[:filled])

    def _pass_on(self, hashing: "_HashingThread", piece: memoryview) -> None:
        hashing.put(piece)
        self._sink.write([piece])
        self._taken += len(piece)

    def _receive(self, buffer: memoryview) -> int:
        """Receive what arrives within a moment, with one call, so that a fast sender costs few calls."""
        deadline = time.monotonic() + self._stall_seconds
        while not self._is_ending():
            try:
                count = self._source.recv_into(buffer, len(buffer), socket.MSG_WAITALL)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FileRefused(500, "reading body: nothing came any more") from None
                continue
            except OSError as error:
                raise FileRefused(500, f"reading body: {error.strerror or error}") from error
            if not count:
                raise FileRefused(500, "reading body: unexpected end")
            return count
        raise FileRefused(500, "reading body: the worker ends")


@contextmanager
def _waiting(source: socket.socket) -> Iterator[None]:
    """Make reads block in the kernel; restore the socket afterwards, since the event loop shares it."""
    source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LOOK)
    source.setblocking(True)
    try:
        yield
    finally:
        source.setblocking(False)
        with contextlib.suppress(OSError):  # the connection is gone
            source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


class _HashingThread:
    """Hashes pieces in a thread, and returns their buffers."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._buffers_made = 0
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="corral-files-hashing", daemon=True)
        self._thread.start()

    def free_buffer(self) -> memoryview:
        """Return a new buffer while there are few, else one that was hashed.

        Buffers are page-aligned: copying to an ordinary allocation is several times slower.
        """
        if self._buffers_made < BUFFERS and self._free.empty():
            self._buffers_made += 1
            return memoryview(mmap.mmap(-1, BUFFER))
        return self._free.get()

    def put(self, piece: memoryview) -> None:
        """Queue a piece. The caller must not change it before it comes back as a free buffer."""
        self._full.put(piece)

    def finish(self) -> None:
        self._full.put(None)
        self._thread.join()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (piece := self._full.get()) is not None:
            try:
                if self._error is None:
                    self._sink.hash([piece])
            except OSError as error:  # what arrived before a restart could not be read for the hash
                self._error = error
            if isinstance(piece.obj, mmap.mmap):
                self._free.put(memoryview(piece.obj))


def take_over(request: web.BaseRequest) -> tuple[socket.socket, bytes] | None:
    """Take the socket of a request, and what was read of its body, from the event loop; None when that cannot be."""
    transport = request.transport
    handle = None if transport is None else transport.get_extra_info("socket")
    if transport is None or handle is None or transport.is_closing():
        return None
    begun = b"".join(iter(request.content.read_nowait, b""))
    transport.pause_reading()
    return socket.socket(fileno=os.dup(handle.fileno())), begun


_SENT_AT_ONCE: Final = 8 * 1024 * 1024
"""Bytes that one call gives to the kernel at most; it takes what fits."""


class FileSender:
    """Sends a part of a file over a socket that was taken over. `run` blocks until the kernel has all of it."""

    def __init__(
        self,
        target: socket.socket,
        file: int,
        span: range,
        *,
        stall_seconds: float,
        is_ending: Callable[[], bool],
    ) -> None:
        self._target = target
        self._file = file
        self._span = span
        self._stall_seconds = stall_seconds
        self._is_ending = is_ending

    def run(self) -> None:
        """Raise ConnectionError when the peer takes nothing more, when the file became shorter, and when the server is
        ending."""
        self._target.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _LOOK)
        self._target.setblocking(True)
        try:
            self._send()
        finally:
            self._target.setblocking(False)

    def _send(self) -> None:
        offset, deadline = self._span.start, time.monotonic() + self._stall_seconds
        while offset < self._span.stop:
            if self._is_ending():
                raise ConnectionAbortedError("the worker ends")
            count = min(_SENT_AT_ONCE, self._span.stop - offset)
            try:
                sent = os.sendfile(self._target.fileno(), self._file, offset, count)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConnectionAbortedError("the peer takes nothing any more") from None
                continue
            if not sent:
                raise ConnectionAbortedError("the file became shorter while it was sent")
            offset += sent
            deadline = time.monotonic() + self._stall_seconds
