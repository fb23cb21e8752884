"""Readings of this machine: of small files, and of what may hang; and amounts of memory or disk."""

import _thread
import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

log = logging.getLogger(__name__)

T = TypeVar("T")


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """An amount of memory or disk: total and free bytes."""

    total: int
    available: int


def text_in(path: Path) -> str:
    """The trimmed text of a small file, also without the zero bytes of a device tree; empty when it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8", errors="replace").strip(" \t\r\n\0")
    except OSError:
        return ""


def number_in(path: Path) -> int | None:
    """A decimal number, or a hexadecimal one after `0x`; None when the file has neither."""
    text = text_in(path)
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        return None


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
        self._extra = {"event": f"hardware.{name}"}
        self._pending: asyncio.Future[T | None] | None = None
        self._hangs = False
        self._failure = ""

    async def read(self) -> T | None:
        """The value now, or None when it cannot be read in time. Never raises."""
        reading = self._pending = self._pending or self._start()
        await asyncio.wait({reading}, timeout=0 if self._hangs else self._timeout.total_seconds())
        hangs = not reading.done()
        if hangs != self._hangs:
            self._hangs = hangs
            text = "%s does not answer; leaving it out" if hangs else "%s answers again"
            log.log(logging.WARNING if hangs else logging.INFO, text, self._name, extra=self._extra)
        if hangs:
            return None
        if self._pending is reading:
            self._pending = None
        return reading.result()

    def _start(self) -> "asyncio.Future[T | None]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T | None] = loop.create_future()

        def settle(value: T | None) -> None:
            if not future.done():
                future.set_result(value)

        def run() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, self._value(loop))

        # Not a `Thread`: that one's start waits until the thread runs, and with it all of the event loop, which on a
        # busy machine takes longer than the reading.
        _thread.start_new_thread(run, ())
        return future

    def _value(self, loop: asyncio.AbstractEventLoop) -> T | None:
        failure = self._failure
        try:
            value = self._take()
        except Exception as error:  # noqa: BLE001  it is logged, by the event loop
            self._failure = f"{type(error).__name__}: {error}"
            if self._failure != failure:  # logged once per reason, because it may last for hours
                self._log(loop, logging.WARNING, "%s cannot be read; leaving it out", exc_info=error)
            return None
        self._failure = ""
        if failure:
            self._log(loop, logging.INFO, "%s can be read again")
        return value

    def _log(
        self, loop: asyncio.AbstractEventLoop, level: int, text: str, *, exc_info: Exception | None = None
    ) -> None:
        """Log from the event loop, because the thread itself has no name for the log record."""
        write = functools.partial(log.log, level, text, self._name, exc_info=exc_info, extra=self._extra)
        loop.call_soon_threadsafe(write)
