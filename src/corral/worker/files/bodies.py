"""Bodies of requests: asked for, taken, and got rid of; and a direct way for large ones, from the socket to the file,
past the event loop.

On the direct way one thread reads and writes, another hashes, and they pass a few buffers to and fro. Compared with the
ordinary way this takes half of the processor time, nearly all of it in the kernel and in SHA-256, and the event loop is
free.
"""

import asyncio
import contextlib
import math
import mmap
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

from corral.worker.files.refusals import FileRefused

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_INVITED: Final = web.RequestKey("invited", bool)
_TAKEN: Final = web.RequestKey("taken", bool)


def invite(request: web.BaseRequest) -> None:
    """Have the body sent, if the client asked first: so whoever is refused need not send it."""
    if _asks_first(request) and request.transport is not None:
        request.transport.write(_CONTINUE)
        request[_INVITED] = True


def mark_taken(request: web.BaseRequest, *, is_whole: bool) -> None:
    """The body was read past the event loop, which therefore can make nothing of this connection any more."""
    request[_TAKEN] = is_whole


def is_left(request: web.BaseRequest) -> bool:
    """Is there something of the body that nobody has read?"""
    return request.body_exists and not request.content.is_eof() and not request.get(_TAKEN, False)


def is_spoilt(request: web.BaseRequest) -> bool:
    """The connection cannot be used for another request."""
    return _TAKEN in request


async def drain(request: web.BaseRequest, *, seconds: float, at_most: float = math.inf) -> None:
    """Read on and forget, until this many seconds have passed or bytes have come: so the sender sees its answer."""
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
"""Bytes of a body for which the direct way pays: its connection cannot be used again."""
MOST_LANES: Final = 8
"""At a time; whoever comes then goes the ordinary way."""
BUFFER: Final = 2 * 1024 * 1024
BUFFERS: Final = 4
ENOUGH: Final = 1024 * 1024
"""Bytes that have to wait in the kernel before a read wakes up, so that it finds plenty to do. Where fewer are left to
come, any will do."""
_LOOK: Final = struct.pack("@ll", 0, 250_000)
"""Seconds and microseconds after which a read comes back with what there is."""

Piece = bytes | memoryview


class Sink(Protocol):
    """What takes the bytes. Each of the two is called by one thread, with all pieces in order."""

    def write(self, pieces: Sequence[Piece]) -> None: ...
    def hash(self, pieces: Sequence[Piece]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimits:
    stall_seconds: float
    """Without a byte, after which the sender is given up."""
    is_ending: Callable[[], bool]
    """Whether the server is about to close."""


class BodyTransfer:
    """One body on its way. `run` blocks until all of it has come."""

    def __init__(self, source: socket.socket, sink: Sink, *, begun: bytes, length: int, patience: StallLimits) -> None:
        self._source = source
        self._sink = sink
        self._begun = begun
        self._length = length
        self._patience = patience
        self._taken = 0
        self._wakes_for = 1

    def run(self) -> int:
        """How many bytes were taken: all. Refused when they stop coming; what came is with the sink then."""
        hashing = _HashingThread(self._sink)
        try:
            with _waiting(self._source):
                self._take_all(hashing)
        finally:
            hashing.finish()
        hashing.check()
        return self._taken

    def _take_all(self, hashing: "_HashingThread") -> None:
        if self._begun:
            self._pass_on(hashing, memoryview(self._begun))
        while self._taken < self._length:
            self._take_next(hashing)

    def _take_next(self, hashing: "_HashingThread") -> None:
        buffer = hashing.free_buffer()[: self._length - self._taken]
        filled = 0
        self._wake_for(ENOUGH if self._length - self._taken - len(buffer) >= ENOUGH else 1)
        try:
            while filled < len(buffer):
                filled += self._receive(buffer[filled:])
        finally:
            if filled:
                self._pass_on(hashing, buffer[:filled])

    def _wake_for(self, count: int) -> None:
        if count != self._wakes_for:
            self._source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._wakes_for = count

    def _pass_on(self, hashing: "_HashingThread", piece: memoryview) -> None:
        hashing.put(piece)
        self._sink.write([piece])
        self._taken += len(piece)

    def _receive(self, buffer: memoryview) -> int:
        """As much as comes within a moment: in one call, so that a fast sender costs few of them."""
        deadline = time.monotonic() + self._patience.stall_seconds
        while not self._patience.is_ending():
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
    """Let reads wait in the kernel. The event loop shares the connection, so it gets it back as it was."""
    source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LOOK)
    source.setblocking(True)
    try:
        yield
    finally:
        source.setblocking(False)
        with contextlib.suppress(OSError):  # the connection is gone
            source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


class _HashingThread:
    """Hashes pieces in a thread of its own, and gives their buffers back."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._buffers_made = 0
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="corral-files-hashing", daemon=True)
        self._thread.start()

    def free_buffer(self) -> memoryview:
        """A new one as long as there are few; else one that was hashed.

        Each begins where a page of memory does. An ordinary allocation does not, and processors copy to it several
        times slower.
        """
        if self._buffers_made < BUFFERS and self._free.empty():
            self._buffers_made += 1
            return memoryview(mmap.mmap(-1, BUFFER))
        return self._free.get()

    def put(self, piece: memoryview) -> None:
        """The caller must not change it before it comes back as a free buffer."""
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
            except OSError as error:  # what came before could not be read again
                self._error = error
            if isinstance(piece.obj, mmap.mmap):
                self._free.put(memoryview(piece.obj))


def take_over(request: web.BaseRequest) -> tuple[socket.socket, bytes] | None:
    """The connection of a request, and what was read of its body. The event loop reads no more of it; None when that
    cannot be had."""
    transport = request.transport
    handle = None if transport is None else transport.get_extra_info("socket")
    if transport is None or handle is None or transport.is_closing():
        return None
    begun = b"".join(iter(request.content.read_nowait, b""))
    transport.pause_reading()
    return socket.socket(fileno=os.dup(handle.fileno())), begun
