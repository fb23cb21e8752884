"""When freed memory is given back to the system."""

import pytest

from corral.base import memory
from corral.base.memory import FreedMemory

MIB = 1024 * 1024


def test_memory_is_given_back_when_much_was_freed_and_not_too_often() -> None:
    given: list[float] = []
    freed = FreedMemory(lambda: given.append(now))
    for now, held in (
        (100.0, 20 * MIB),
        (101.0, 15 * MIB),  # little was freed
        (102.0, 10 * MIB),
        (103.0, 20 * MIB),
        (104.0, 0),  # too soon
        (107.0, 0),
        (120.0, 0),  # nothing was held since
    ):
        freed.look(held, now)

    assert given == [102.0, 107.0]


def test_memory_can_be_given_back_with_every_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    memory.give_back()
    monkeypatch.setattr(memory, "_trim", None)
    memory.give_back()
