"""Long-lived tasks, and blocking work in threads. The only module that creates tasks, so that each has a name and an
owner that awaits it. Also the signals that ask a process to end.
"""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.retry import Backoff

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Stop(Exception):
    """Internal signal: the stop event was set."""


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group whose failure can be caught without side effects on the surrounding task.

    Python 3.11's own leaves its internal cancellation request behind when a member fails. On 3.11.2, Debian 12's
    version, the next timeout of that task then appears as a cancellation.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except asyncio.CancelledError:
        raise
    except BaseException:
        _level_cancellation(task, before)
        raise
    else:
        _level_cancellation(task, before)


def _level_cancellation(task: "asyncio.Task[object] | None", level: int) -> None:
    while task is not None and task.cancelling() > level:
        task.uncancel()


@contextmanager
def first_failure(*kinds: type[Exception]) -> Iterator[None]:
    """Raise one error of a task group instead of its exception group: the first of these kinds, which says why."""
    try:
        yield
    except ExceptionGroup as group:
        error = next((error for error in group.exceptions if isinstance(error, kinds)), group.exceptions[0])
        raise error from error.__cause__


async def run_services(stop: asyncio.Event, **services: Coroutine[None, None, None]) -> None:
    """Run until `stop` is set. A service that fails, or just ends, takes the process down."""

    async def wait_for_stop() -> None:
        await stop.wait()
        raise _Stop

    async def guard(name: str, service: Coroutine[None, None, None]) -> None:
        await service
        raise RuntimeError(f"service {name} ended by itself")

    try:
        async with task_group() as group:
            group.create_task(wait_for_stop(), name="stop")
            for name, service in services.items():
                group.create_task(guard(name, service), name=name)
    except* _Stop:
        pass


