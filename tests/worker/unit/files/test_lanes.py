"""A direct way for large bodies, over a real connection."""

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from corral.worker.files.bodies import BUFFER, BUFFERS, ENOUGH, BodyTransfer, Piece
from corral.worker.files.refusals import FileRefused


class Taken:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.hasher = hashlib.sha256()
        self.on_write: Callable[[], None] = lambda: None

    def write(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.written += piece
        self.on_write()

    def hash(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.hasher.update(piece)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The sender's end, and the receiver's as an event loop has it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    receiver.setblocking(False)
    with sender, receiver:
        yield sender, receiver


def lane(
    source: socket.socket, sink: Taken, *, length: int, begun: bytes = b"", ends: Callable[[], bool] = lambda: False
) -> BodyTransfer:
    return BodyTransfer(source, sink, begun=begun, length=length, stall_seconds=60, is_ending=ends)


def is_as_before(receiver: socket.socket) -> bool:
    """Does it neither block, nor wait for more than a byte?"""
    return not os.get_blocking(receiver.fileno()) and receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1


def sending(sender: socket.socket, data: bytes) -> threading.Thread:
    def send() -> None:
        try:
            sender.sendall(data)
        except OSError:
            return  # the receiver had enough

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_all_bytes_come_in_order_and_no_more(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    body, sink = os.urandom((BUFFERS + 3) * BUFFER + 4321), Taken()
    thread = sending(sender, body[100:] + b"the next request")

    assert lane(receiver, sink, begun=body[:100], length=len(body)).run() == len(body)

    thread.join()
    assert sink.written == body
    assert sink.hasher.digest() == hashlib.sha256(body).digest()
    assert receiver.recv(100) == b"the next request"


def test_the_event_loop_gets_its_connection_back_as_it_was(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    sender.sendall(b"body")
    copy = receiver.dup()
    with copy:
        lane(copy, Taken(), length=4).run()

    assert is_as_before(receiver)


def test_a_sender_that_pauses_after_a_few_bytes_is_not_forgotten(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    body, sink = os.urandom(BUFFER + 2 * ENOUGH), Taken()
    few = iter([body[:5], body[5:10]])
    rest: list[threading.Thread] = []

    def send_some_more() -> bool:
        """Asked before each read: the first two find less than they would like to."""
        if piece := next(few, b""):
            sender.sendall(piece)
        elif not rest:
            rest.append(sending(sender, body[10:]))
        return False

    assert lane(receiver, sink, length=len(body), ends=send_some_more).run() == len(body)

    rest[0].join()
    assert sink.written == body


def test_what_came_before_a_cut_is_kept(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    sink = Taken()
    sender.sendall(b"some")
    sender.shutdown(socket.SHUT_WR)

    with pytest.raises(FileRefused, match="unexpected end"):
        lane(receiver, sink, length=BUFFER).run()

    assert sink.written == b"some"
    assert sink.hasher.digest() == hashlib.sha256(b"some").digest()
    assert is_as_before(receiver)


def test_a_silent_sender_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    _, receiver = pair
    waiting = BodyTransfer(receiver, Taken(), begun=b"", length=9, stall_seconds=0, is_ending=lambda: False)

    with pytest.raises(FileRefused, match="nothing came any more"):
        waiting.run()


def test_the_end_of_the_worker_ends_a_fast_sender_too(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    sink, ending = Taken(), threading.Event()
    sink.on_write = ending.set
    thread = sending(sender, bytes(4 * BUFFER))

    with pytest.raises(FileRefused, match="the worker ends"):
        lane(receiver, sink, length=4 * BUFFER, ends=ending.is_set).run()

    receiver.close()
    thread.join()
    assert len(sink.written) == BUFFER
