"""The clock of tests: time passes only when told, sleepers wake in order, and a jump is not time."""

import asyncio
from datetime import timedelta

from corral.base.clock import Clock
from tests.kit.clock import START, ManualClock


async def test_time_stands_still_until_it_is_advanced() -> None:
    clock: Clock = ManualClock()
    assert (clock.now(), clock.monotonic()) == (START, clock.monotonic())

    assert isinstance(clock, ManualClock)
    before = clock.monotonic()
    await clock.advance(timedelta(seconds=2.5))
    assert clock.now() == START + timedelta(seconds=2.5)
    assert clock.monotonic() - before == 2.5


async def test_sleepers_wake_in_order_each_at_its_own_time() -> None:
    clock = ManualClock()
    woken: list[tuple[str, timedelta]] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now() - START))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 3), ("early", 1), ("same", 3), ("never", 99)):
            group.create_task(sleep(name, seconds))
        await clock.until_sleeping(4)
        await clock.advance(timedelta(seconds=5))

        second = timedelta(seconds=1)
        assert woken == [("early", second), ("late", 3 * second), ("same", 3 * second)]
        assert clock.now() == START + timedelta(seconds=5)
        await clock.advance(timedelta(seconds=94))
    assert woken[-1] == ("never", timedelta(seconds=99))


async def test_a_loop_that_sleeps_again_runs_every_round_within_one_advance() -> None:
    clock = ManualClock()
    rounds: list[float] = []

    async def loop() -> None:
        while True:
            await clock.sleep(10)
            rounds.append(clock.monotonic())

    task = asyncio.create_task(loop())
    await clock.advance(timedelta(seconds=35))
    task.cancel()
    await asyncio.wait([task])

    assert [after - rounds[0] for after in rounds] == [0, 10, 20]


async def test_a_jump_moves_the_wall_clock_and_wakes_nobody() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(60))
    await clock.until_sleeping(1)
    before = clock.monotonic()
    clock.jump(timedelta(hours=-1))

    assert clock.now() == START - timedelta(hours=1)
    assert clock.monotonic() == before
    assert not sleeper.done()
    await clock.advance(timedelta(seconds=60))
    assert sleeper.done()
    assert clock.now() == START - timedelta(minutes=59)


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(60))
    await clock.until_sleeping(1)
    sleeper.cancel()
    await asyncio.wait([sleeper])

    assert clock.sleeping == 0
    await clock.advance(timedelta(minutes=2))


async def test_no_sleep_is_just_a_turn() -> None:
    clock = ManualClock()
    await clock.sleep(0)
    await clock.sleep(-5)

    assert clock.now() == START
