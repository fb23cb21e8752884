"""Waiting inside one process, for events and gates: bounded, and with a sentence when the bound is reached."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

PATIENCE: Final = timedelta(seconds=60)
"""How long any single wait may take on a busy machine before the test fails."""

T = TypeVar("T")


async def within_patience(waiting: Awaitable[T], what: Callable[[], str]) -> T:
    """Await, and fail with a sentence instead of hanging."""
    try:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            return await waiting
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE.total_seconds():g} s for {what()}") from None
