"""Ends steps of a load that take too long: each may go on as long as something moves, within its bounds."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.tasks import first_done
from corral.base.words import format_duration
from corral.frontend.serving.decide.load_job import StepBound

T = TypeVar("T")
_LOOK_SECONDS: Final = 1.0


class StepTimedOut(CorralError):
    """A step of a load took too long, or did not move."""

    code = "step_timed_out"
    retryable = True


async def within_bound(
    what: str, work: Coroutine[Any, Any, T], *, moved: Callable[[], object], bound: StepBound, clock: Clock
) -> T:
    """The result of the work, which is cancelled when it takes too long: then StepTimedOut says how long nothing moved.

    `moved` returns another value whenever something has moved since.
    """
    results: list[T] = []
    began = moved_at = clock.monotonic()

    async def run() -> None:
        results.append(await work)

    async def watch() -> None:
        nonlocal moved_at
        last = moved()
        while (now := clock.monotonic()) < (end := bound.ends_at(began, moved_at)):
            await clock.sleep(min(_LOOK_SECONDS, end - now))
            if (latest := moved()) != last:
                last, moved_at = latest, clock.monotonic()

    if await first_done(run(), watch()) == 0:
        return results[0]
    now = clock.monotonic()
    took, still = timedelta(seconds=now - began), timedelta(seconds=now - moved_at)
    raise StepTimedOut(f"{what} was given up after {format_duration(took)}: nothing moved for {format_duration(still)}")
