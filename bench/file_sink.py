"""A server that writes what is sent to it into a file and does nothing else: what `curl -T` can reach at best.

    python -m bench.file_sink FILE

Takes one request after another and prints its port first.
"""

import re
import socket
import sys
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_BUFFER: Final = 1024 * 1024


def serve(file: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                receive(connection, file)


def receive(connection: socket.socket, file: str) -> None:
    head, _, begun = until_head(connection)
    length = _LENGTH.search(head)
    left = (int(length[1]) if length else 0) - len(begun)
    if b"100-continue" in head.lower():
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    buffer = memoryview(bytearray(_BUFFER))
    with open(file, "wb", buffering=0) as target:
        target.write(begun)
        while left > 0 and (count := connection.recv_into(buffer)):
            target.write(buffer[:count])
            left -= count
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def until_head(connection: socket.socket) -> tuple[bytes, bytes, bytes]:
    received = b""
    while b"\r\n\r\n" not in received and (more := connection.recv(65_536)):
        received += more
    return received.partition(b"\r\n\r\n")


if __name__ == "__main__":
    serve(sys.argv[1])
