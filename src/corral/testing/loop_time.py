"""The event loop's own time, for time-outs that are measured by it and not by a clock of ours.

A short time-out elapses too early on a slow machine: before that had a chance to happen which should come first. So give
it long, wait for what comes first, and let the time pass then:

    asking = asyncio.create_task(client.ask(timeout=LONG))
    await server.until_asked()
    let_loop_time_pass(LONG)

Not for uvloop, whose time is the kernel's.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

_AT_ONCE: Final = timedelta(seconds=1)

T = TypeVar("T")


def let_loop_time_pass(duration: timedelta) -> None:
    """Whatever the running loop would have woken meanwhile, it wakes now."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop.time, _Ahead):
        loop.time = _Ahead(loop.time)  # type: ignore[method-assign]
    loop.time.seconds += duration.total_seconds()


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
