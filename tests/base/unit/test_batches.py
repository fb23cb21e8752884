"""Those who store together share a transaction; nobody waits for one that never comes, and nobody falls for another."""

import asyncio
from collections.abc import Sequence

import pytest

from corral.base.errors import DatabaseUnavailable
from corral.base.queues import Batches
from corral.base.tasks import end_tasks, start_task


class Writer:
    """Each transaction waits at a gate, and may fail."""

    def __init__(self, *, under_way: int = 0) -> None:
        self.batches: list[list[str]] = []
        self.begun = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing = False
        self.store = Batches[str, bool](self.write, under_way=lambda: under_way).store

    async def write(self, items: Sequence[str]) -> list[bool]:
        self.batches.append(list(items))
        self.begun.release()
        await self.gate.wait()
        if self.failing:
            self.failing = False
            raise DatabaseUnavailable("away")
        return [item != "lost" for item in items]


async def storing(writer: Writer, first: str, *others: str) -> tuple["asyncio.Task[bool]", list["asyncio.Task[bool]"]]:
    """The first is in its transaction, at the gate; the others wait for theirs."""
    writer.gate.clear()
    tasks = [start_task(writer.store(first), name=first)]
    await writer.begun.acquire()
    for item in others:
        tasks.append(start_task(writer.store(item), name=item))
        await asyncio.sleep(0)
    return tasks[0], tasks[1:]


async def test_one_alone_is_stored_at_once() -> None:
    writer = Writer()
    assert await writer.store("w1")
    assert writer.batches == [["w1"]]


async def test_those_who_come_meanwhile_share_the_next_transaction() -> None:
    writer = Writer()
    first, others = await storing(writer, "w1", "w2", "lost", "w3")
    writer.gate.set()
    assert await first
    assert [await one for one in others] == [True, False, True]
    assert writer.batches == [["w1"], ["w2", "lost", "w3"]]


async def test_the_first_waits_a_moment_for_those_that_are_under_way() -> None:
    writer = Writer(under_way=3)
    tasks = [start_task(writer.store(item), name=item) for item in ("w1", "w2", "w3")]
    assert await asyncio.gather(*tasks) == [True, True, True]
    assert writer.batches == [["w1", "w2", "w3"]]


async def test_it_does_not_wait_for_ever() -> None:
    writer = Writer(under_way=1000)
    assert await writer.store("w1")


async def test_a_transaction_that_fails_fails_for_those_in_it_only() -> None:
    writer = Writer()
    first, others = await storing(writer, "w1", "w2", "w3")
    writer.failing = True
    writer.gate.set()
    with pytest.raises(DatabaseUnavailable):
        await first
    assert [await one for one in others] == [True, True]


async def test_one_that_is_cancelled_while_it_writes_takes_nobody_along() -> None:
    writer = Writer()
    first, others = await storing(writer, "w1", "w2", "w3")
    await end_tasks(first)
    writer.gate.set()
    assert [await one for one in others] == [True, True]
    assert first.cancelled()
    assert writer.batches == [["w1"], ["w2", "w3"]]


async def test_one_that_is_cancelled_while_it_waits_takes_nobody_along() -> None:
    writer = Writer()
    first, (second, third) = await storing(writer, "w1", "w2", "w3")
    await end_tasks(second)
    writer.gate.set()
    assert await first
    assert await third


async def test_one_that_gave_up_while_it_waited_is_not_stored() -> None:
    """Nobody would know of it, and what it was about may have changed by the time that somebody else writes."""
    writer = Writer()
    first, (second,) = await storing(writer, "w1", "w2")
    await end_tasks(second)
    writer.gate.set()
    assert await first
    assert await writer.store("w3")
    assert writer.batches == [["w1"], ["w3"]]


async def test_one_that_gave_up_does_not_come_back_when_its_transaction_breaks_off() -> None:
    writer = Writer()
    first, (second, third) = await storing(writer, "w1", "w2", "w3")
    writer.gate.set()
    assert await first
    writer.gate.clear()
    await writer.begun.acquire()  # the second writes for the third as well
    await end_tasks(third)
    await end_tasks(second)
    writer.gate.set()
    assert await writer.store("w4")
    assert writer.batches == [["w1"], ["w2", "w3"], ["w4"]]


async def test_all_of_one_transaction_go_on_in_one_turn_of_the_event_loop() -> None:
    """What they do next, such as sending messages, then also happens together."""
    writer = Writer()
    turns: list[int] = []
    turn = 0

    async def store(item: str) -> None:
        await writer.store(item)
        turns.append(turn)

    first, _ = await storing(writer, "w1")
    others = [start_task(store(f"w{number}"), name=f"w{number}") for number in range(2, 50)]
    await asyncio.sleep(0)
    writer.gate.set()
    while not all(task.done() for task in [first, *others]):
        turn += 1
        await asyncio.sleep(0)
    assert len(writer.batches) == 2
    assert turns[-1] - turns[0] <= 1


async def test_one_that_is_cancelled_when_it_is_to_write_lets_another_write() -> None:
    writer = Writer()
    first, (second, third) = await storing(writer, "w1", "w2", "w3")
    writer.gate.set()
    await first  # the second was told to write, and has not begun
    await end_tasks(second)
    assert await third
    assert await writer.store("w4")
    assert writer.batches == [["w1"], ["w3"], ["w4"]]
