"""The gateway pauses between two polls when many small pieces follow each other closely, and never otherwise."""

from collections.abc import Callable

from corral.gateway.write_batching import CLOSE_SECONDS, PAUSE_SECONDS, SMALL, WriteBatcher

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
