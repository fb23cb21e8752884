"""Time-outs of the event loop that are over when a test says so."""

import asyncio
from datetime import timedelta

import pytest

from tests.kit.loop_time import let_loop_time_pass, overdue, without_waiting

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


async def wait_for_ever(bound: timedelta) -> None:
    async with asyncio.timeout(bound.total_seconds()):
        await asyncio.Event().wait()


async def test_a_time_out_is_over_when_its_time_has_passed() -> None:
    waiting = asyncio.create_task(wait_for_ever(HOUR))
    await asyncio.sleep(0)
    let_loop_time_pass(HOUR)
    with pytest.raises(TimeoutError):
        await waiting


async def test_a_longer_one_and_a_later_one_are_not() -> None:
    longer = asyncio.create_task(wait_for_ever(HOUR * 3))
    await asyncio.sleep(0)
    let_loop_time_pass(HOUR)
    later = asyncio.create_task(wait_for_ever(HOUR))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not longer.done()
    assert not later.done()
    let_loop_time_pass(HOUR * 2)
    for task in (longer, later):
        with pytest.raises(TimeoutError):
            await task


async def test_a_task_need_not_be_waited_for_however_long_it_waits() -> None:
    async def patient() -> str:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await wait_for_ever(MINUTE)
        return "done"

    assert await without_waiting(asyncio.create_task(patient())) == "done"


async def test_work_is_overdue_when_the_signs_are_there_and_not_before() -> None:
    begun, answered = asyncio.Event(), asyncio.Event()

    async def ask() -> str:
        begun.set()
        try:
            async with asyncio.timeout(HOUR.total_seconds()):
                await answered.wait()
                await asyncio.Event().wait()
        except TimeoutError:
            return "one answer"
        return "two"

    async def answer() -> None:
        await begun.wait()
        answered.set()

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(overdue(ask(), begun, answered, by=HOUR))
        group.create_task(answer())
    assert asking.result() == "one answer"
