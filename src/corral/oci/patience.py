"""Trying again: what is worth it says so itself, and a registry may say when."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from corral.base.clock import Clock
from corral.base.retry import Backoff
from corral.base.tasks import start_task
from corral.oci.errors import RegistryUnavailable
from corral.oci.network import Network

T = TypeVar("T")


class FetchRetries:
    """Counts failures in a row, and waits between them."""

    def __init__(self, network: Network, clock: Clock) -> None:
        self._network = network
        self._clock = clock
        self._backoff = Backoff(
            first=timedelta(seconds=network.first_pause_seconds), cap=timedelta(seconds=network.longest_pause_seconds)
        )
        self._failures = 0

    def forget(self) -> None:
        """There was progress."""
        self._failures = 0

    async def after(self, error: RegistryUnavailable) -> None:
        """Wait before the next attempt, as long as the registry asks for; raises the error when there is none left."""
        self._failures += 1
        asked = error.retry_after or 0.0
        if self._failures >= self._network.attempts or asked > self._network.longest_retry_after_seconds:
            raise error
        pause = self._backoff.delay(self._failures).total_seconds()
        await self._clock.sleep(max(pause, asked))


async def persistently(work: Callable[[], Awaitable[T]], network: Network, clock: Clock) -> T:
    """Do it, again and again while it is worth it."""
    patience = FetchRetries(network, clock)
    while True:
        try:
            return await work()
        except RegistryUnavailable as error:
            await patience.after(error)


def _nothing() -> None:
    """There is nobody to tell."""


async def in_thread(work: Callable[[], T], *, stop: Callable[[], None] = _nothing) -> T:
    """Run in a thread, and do not leave while it runs: it uses files that the caller is about to close.

    Keep the work short, or let `stop` make it so: it is called when somebody cancels.
    """
    running = start_task(asyncio.to_thread(work), name="thread")
    try:
        return await asyncio.shield(running)  # a thread cannot be cancelled, only awaited
    except asyncio.CancelledError:
        stop()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # nobody wants to know any more
        raise
