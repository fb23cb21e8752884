"""A server that writes what is sent to it into a file and does nothing else: what `curl -T` can reach at best.

    python -m bench.file_sink [--hash] FILE

With `--hash` a second thread also hashes it, and the answer waits for that. Takes one request after another and prints
its port first.
"""

import hashlib
import mmap
import queue
import re
import socket
import sys
import threading
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_BUFFER: Final = 1024 * 1024
"""Whole pages, to which processors copy faster than to the middle of one."""
_BUFFERS: Final = 8


class OneBuffer:
    """Used again and again."""

    def __init__(self) -> None:
        self._buffer = memoryview(mmap.mmap(-1, _BUFFER))

    def take(self) -> memoryview:
        return self._buffer

    def give(self, piece: memoryview) -> None:
        """It was received."""

    def finish(self) -> None:
        """Nothing more comes."""


class HashedBuffers(OneBuffer):
    """A few, which a thread hashes before they are used again."""

    def __init__(self) -> None:
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            self._free.put(memoryview(mmap.mmap(-1, _BUFFER)))
        self._thread = threading.Thread(target=self._hash)
        self._thread.start()

    def take(self) -> memoryview:
        return self._free.get()

    def give(self, piece: memoryview) -> None:
        self._full.put(piece)

    def finish(self) -> None:
        self._full.put(None)
        self._thread.join()

    def _hash(self) -> None:
        hasher = hashlib.sha256()
        while (piece := self._full.get()) is not None:
            hasher.update(piece)
            self._free.put(memoryview(piece.obj))


def serve(file: str, *, is_hashing: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                receive(connection, file, HashedBuffers() if is_hashing else OneBuffer())


def receive(connection: socket.socket, file: str, buffers: OneBuffer) -> None:
    head, _, begun = until_head(connection)
    length = _LENGTH.search(head)
    left = (int(length[1]) if length else 0) - len(begun)
    if b"100-continue" in head.lower():
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    with open(file, "wb", buffering=0) as target:
        target.write(begun)
        while left > 0 and (count := connection.recv_into(buffer := buffers.take())):
            buffers.give(buffer[:count])
            target.write(buffer[:count])
            left -= count
    buffers.finish()
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def until_head(connection: socket.socket) -> tuple[bytes, bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received and (more := connection.recv(65_536)):
        received += more
    return received.partition(b"\r\n\r\n")


if __name__ == "__main__":
    *options, name = sys.argv[1:]
    serve(name, is_hashing="--hash" in options)
