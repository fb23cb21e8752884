"""Steps of a load go on as long as something moves, and no longer than their bounds."""

import asyncio
from datetime import timedelta

import pytest

from corral.frontend.serving.decide.load_job import LoadPolicy, StepBound
from corral.frontend.serving.gateways.reports import AnswerSpeeds
from corral.frontend.serving.loading.model_loader import StepTimedOut, within_bound
from tests.kit.clock import ManualClock

BOUND = StepBound(least=timedelta(seconds=10), stall=timedelta(seconds=5), most=timedelta(seconds=60))


def test_a_step_ends_when_nothing_moves_but_not_before_its_least_time_and_not_after_its_most() -> None:
    assert BOUND.ends_at(100.0, 100.0) == 110.0
    assert BOUND.ends_at(100.0, 107.0) == 112.0
    assert BOUND.ends_at(100.0, 159.0) == 160.0
    assert LoadPolicy().stage_bound(6 * 1024**3).stall == timedelta(minutes=6)


async def test_a_staging_that_stands_still_is_given_up_with_a_sentence() -> None:
    clock, moved, is_cancelled = ManualClock(), 0, False

    async def hang() -> None:
        nonlocal is_cancelled
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled = True

    work = asyncio.create_task(
        within_bound("bringing its files there", hang(), moved=lambda: moved, bound=BOUND, clock=clock)
    )
    for _ in range(30):
        await clock.advance(timedelta(seconds=1))
        moved += 1
    assert not work.done()
    for _ in range(7):
        await clock.advance(timedelta(seconds=1))
    with pytest.raises(StepTimedOut, match=r"bringing its files there was given up after 3.s: nothing moved for 5s"):
        await work
    assert is_cancelled


async def test_what_ends_in_time_gives_its_result_or_its_error() -> None:
    async def answer() -> str:
        return "done"

    async def fail() -> str:
        raise StepTimedOut("other")

    clock = ManualClock()
    assert await within_bound("it", answer(), moved=lambda: 0, bound=BOUND, clock=clock) == "done"
    with pytest.raises(StepTimedOut, match="other"):
        await within_bound("it", fail(), moved=lambda: 0, bound=BOUND, clock=clock)


async def test_speeds_follow_the_latest_answers_and_are_forgotten() -> None:
    clock = ManualClock()
    speeds = AnswerSpeeds(clock)
    speeds.add("r", 100, 10.0)
    speeds.add("r", 0, 1.0)
    speeds.add("r", 5, 0.0)
    assert speeds.of("r") == 10.0
    await clock.advance(timedelta(minutes=2))
    speeds.add("r", 100, 1.0)
    assert speeds.of("r") == pytest.approx(65.4)
    await clock.advance(timedelta(minutes=6))
    assert (speeds.of("r"), speeds.of("nobody")) == (None, None)