def start_task(work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Start a task that the caller keeps and awaits or cancels. Prefer `run_services` or a task group."""
    return asyncio.create_task(work, name=name)


@asynccontextmanager
async def running(service: Coroutine[None, None, None], *, name: str) -> AsyncIterator[None]:
    """Run a service during the block. Its error is raised when the block is done."""
    task = start_task(service, name=name)
    try:
        yield
        if task.done():
            await task
    finally:
        await end_tasks(task)


async def first_done(*works: Coroutine[Any, Any, object], timeout: timedelta | None = None) -> int | None:
    """Run several coroutines until one is done, and return its index (the lowest if several are), or None on timeout.

    The others are cancelled and awaited. An exception of the first one is raised here.
    """
    tasks = [start_task(work, name=f"work {number}") for number, work in enumerate(works)]
    try:
        seconds = None if timeout is None else timeout.total_seconds()
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for number, task in enumerate(tasks):
            if task.done():
                await task
                return number
        return None
    finally:
        await end_tasks(*(task for task in tasks if not task.done()))


class Poke:
    """A wake-up signal for one loop. Several pokes count as one, and a poke during the work is not lost."""

    def __init__(self) -> None:
        self._is_rung = False
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        self._is_rung = True
        for waiter in self._waiters:
            _set_done(waiter)

    async def wait(self, clock: Clock, period: timedelta) -> None:
        """Return when poked or after `period`, and clear the signal."""
        if self._is_rung:
            await asyncio.sleep(0)  # a loop that pokes itself must not starve the others
        else:
            waiter = asyncio.get_running_loop().create_future()
            sleep = asyncio.create_task(clock.sleep(period.total_seconds()), name="period")
            sleep.add_done_callback(lambda _: _set_done(waiter))
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                await end_tasks(sleep)
        self._is_rung = False


class Listeners:
    """The pokes of all who wait for the same news."""

    def __init__(self) -> None:
        self._pokes: set[Poke] = set()

    def ring(self) -> None:
        """Ring for everybody who listens."""
        for poke in self._pokes:
            poke.ring()

    @contextmanager
    def listener(self, poke: Poke | None = None) -> Iterator[Poke]:
        """A poke, new unless one is given, that is rung with the others until the end of the `with`."""
        rung = Poke() if poke is None else poke
        self._pokes.add(rung)
        try:
            yield rung
        finally:
            self._pokes.discard(rung)


def _set_done(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel and await tasks. A failure while ending is logged, because no caller is left to receive it."""
    if under_way := [task for task in tasks if task.cancel()]:
        await asyncio.wait(under_way)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task failed", exc_info=error, extra={"event": "task.failed", "task": task.get_name()})


_LEAST_BACKOFF: Final = timedelta(milliseconds=250)


async def poke_or_period(
    step: Callable[[], Awaitable[timedelta | None]], *, poke: Poke, clock: Clock, period: timedelta, name: str
) -> None:
    """Run `step` for ever: immediately, then whenever poked and at least once per period.

    A step that knows when something will be due returns that delay, and runs again after the shorter time.

    Errors stop here: a failed step is logged and retried with backoff. A retryable error (such as an unavailable
    database) is logged once, and a poke ends its wait, so announced work is not late. Other errors of ours are
    programming errors and end the process.
    """
    backoff = Backoff(first=_LEAST_BACKOFF, cap=max(period, timedelta(seconds=1)))
    failures = 0
    pause = None
    while True:
        is_away = False
        try:
            pause = await step()
        except CorralError as error:
            if not error.retryable:
                raise
            failures, is_away = failures + 1, True
            if failures == 1:
                log.warning("%s waits: %s", name, error, extra={"event": "loop.waiting", "loop": name})
        except Exception:
            failures += 1
            log.exception("loop step failed", extra={"event": "loop.failed", "loop": name, "failures": failures})
        else:
            if failures:
                log.info("%s goes on", name, extra={"event": "loop.resumed", "loop": name, "failures": failures})
            failures = 0
        if is_away:
            await clock.sleep(_LEAST_BACKOFF.total_seconds())
            await poke.wait(clock, backoff.delay(failures) - _LEAST_BACKOFF)
        elif failures:
            await clock.sleep(backoff.delay(failures).total_seconds())
        else:
            await poke.wait(clock, period if pause is None else min(period, pause))


_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals(stop: asyncio.Event, *, hurry: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Set `stop` at SIGTERM and SIGINT, which then no longer end the process by themselves; the next calls `hurry`."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            hurry()
        stop.set()

    for number in _ENDING:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in _ENDING:
            loop.remove_signal_handler(number)


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


def _start_thread(work: Callable[[], T], name: str) -> "asyncio.Future[T]":
    """Do the work in a thread of its own; the future gets what comes of it."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(settled: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settled)

    def run() -> None:
        try:
            result = work()
        except BaseException as raised:
            error = raised  # outlives this block
            log.debug("work failed", exc_info=error, extra={"event": "thread.failed"})
            settle(lambda: outcome.set_exception(error))
        else:
            settle(lambda: outcome.set_result(result))

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


async def in_own_thread(work: Callable[[CancelSignal], T], *, name: str) -> T:
    """Return or raise what the work does. Cancelling the caller signals the work, and waits a bounded time for its
    end."""
    signal = CancelSignal()
    outcome = _start_thread(lambda: work(signal), name)
    try:
        await asyncio.wait({outcome})
    except asyncio.CancelledError:
        signal.end()
        await asyncio.wait({outcome}, timeout=GIVE_UP_SECONDS)
        if outcome.done():
            outcome.exception()  # mark the exception as retrieved
        raise
    return outcome.result()


async def in_thread(work: Callable[[], T], *, stop: Callable[[], None] = lambda: None) -> T:
    """Run in a thread, and do not leave while it runs: it uses files that the caller is about to close.

    Keep the work short, or let `stop` make it so: it is called when somebody cancels.
    """
    running = start_task(asyncio.to_thread(work), name="thread")
    try:
        return await asyncio.shield(running)  # a thread cannot be cancelled, only awaited
    except asyncio.CancelledError:
        stop()
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):  # a second cancellation while we wait is expected
                await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # nobody wants to know any more
        raise


class _Closable(Protocol):
    def close(self) -> object: ...


ClosableT = TypeVar("ClosableT", bound=_Closable)


@asynccontextmanager
async def opened_in_thread(work: Callable[[], ClosableT]) -> AsyncIterator[ClosableT]:
    """Yield what the work opens in a thread, and close it in a thread at the end, also when cancelled meanwhile."""
    opened: list[ClosableT] = []
    try:
        await in_thread(lambda: opened.append(work()))
        yield opened[0]
    finally:
        if opened:
            await in_thread(opened[0].close)


class SharedThread:
    """A thread for blocking work that may hang, such as a look at a mount. It runs one call at a time.

    Callers that arrive meanwhile wait for the same result.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._outcome: asyncio.Future[Any] | None = None
        self._started_at = 0.0

    async def run(self, work: Callable[[], T], *, within: timedelta) -> T:
        """Return or raise what the work does. TimeoutError when it takes longer than this since its start; it goes on,
        and nothing else is started before its end."""
        loop = asyncio.get_running_loop()
        if self._outcome is None or self._outcome.done():
            self._started_at = loop.time()
            self._outcome = _start_thread(work, self._name)
            self._outcome.add_done_callback(lambda done: done.exception())  # nobody may be waiting any more
        outcome: asyncio.Future[T] = self._outcome
        seconds_left = self._started_at + within.total_seconds() - loop.time()
        await asyncio.wait({outcome}, timeout=max(seconds_left, 0))
        if not outcome.done():
            raise TimeoutError
        return outcome.result()
