"""Services, doorbells and loops."""

import asyncio
import logging
from datetime import timedelta

import pytest

from corral.base.errors import DatabaseUnavailable
from corral.base.tasks import Listeners, Poke, end_tasks, poke_or_period, run_services, running, task_group
from tests.kit.clock import ManualClock

MINUTE = timedelta(minutes=1)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_services_run_until_they_are_told_to_stop() -> None:
    stop, ran = asyncio.Event(), set[str]()

    async def serve(name: str) -> None:
        ran.add(name)
        if len(ran) == 2:
            stop.set()
        await for_ever()

    await run_services(stop, one=serve("one"), other=serve("other"))
    assert ran == {"one", "other"}


async def test_a_stop_leaves_no_request_for_cancellation_behind() -> None:
    """Where one is left, Python 3.11.2 turns the next time-out of this task into a cancellation."""
    stop, task = asyncio.Event(), asyncio.current_task()
    asyncio.get_running_loop().call_soon(stop.set)
    await run_services(stop, one=for_ever())
    assert task is not None
    assert task.cancelling() == 0


async def test_a_failed_group_leaves_no_request_for_cancellation_behind() -> None:
    async def fails() -> None:
        raise ValueError("broken")

    async def use() -> None:
        async with task_group() as group:
            group.create_task(fails())
            await asyncio.Event().wait()

    task = asyncio.current_task()
    with pytest.raises(ExceptionGroup):
        await use()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_group_that_is_cancelled_from_outside_stays_cancelled() -> None:
    entered = asyncio.Event()

    async def use() -> None:
        async with task_group() as group:
            group.create_task(for_ever())
            entered.set()

    task = asyncio.create_task(use())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_service_that_fails_takes_the_others_down() -> None:
    async def fails() -> None:
        raise ValueError("broken")

    with pytest.raises(ExceptionGroup) as caught:
        await run_services(asyncio.Event(), good=for_ever(), bad=fails())
    assert isinstance(caught.value.exceptions[0], ValueError)


async def test_a_service_that_just_ends_is_a_failure() -> None:
    async def ends() -> None:
        return

    with pytest.raises(ExceptionGroup, match="unhandled errors") as caught:
        await run_services(asyncio.Event(), short=ends())
    assert "service short ended by itself" in str(caught.value.exceptions[0])


async def test_a_ring_during_the_work_is_not_lost() -> None:
    poke = Poke()
    clock = ManualClock()
    poke.ring()
    poke.ring()
    await asyncio.wait_for(poke.wait(clock, MINUTE), timeout=30)
    assert clock.monotonic() == 0


async def test_everybody_who_listens_is_rung_until_they_leave() -> None:
    clock, news = ManualClock(), Listeners()
    with news.listener() as first:
        with news.listener() as second:
            news.ring()
            await asyncio.wait_for(second.wait(clock, MINUTE), timeout=30)
        await asyncio.wait_for(first.wait(clock, MINUTE), timeout=30)
        news.ring()
        await asyncio.wait_for(first.wait(clock, MINUTE), timeout=30)
    assert not news._pokes


async def test_a_loop_runs_at_once_then_when_poked_and_once_per_period() -> None:
    clock, poke, ran = ManualClock(), Poke(), asyncio.Queue[float]()

    async def step() -> None:
        ran.put_nowait(clock.monotonic())

    async with running(poke_or_period(step, poke=poke, clock=clock, period=MINUTE, name="t"), name="t"):
        assert await ran.get() == 0
        await clock.until_sleeping(1)
        poke.ring()
        assert await ran.get() == 0
        await clock.until_sleeping(1)
        await clock.advance(MINUTE)
        assert await ran.get() == 60


async def test_a_step_that_knows_when_something_is_due_is_run_then() -> None:
    clock, ran = ManualClock(), asyncio.Queue[float]()
    pauses = iter([timedelta(seconds=5), timedelta(minutes=5), None])

    async def step() -> timedelta | None:
        ran.put_nowait(clock.monotonic())
        return next(pauses, None)

    async with running(poke_or_period(step, poke=Poke(), clock=clock, period=MINUTE, name="t"), name="t"):
        times = [await ran.get()]
        for _ in range(3):
            await clock.until_sleeping(1)
            await clock.advance(MINUTE if times[-1] else timedelta(seconds=5))
            times.append(await ran.get())
    assert times == [0, 5, 65, 125]  # never later than a period, whatever the step says


async def test_a_loop_survives_a_failing_step_and_backs_off(caplog: pytest.LogCaptureFixture) -> None:
    clock, failures, done = ManualClock(), 2, asyncio.Event()

    async def step() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("gone")
        done.set()

    with caplog.at_level(logging.ERROR):
        async with running(poke_or_period(step, poke=Poke(), clock=clock, period=MINUTE, name="t"), name="t"):
            while not done.is_set():
                await clock.until_sleeping(1)
                await clock.advance(timedelta(seconds=2))
    assert [record.__dict__["failures"] for record in caplog.records] == [1, 2]
    assert all(record.exc_info for record in caplog.records)


async def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock, failures, done = ManualClock(), 5, asyncio.Event()

    async def step() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise DatabaseUnavailable("gone")
        done.set()

    with caplog.at_level(logging.INFO):
        async with running(poke_or_period(step, poke=Poke(), clock=clock, period=MINUTE, name="t"), name="t"):
            while not done.is_set():
                await clock.until_sleeping(1)
                await clock.advance(timedelta(seconds=10))
            await clock.until_sleeping(1)
    assert [record.getMessage() for record in caplog.records] == ["t waits: gone", "t goes on"]
    assert not any(record.exc_info for record in caplog.records)


async def test_a_ring_ends_the_wait_for_what_was_away() -> None:
    clock, poke, runs, is_away = ManualClock(), Poke(), 0, True

    async def step() -> None:
        nonlocal runs
        runs += 1
        if is_away:
            raise DatabaseUnavailable("gone")

    async with running(poke_or_period(step, poke=poke, clock=clock, period=MINUTE, name="t"), name="t"):
        while runs < 10:  # by then it waits for about a minute
            await clock.until_sleeping(1)
            await clock.advance(timedelta(milliseconds=250))
        is_away = False
        poke.ring()
        await clock.advance(timedelta(milliseconds=500))
        assert runs == 11


async def test_rings_are_no_reason_to_knock_without_pause_at_what_is_away() -> None:
    clock, poke, runs = ManualClock(), Poke(), 0

    async def step() -> None:
        nonlocal runs
        runs += 1
        poke.ring()
        raise DatabaseUnavailable("gone")

    async with running(poke_or_period(step, poke=poke, clock=clock, period=MINUTE, name="t"), name="t"):
        await clock.until_sleeping(1)
        await clock.advance(timedelta(seconds=2))
        assert runs <= 9


async def test_a_failed_service_comes_out_when_the_body_is_done() -> None:
    failed = asyncio.Event()

    async def fails() -> None:
        failed.set()
        raise ValueError("broken")

    async def body() -> None:
        async with running(fails(), name="t"):
            await failed.wait()
            await asyncio.sleep(0)

    with pytest.raises(ValueError, match="broken"):
        await body()


async def test_what_a_task_raises_while_it_ends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    entered = asyncio.Event()

    async def stubborn() -> None:
        try:
            entered.set()
            await asyncio.Event().wait()
        finally:
            raise OSError("while ending")

    task = asyncio.create_task(stubborn())
    await entered.wait()
    await end_tasks(task)
    assert "task failed" in caplog.text
