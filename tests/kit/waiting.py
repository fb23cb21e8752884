"""Waiting across the border of a process, where no event and no gate reaches. Inside one process use those."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")
_LOOK_SECONDS: Final = 0.02


def wait_until(condition: Callable[[], T], what: str, *, seconds: float = 60.0) -> T:
    """Look until the condition gives something true, and return that; AssertionError at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(_LOOK_SECONDS)


async def eventually(condition: Callable[[], Awaitable[T]], what: str, *, seconds: float = 60.0) -> T:
    """The same for conditions that must be awaited; the event loop goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        found = await condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        await asyncio.sleep(_LOOK_SECONDS)
