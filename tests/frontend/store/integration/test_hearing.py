"""The time in which control could hear, on both databases."""

import asyncio
from datetime import timedelta

from corral.frontend.nodes.decide.liveness import Hearing
from corral.frontend.nodes.store.liveness import HearingPeriods
from tests.kit.samples import after

GAP = timedelta(seconds=3)


async def test_before_the_first_confirmation_there_is_no_period(hearing: HearingPeriods) -> None:
    assert await hearing.read() is None


async def test_confirming_extends_the_period(hearing: HearingPeriods) -> None:
    assert await hearing.confirm(after(0), longest_gap=GAP) == Hearing(since=after(0), until=after(0))
    assert await hearing.confirm(after(3), longest_gap=GAP) == Hearing(since=after(0), until=after(3))
    assert await hearing.read() == Hearing(since=after(0), until=after(3))


async def test_a_longer_gap_starts_a_new_period(hearing: HearingPeriods) -> None:
    await hearing.confirm(after(0), longest_gap=GAP)

    assert await hearing.confirm(after(3.000001), longest_gap=GAP) == Hearing(
        since=after(3.000001), until=after(3.000001)
    )
    assert await hearing.read() == Hearing(since=after(3.000001), until=after(3.000001))


async def test_a_slower_clock_moves_nothing_back(hearing: HearingPeriods) -> None:
    await hearing.confirm(after(0), longest_gap=GAP)
    await hearing.confirm(after(2), longest_gap=GAP)

    assert await hearing.confirm(after(1), longest_gap=GAP) == Hearing(since=after(0), until=after(2))
    assert await hearing.confirm(after(-500), longest_gap=GAP) == Hearing(since=after(0), until=after(2))
    assert await hearing.read() == Hearing(since=after(0), until=after(2))


async def test_a_restart_begins_anew_even_in_the_past(hearing: HearingPeriods) -> None:
    await hearing.confirm(after(100), longest_gap=GAP)

    assert await hearing.restart(after(5)) == Hearing(since=after(5), until=after(5))
    assert await hearing.read() == Hearing(since=after(5), until=after(5))


async def test_the_very_first_call_may_be_a_restart(hearing: HearingPeriods) -> None:
    await hearing.restart(after(5))

    assert await hearing.confirm(after(6), longest_gap=GAP) == Hearing(since=after(5), until=after(6))


async def test_concurrent_frontends_share_one_period(hearing: HearingPeriods) -> None:
    confirmed = await asyncio.gather(*(hearing.confirm(after(n / 4), longest_gap=GAP) for n in range(8)))
    period = await hearing.read()

    assert period is not None
    assert period.until == after(7 / 4)
    assert {one.since for one in confirmed} == {period.since}
