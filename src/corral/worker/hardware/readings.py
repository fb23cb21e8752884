"""Readings of this machine that may hang, and amounts of memory or disk."""

import _thread
import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Total and free bytes."""

    total: int
    available: int


log = logging.getLogger(__name__)

T = TypeVar("T")


class BoundedReading(Generic[T]):
    """Reads in a thread of its own, one reading at a time. `take` may block, and may raise.

    A reading that hangs holds one thread, however often it is asked for, and gives None until it returns. It is waited
    for once, not by everybody who asks. The thread is a daemon, because the end of the process must not wait for it;
    a pool would.
    """

    def __init__(self, take: Callable[[], T | None], *, timeout: timedelta, name: str) -> None:
        self._take = take
        self._timeout = timeout
        self._name = name
        self._pending: asyncio.Future[T | None] | None = None
        self._hangs = False
        self._failure = ""

    async def read(self) -> T | None:
        """The value now, or None when it cannot be read in time. Never raises."""
        reading = self._pending = self._pending or self._start()
        await asyncio.wait({reading}, timeout=0 if self._hangs else self._timeout.total_seconds())
        self._note_hanging(not reading.done())
        if not reading.done():
            return None
        if self._pending is reading:
            self._pending = None
        return reading.result()

    def _start(self) -> "asyncio.Future[T | None]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T | None] = loop.create_future()
        # Not a `Thread`: that one's start waits until the thread runs, and with it all of the event loop, which on a
        # busy machine takes longer than the reading.
        _thread.start_new_thread(self._run, (loop, future))
        return future

    def _run(self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T | None]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, future, self._value(loop))

    def _value(self, loop: asyncio.AbstractEventLoop) -> T | None:
        try:
            value = self._take()
        except Exception as error:  # noqa: BLE001  it is logged, by the event loop
            if self._is_new_failure(error):
                self._tell(loop, "%s cannot be read; leaving it out", level=logging.WARNING, exc_info=error)
            return None
        if self._failure:
            self._failure = ""
            self._tell(loop, "%s can be read again", level=logging.INFO)
        return value

    def _tell(
        self, loop: asyncio.AbstractEventLoop, text: str, *, level: int, exc_info: Exception | None = None
    ) -> None:
        """Log from the event loop, because the thread itself has no name for the log record."""
        telling = functools.partial(log.log, level, text, self._name, exc_info=exc_info, extra=self._extra)
        loop.call_soon_threadsafe(telling)

    def _is_new_failure(self, error: Exception) -> bool:
        """Whether to log this failure: once per reason, because it may last for hours."""
        before, self._failure = self._failure, f"{type(error).__name__}: {error}"
        return before != self._failure

    def _note_hanging(self, hangs: bool) -> None:
        if hangs == self._hangs:
            return
        self._hangs = hangs
        text = "%s does not answer; leaving it out" if hangs else "%s answers again"
        log.log(logging.WARNING if hangs else logging.INFO, text, self._name, extra=self._extra)

    @property
    def _extra(self) -> dict[str, object]:
        return {"event": f"hardware.{self._name}"}


def _settle(future: "asyncio.Future[T | None]", value: T | None) -> None:
    if not future.done():
        future.set_result(value)
