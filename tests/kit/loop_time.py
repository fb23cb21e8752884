"""The event loop's own time, for time-outs that are measured by it and not by a clock of ours.

A short time-out elapses too early on a slow machine: before that had a chance to happen which should come first. So
give it long, wait for what comes first, and let the time pass then:

    await overdue(client.ask(timeout=LONG), server.asked, by=LONG)

Not for uvloop, whose time is the kernel's.
"""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

from tests.kit.waiting import within_timeout

_AT_ONCE: Final = timedelta(seconds=1)
_ROUNDS: Final = 25
"""How often tasks get a turn before the time passes: enough for a chain of awaits without I/O."""

T = TypeVar("T")


def let_loop_time_pass(duration: timedelta) -> None:
    """Let time pass for the running loop: it wakes what would have woken meanwhile."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop.time, _Ahead):
        loop.time = _Ahead(loop.time)  # type: ignore[method-assign]
    loop.time.seconds += duration.total_seconds()


async def overdue(work: Coroutine[Any, Any, T], *signs: asyncio.Event, by: timedelta) -> T:
    """What becomes of work whose time is over as soon as all the signs are there and tasks have done what they can."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work)
        for sign in signs:
            await within_timeout(sign.wait(), lambda: "what must happen before the time is over")
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        let_loop_time_pass(by)
    return working.result()


async def without_waiting(task: "asyncio.Task[T]") -> T:
    """What becomes of a task whose time-outs are over as soon as it comes to them."""
    while not task.done():
        let_loop_time_pass(_AT_ONCE)
        await asyncio.sleep(0)
    return task.result()


class _Ahead:
    """A loop's time, and what was let pass."""

    def __init__(self, real: Callable[[], float]) -> None:
        self._real = real
        self.seconds = 0.0

    def __call__(self) -> float:
        return self._real() + self.seconds
