"""Waiting with a timeout: by polling across processes, and for events and gates inside one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Final, TypeVar

T = TypeVar("T")
_LONGEST_PAUSE_SECONDS: Final = 0.1
"""Looking takes time of the very processes that are waited for."""


def _pauses(longest: float) -> Iterator[float]:
    pause = longest / 5
    while True:
        yield pause
        pause = min(pause * 1.2, longest)


def wait_until(
    condition: Callable[[], T], what: str, *, seconds: float = 60.0, longest_pause: float = _LONGEST_PAUSE_SECONDS
) -> T:
    """Look until the condition gives something true, and return that; AssertionError at the deadline."""
    deadline = time.monotonic() + seconds
    for pause in _pauses(longest_pause):
        if is_so := condition():
            return is_so
        if time.monotonic() > deadline:
            break
        time.sleep(pause)
    raise AssertionError(f"waited {seconds:g} s for {what}")


async def eventually(
    condition: Callable[[], Awaitable[T]],
    what: str,
    *,
    seconds: float = 60.0,
    longest_pause: float = _LONGEST_PAUSE_SECONDS,
) -> T:
    """Look until the awaited condition gives something true; the event loop goes on meanwhile."""
    deadline = time.monotonic() + seconds
    for pause in _pauses(longest_pause):
        if is_so := await condition():
            return is_so
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(pause)
    raise AssertionError(f"waited {seconds:g} s for {what}")


WAIT_TIMEOUT: Final = timedelta(seconds=60)
"""How long any single wait may take on a busy machine before the test fails."""


async def within_timeout(waiting: Awaitable[T], what: Callable[[], str]) -> T:
    """Await, and fail with a sentence instead of hanging."""
    try:
        async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
            return await waiting
    except TimeoutError:
        raise AssertionError(f"waited {WAIT_TIMEOUT.total_seconds():g} s for {what()}") from None
