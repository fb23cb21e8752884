"""Each machine has its own wall clock and may freeze; time itself is everybody's."""

import asyncio
from datetime import timedelta

from tests.kit.clock import START, ManualClock
from tests.kit.member_clock import MemberClock

SECOND = timedelta(seconds=1)


async def test_a_wrong_wall_clock_is_this_machine_s_alone() -> None:
    clock = ManualClock()
    wrong, right = MemberClock(clock), MemberClock(clock)

    wrong.jump(timedelta(hours=1))
    await clock.advance(SECOND)

    assert right.now() == START + SECOND
    assert wrong.now() == START + SECOND + timedelta(hours=1)
    assert wrong.monotonic() == right.monotonic() == 1


async def test_it_knows_who_sleeps_and_tells_when_somebody_does() -> None:
    clock = ManualClock()
    member = MemberClock(clock)

    async with asyncio.TaskGroup() as group:
        changed = group.create_task(member.until_changed())
        await asyncio.sleep(0)
        group.create_task(member.sleep(1))
        await changed
        assert member.sleeping == 1
        await clock.advance(SECOND)

    assert member.sleeping == 0


async def test_whoever_sleeps_on_a_frozen_machine_wakes_when_it_thaws() -> None:
    clock = ManualClock()
    member = MemberClock(clock)

    async with asyncio.TaskGroup() as group:
        sleeper = group.create_task(member.sleep(1))
        member.freeze()
        await clock.advance(SECOND * 10)
        assert not sleeper.done()
        assert member.sleeping == 1
        member.thaw()
