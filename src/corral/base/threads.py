"""Blocking work that may take minutes, in a thread of its own, so that it holds up neither the loop nor the shared
threads in which everybody else looks at the disk.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

GIVE_UP_SECONDS: Final = 10.0
"""How long a cancelled caller waits for its thread. A disk that hangs must not keep a process from ending."""


class Stopped(Exception):
    """The work saw that nobody wants it any more."""


class Wanted:
    """Asked by the work, now and then, whether it shall go on."""

    def __init__(self) -> None:
        self._unwanted = threading.Event()

    def end(self) -> None:
        self._unwanted.set()

    def check(self) -> None:
        """Stopped when the caller is gone."""
        if self._unwanted.is_set():
            raise Stopped


async def in_own_thread(work: Callable[[Wanted], T], *, name: str) -> T:
    """What the work returns or raises. A cancelled caller tells the work, and waits for it to end within a bound."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()
    wanted = Wanted()
    threading.Thread(target=_run, args=(work, wanted, outcome, loop), name=name, daemon=True).start()
    try:
        await asyncio.wait({outcome})
    except asyncio.CancelledError:
        wanted.end()
        await asyncio.wait({outcome}, timeout=GIVE_UP_SECONDS)
        if outcome.done():
            outcome.exception()  # nobody is left to be told
        raise
    return outcome.result()


def _run(
    work: Callable[[Wanted], T], wanted: Wanted, outcome: "asyncio.Future[T]", loop: asyncio.AbstractEventLoop
) -> None:
    result: T | None = None
    error: BaseException | None = None
    try:
        result = work(wanted)
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
