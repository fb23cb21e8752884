"""The gateway pauses between two polls when many small pieces follow each other closely, and never otherwise."""

from collections.abc import Callable

from corral.gateway.upstream import AnswerHead, UpstreamConnection, UpstreamFailure
from corral.gateway.write_batching import CLOSE_SECONDS, PAUSE_SECONDS, SMALL, WriteBatcher
from tests.kit.wire import ENGINE, Wire

PIECE = b"data: x\n\n"


class Gateway:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.time = 100.0
        self.pauses: list[float] = []
        self.callbacks = 0
        self.batcher = WriteBatcher(self.soon.append, now=lambda: self.time, sleep=self.pauses.append)

    def passes_on(self, *pieces: bytes, after: float = CLOSE_SECONDS / 10, each_takes: float = 0.0) -> None:
        self.time += after
        for piece in pieces:
            self.batcher.passed(piece)
            self.time += each_takes
        soon, self.soon[:] = list(self.soon), []
        self.callbacks += len(soon)
        for callback in soon:
            callback()


def test_under_load_there_is_one_pause_for_each_turn_of_the_loop() -> None:
    gateway = Gateway()
    gateway.passes_on(PIECE)
    assert gateway.pauses == []
    gateway.passes_on(PIECE, PIECE, PIECE)
    gateway.passes_on(PIECE)
    assert gateway.pauses == [PAUSE_SECONDS, PAUSE_SECONDS]


def test_events_that_come_one_by_one_are_passed_on_at_once() -> None:
    gateway = Gateway()
    for _ in range(5):
        gateway.passes_on(PIECE, after=2 * CLOSE_SECONDS)
    assert gateway.pauses == []
    assert gateway.callbacks == 0  # each would cost about as much as passing the event on


def test_there_is_no_pause_after_a_turn_that_took_long_itself() -> None:
    gateway = Gateway()
    for _ in range(5):
        gateway.passes_on(PIECE, PIECE, PIECE, each_takes=CLOSE_SECONDS / 2)
    assert gateway.pauses == []


def test_large_pieces_are_not_held_back() -> None:
    gateway = Gateway()
    for _ in range(5):
        gateway.passes_on(b"x" * SMALL)
    assert gateway.pauses == []


class Reader:
    """Takes an answer, and keeps what came."""

    def __init__(self) -> None:
        self.came: list[bytes] = []

    def upstream_began(self, head: AnswerHead, first: bytes) -> None:
        self.came.append(first)

    def upstream_data(self, data: bytes) -> None:
        self.came.append(data)

    def upstream_ended(self) -> None:
        self.came.append(b"end")

    def upstream_failed(self, failure: UpstreamFailure) -> None:
        raise AssertionError(failure)

    def upstream_full(self) -> None: ...
    def upstream_writable(self) -> None: ...
    def release(self, connection: UpstreamConnection) -> None: ...
    def lost(self, connection: UpstreamConnection) -> None: ...


def test_the_piece_that_comes_with_the_head_counts_also_where_the_head_is_known() -> None:
    reader, gateway = Reader(), Gateway()
    connection = UpstreamConnection(reader, ENGINE, gateway.batcher)
    Wire(connection, [])
    for _ in range(2):  # the second head is the same, and not parsed
        gateway.time += 2 * CLOSE_SECONDS
        connection.send(reader, b"", b"")
        connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        assert gateway.soon == []
        connection.data_received(b"1\r\nb\r\n")
        assert len(gateway.soon) == 1
        connection.data_received(b"0\r\n\r\n")
        gateway.passes_on()
    assert reader.came == [b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n", b"end"] * 2


def test_an_answer_in_one_piece_is_no_reason_for_a_pause() -> None:
    reader, gateway = Reader(), Gateway()
    connection = UpstreamConnection(reader, ENGINE, gateway.batcher)
    Wire(connection, [])
    for _ in range(5):
        connection.send(reader, b"", b"")
        connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
    assert gateway.soon == []
