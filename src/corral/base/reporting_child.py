"""The parent's side of a child process that gets one order and reports lines of JSON: progress, and at the end a result
or a failure.

Each kind of child has its own order, progress and result; failures are alike.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Final, Generic, Self, TypeVar

import msgspec

from corral.base.disclosure import basic_environment
from corral.base.errors import CorralError, error_with_code
from corral.base.processes import (
    ChildCommand,
    ChildProcess,
    OutputTail,
    Streams,
    describe_exit,
    secret_descriptor,
    start_process,
)
from corral.base.tasks import start_task
from corral.base.unreadable_json import UNREADABLE_JSON

_STOP_GRACE: Final = timedelta(seconds=5)
_MAX_LINE_BYTES: Final = 256 * 1024

ProgressT = TypeVar("ProgressT")
ResultT = TypeVar("ResultT")


class FailureLine(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The child could not do what was ordered."""

    code: str
    message: str
    retryable: bool

    @classmethod
    def of(cls, error: CorralError) -> "FailureLine":
        return cls(code=error.code, message=str(error), retryable=error.retryable)


class ReportingKind(msgspec.Struct, Generic[ProgressT, ResultT], frozen=True, kw_only=True):
    """What children of one kind are called, what they say, and how they fail."""

    name: str
    module: str
    read_line: Callable[[bytes], ProgressT | ResultT | FailureLine]
    progress: type[ProgressT]
    result: type[ResultT]
    errors: type[CorralError]
    """The root of all errors that a child may report."""
    cancelled: type[CorralError]
    died: type[CorralError]


class ReportingChild(Generic[ProgressT, ResultT]):
    """One order. `async with ReportingChild(…) as child:` starts it, and leaves no process behind.

    Only the newest progress is kept, so a slow reader delays nothing. Leaving the block early stops the child.
    """

    def __init__(
        self, kind: ReportingKind[ProgressT, ResultT], order: msgspec.Struct, *, environment: Mapping[str, str]
    ) -> None:
        self._kind = kind
        self._order_bytes = msgspec.json.encode(order)
        self._environment = basic_environment(environment)
        self._unfinished = b""
        self._stderr = OutputTail()
        self._process: ChildProcess | None = None
        self._watching: asyncio.Task[None] | None = None
        self._outcome: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._newest: ProgressT | None = None
        self._news = asyncio.Event()
        self._is_cancelled = False

    def start(self) -> None:
        """Start the child and return at once. Raise ChildFailed when it cannot be started."""
        descriptor = secret_descriptor(self._order_bytes)
        self._process = start_process(
            ChildCommand(
                argv=[sys.executable, "-P", "-m", self._kind.module, "--order", str(descriptor)],
                env=self._environment,
                output=Streams(stdout=self._feed, stderr=self._stderr.feed),
                handed_over=[descriptor],
            )
        )
        self._watching = start_task(self._watch(self._process), name=self._kind.name)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def progress(self) -> AsyncIterator[ProgressT]:
        """Yield the newest progress after each change, until the child ends."""
        while True:
            await self._news.wait()
            self._news.clear()
            newest, self._newest = self._newest, None
            if newest is not None:
                yield newest
            elif self._outcome.done():
                self._news.set()  # wake the other readers
                return

    async def result(self) -> ResultT:
        """Wait for the result. Raise the error that the child reported, as if it had happened here."""
        return await asyncio.shield(self._outcome)  # cancelling one of several callers must not cancel the others

    async def cancel(self) -> None:
        """Stop the child. Return when the process is gone, and what it must not leave behind is removed."""
        self._is_cancelled = True
        await self._end()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_cancelled = not self._outcome.done()
        await self._end()
        if not self._outcome.cancelled():
            self._outcome.exception()  # the error was available through result()

    def clean_up(self) -> None:
        """Remove what a child that failed or died must not leave behind. Called in a thread when it is gone."""

    async def _end(self) -> None:
        """Stop the process. A child that has reported its result ends by itself; the wait for it is bounded."""
        if self._process is not None:
            await self._process.stop(_STOP_GRACE)
        if self._watching is not None:
            await asyncio.wait({self._watching})

    async def _watch(self, process: ChildProcess) -> None:
        code = await process.wait()
        if not self._outcome.done() or self._outcome.exception() is not None:
            await asyncio.to_thread(self.clean_up)
        last_words = "".join(f": {line}" for line in self._stderr.lines[-1:])
        died = self._kind.died(f"the {self._kind.name} ended with {describe_exit(code)}{last_words}")
        self._settle(self._kind.cancelled() if self._is_cancelled else died)
        self._news.set()

    def _feed(self, data: bytes) -> None:
        """Read the lines of the output; ignore those that are not messages, since the exit code tells of failures."""
        *whole, unfinished = (self._unfinished + data).split(b"\n")
        self._unfinished = unfinished[-_MAX_LINE_BYTES:]
        for line in whole:
            with contextlib.suppress(*UNREADABLE_JSON):
                self._hear(self._kind.read_line(line))

    def _hear(self, line: ProgressT | ResultT | FailureLine) -> None:
        if isinstance(line, FailureLine):
            self._settle(error_with_code(self._kind.errors, line.code, line.message))
        elif isinstance(line, self._kind.progress):
            self._newest = line
        elif isinstance(line, self._kind.result) and not self._outcome.done():
            self._outcome.set_result(line)
        self._news.set()

    def _settle(self, error: CorralError) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)
