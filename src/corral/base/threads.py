"""Runs blocking work in a thread that the caller does not leave behind: short work in the shared thread pool, work that
may take minutes in a thread of its own, so that it blocks neither the event loop nor the pool."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from corral.base.tasks import start_task

log = logging.getLogger(__name__)

T = TypeVar("T")

GIVE_UP_SECONDS: Final = 10.0
"""How long a cancelled caller waits for its thread. A hanging disk must not keep the process from ending."""


class WorkCancelled(Exception):
    """The work noticed that it was cancelled."""


class CancelSignal:
    """Lets the work check periodically whether it was cancelled."""

    def __init__(self) -> None:
        self._unwanted = threading.Event()

    def end(self) -> None:
        self._unwanted.set()

    def check(self) -> None:
        """Raise `WorkCancelled` when the caller was cancelled."""
        if self._unwanted.is_set():
            raise WorkCancelled


async def in_own_thread(work: Callable[[CancelSignal], T], *, name: str) -> T:
    """Return or raise what the work does. Cancelling the caller signals the work, and waits a bounded time for its
    end."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    signal = CancelSignal()
    threading.Thread(target=_run, args=(work, signal, outcome, loop), name=name, daemon=True).start()
    try:
        await asyncio.wait({outcome})
    except asyncio.CancelledError:
        signal.end()
        await asyncio.wait({outcome}, timeout=GIVE_UP_SECONDS)
        if outcome.done():
            outcome.exception()  # mark the exception as retrieved
        raise
    return outcome.result()


def _run(
    work: Callable[[CancelSignal], T],
    signal: CancelSignal,
    outcome: "asyncio.Future[T]",
    loop: asyncio.AbstractEventLoop,
) -> None:
    result: T | None = None
    error: BaseException | None = None
    try:
        result = work(signal)
    except BaseException as raised:
        log.debug("work failed", exc_info=raised, extra={"event": "thread.failed"})
        error = raised

    def settle() -> None:
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(settle)


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
