"""A reading that may hang, such as the size of a network file system, taken without ever waiting for it too long."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class BoundedReading(Generic[T]):
    """Reads in a thread of its own, one reading at a time. `take` may block, but does not raise.

    A reading that hangs holds one thread, however often it is asked for, and gives None until it returns. The thread
    is a daemon, because the end of the process must not wait for it; a pool would.
    """

    def __init__(self, take: Callable[[], T | None], *, timeout: timedelta, name: str) -> None:
        self._take = take
        self._timeout = timeout
        self._name = name
        self._pending: asyncio.Future[T | None] | None = None
        self._hangs = False

    async def read(self) -> T | None:
        """The value now, or None when it cannot be read in time."""
        if self._pending is None or self._pending.done():
            self._pending = self._start()
        reading = self._pending
        await asyncio.wait({reading}, timeout=self._timeout.total_seconds())
        self._tell(hangs=not reading.done())
        return reading.result() if reading.done() else None

    def _start(self) -> "asyncio.Future[T | None]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T | None] = loop.create_future()
        threading.Thread(target=self._run, args=(loop, future), name=f"read-{self._name}", daemon=True).start()
        return future

    def _run(self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T | None]") -> None:
        value = self._take()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, future, value)

    def _tell(self, *, hangs: bool) -> None:
        """Once per change: a file system that hangs does so for hours."""
        if hangs == self._hangs:
            return
        self._hangs = hangs
        text = "%s does not answer; leaving it out" if hangs else "%s answers again"
        log.log(logging.WARNING if hangs else logging.INFO, text, self._name, extra={"event": f"hardware.{self._name}"})


def _settle(future: "asyncio.Future[T | None]", value: T | None) -> None:
    if not future.done():
        future.set_result(value)
