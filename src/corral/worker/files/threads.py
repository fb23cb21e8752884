"""Threads for the file server's blocking work.

Long reads have their own threads: hashing a hundred gigabytes must not delay uploads. Threads that move or hash
many bytes have a lower priority than the event loop.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, Protocol, TypeVar

from corral.worker.files.bodies import MOST_LANES

T = TypeVar("T")

SHORT_THREADS: Final = 16
LONG_THREADS: Final = 2
LESS_URGENT: Final = 5
"""Niceness of busy threads relative to the event loop: they get a quarter of a contended CPU."""


class Closable(Protocol):
    def close(self) -> None: ...


ClosableT = TypeVar("ClosableT", bound=Closable)


class Threads:
    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(SHORT_THREADS, thread_name_prefix="corral-files")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="corral-hashing", initializer=step_back)
        self._lanes = ThreadPoolExecutor(MOST_LANES, thread_name_prefix="corral-lanes", initializer=step_back)
        self._lanes_in_use = 0

    async def close(self) -> None:
        """Wait for running work; start nothing more."""
        for pool in (self._short, self._long, self._lanes):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    def begin(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Start short work. The caller must await it even when it is cancelled itself: see `settled`."""
        return asyncio.get_running_loop().run_in_executor(self._short, work)

    async def run(self, work: Callable[[], T]) -> T:
        """Run short work. A cancelled caller waits for its end: a thread cannot be stopped."""
        return await settled(self.begin(work))

    async def run_long(self, work: Callable[[], T]) -> T:
        """Run work that may take minutes. It continues when the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._long, work)

    @property
    def has_lane(self) -> bool:
        return self._lanes_in_use < MOST_LANES

    async def run_lane(self, work: Callable[[], T]) -> T:
        """Run one direct transfer of a large body."""
        self._lanes_in_use += 1
        try:
            return await settled(asyncio.get_running_loop().run_in_executor(self._lanes, work))
        finally:
            self._lanes_in_use -= 1

    @asynccontextmanager
    async def opened(self, work: Callable[[], ClosableT]) -> AsyncIterator[ClosableT]:
        """Yield what the work opens, and close it at the end, even when cancelled meanwhile."""
        opening = self.begin(work)
        try:
            yield await settled(opening)
        finally:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await self.run(opening.result().close)


def step_back() -> None:
    """Lower the priority of this thread and those that it starts. Only Linux has priorities per thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # some sandboxes forbid it
            usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual + LESS_URGENT)


async def finished(*futures: "asyncio.Future[T]") -> None:
    """Wait for the end of several futures, however they end. A cancellation takes effect only then."""
    cancellation: asyncio.CancelledError | None = None
    while not all(future.done() for future in futures):
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


async def settled(future: "asyncio.Future[T]") -> T:
    """Await a thread's work to its end, even when cancelled meanwhile."""
    await finished(future)
    return future.result()
