"""Who passes on many small pieces in a rush rests between two looks at the sockets, and nobody else does."""

from collections.abc import Callable

from corral.gateway.rests import REST_SECONDS, RUSH_SECONDS, SMALL, Rests

PIECE = b"data: x\n\n"


class Gateway:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.time = 100.0
        self.rested: list[float] = []
        self.rests = Rests(self.soon.append, now=lambda: self.time, sleep=self.rested.append)

    def passes_on(self, *pieces: bytes, after: float = RUSH_SECONDS / 10) -> None:
        self.time += after
        for piece in pieces:
            self.rests.after(piece)
        soon, self.soon[:] = list(self.soon), []
        for callback in soon:
            callback()


def test_a_rush_is_met_with_one_rest_for_each_turn_of_the_loop() -> None:
    gateway = Gateway()
    gateway.passes_on(PIECE)
    assert gateway.rested == []
    gateway.passes_on(PIECE, PIECE, PIECE)
    gateway.passes_on(PIECE)
    assert gateway.rested == [REST_SECONDS, REST_SECONDS]


def test_events_that_come_one_by_one_are_passed_on_at_once() -> None:
    gateway = Gateway()
    for _ in range(5):
        gateway.passes_on(PIECE, after=2 * RUSH_SECONDS)
    assert gateway.rested == []


def test_large_pieces_are_not_held_back() -> None:
    gateway = Gateway()
    for _ in range(5):
        gateway.passes_on(b"x" * SMALL)
    assert gateway.rested == []
