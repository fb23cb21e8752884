"""The parent's side of a pull: starts the child process, reads its lines, and stops it."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

import msgspec

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
from corral.oci.errors import ImageError, PullCancelled, PullerDied, error_with
from corral.oci.orders import PullFailure, PullLine, PullOrder, PullProgress, PullResult
from corral.oci.tree import empty, is_directory

MODULE: Final = "corral.processes.puller"
_MAX_LINE_BYTES: Final = 256 * 1024
_decoder = msgspec.json.Decoder(PullLine)
_STOP_GRACE: Final = timedelta(seconds=5)
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYTHONPATH")


class Puller:
    """One pull. `async with Puller(order, environment=…) as puller:` starts it, and leaves nothing of it behind.

    Only the newest progress is kept, so a slow reader delays nothing. Leaving the block early stops the pull and
    removes what it unpacked.
    """

    def __init__(
        self, order: PullOrder, *, environment: Mapping[str, str], stop_grace: timedelta = _STOP_GRACE
    ) -> None:
        self._order = order
        self._environment = {name: environment[name] for name in _PASSED_ON if name in environment}
        self._stop_grace = stop_grace
        self._unfinished = b""
        self._stderr = OutputTail()
        self._process: ChildProcess | None = None
        self._watching: asyncio.Task[None] | None = None
        self._outcome: asyncio.Future[PullResult] = asyncio.get_running_loop().create_future()
        self._newest: PullProgress | None = None
        self._news = asyncio.Event()
        self._is_cancelled = False
        self._was_there = self._is_foreign = False

    def start(self) -> None:
        """Start the child and return at once. Raise ChildFailed when it cannot be started."""
        target = Path(self._order.target)
        self._was_there = is_directory(target)
        self._is_foreign = self._was_there and bool(os.listdir(target))
        descriptor = secret_descriptor(msgspec.json.encode(self._order))
        self._process = start_process(
            ChildCommand(
                argv=[sys.executable, "-P", "-m", MODULE, "--order", str(descriptor)],
                env=self._environment,
                output=Streams(stdout=self._feed, stderr=self._stderr.feed),
                handed_over=[descriptor],
            )
        )
        self._watching = start_task(self._watch(self._process), name="puller")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def progress(self) -> AsyncIterator[PullProgress]:
        """Yield the newest progress after each change, until the pull ends."""
        while True:
            await self._news.wait()
            self._news.clear()
            newest, self._newest = self._newest, None
            if newest is not None:
                yield newest
            elif self._outcome.done():
                self._news.set()  # wake the other readers
                return

    async def result(self) -> PullResult:
        """Wait for the result. Raise the error that the puller reported, as if it had happened here."""
        return await asyncio.shield(self._outcome)  # cancelling one of several callers must not cancel the others

    async def cancel(self) -> None:
        """Stop the pull. Return when the process is gone and its unpacked files are removed."""
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

    async def _end(self) -> None:
        """Stop the process. A puller that has reported its result ends by itself; the wait for it is bounded."""
        if self._process is not None:
            await self._process.stop(self._stop_grace)
        if self._watching is not None:
            await asyncio.wait({self._watching})

    async def _watch(self, process: ChildProcess) -> None:
        code = await process.wait()
        if not self._outcome.done() or self._outcome.exception() is not None:
            await asyncio.to_thread(self._clean_up)
        last_words = "".join(f": {line}" for line in self._stderr.lines[-1:])
        died = PullerDied(f"the puller ended with {describe_exit(code)}{last_words}")
        self._settle(PullCancelled() if self._is_cancelled else died)
        self._news.set()

    def _clean_up(self) -> None:
        """Remove the target of a puller that died. Leave a target that was not empty before the pull."""
        target = Path(self._order.target)
        if not is_directory(target) or self._is_foreign:
            return
        if self._was_there:
            empty(target)
        else:
            shutil.rmtree(target, ignore_errors=True)

    def _feed(self, data: bytes) -> None:
        """Read the lines of the output; ignore those that are not messages, since the exit code tells of failures."""
        *whole, rest = (self._unfinished + data).split(b"\n")
        self._unfinished = rest[-_MAX_LINE_BYTES:]
        for line in whole:
            with contextlib.suppress(*UNREADABLE_JSON):
                self._hear(_decoder.decode(line))

    def _hear(self, line: PullLine) -> None:
        match line:
            case PullProgress():
                self._newest = line
            case PullFailure(code=code, message=message):
                self._settle(error_with(code, message))
            case PullResult():
                if not self._outcome.done():
                    self._outcome.set_result(line)
        self._news.set()

    def _settle(self, error: ImageError) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)
