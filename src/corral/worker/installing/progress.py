"""Reports the progress of an install to the frontend, at the rate of LocalAI's worker: the first step at once, then at
most one event per 250 ms, the last one before the reply. Events may get lost: the reply is authoritative."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.tasks import end_tasks, start_task
from corral.wire import go_json, subjects
from corral.wire.backends import InstallBytes, InstallProgress, InstallRequest, Phase, UpgradeRequest, size_text

log = logging.getLogger(__name__)

INTERVAL: Final = timedelta(milliseconds=250)


class InstallStep(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one step: bytes downloaded, and the share of the whole install."""

    text: str
    done: int
    total: int
    phase: Phase = Phase.DOWNLOADING
    share: float | None = None
    """Percentage that includes the work after the download; None: computed from the bytes."""

    @property
    def percentage(self) -> float:
        if self.share is not None:
            return self.share
        return min(100.0, 100 * self.done / self.total) if self.total > 0 else 0.0


Report = Callable[[InstallStep], None]
"""Thread-safe, and cheap enough to call for every change."""


def resolving(name: str) -> InstallStep:
    """Return the first step: finding out what to fetch."""
    return InstallStep(text=f"Resolving {name}", done=0, total=0, phase=Phase.RESOLVING)


def starting(name: str) -> InstallStep:
    """Return the last step: everything is on disk, and a process is being started."""
    return InstallStep(text=f"Starting {name}", done=0, total=0, phase=Phase.STARTING)


class Onward:
    """Makes steps monotonic, even when a mirror starts over or a phase counts no bytes."""

    def __init__(self) -> None:
        self._done = 0
        self._total = 0
        self._percentage = 0.0

    def after(self, step: InstallStep) -> InstallStep:
        self._done = max(step.done, self._done)
        self._total = max(step.total or self._total, self._done)
        counted = replace(step, done=self._done, total=self._total)
        self._percentage = max(counted.percentage, self._percentage)
        return replace(counted, share=self._percentage)


class Publisher(Protocol):
    """The part of the bus that reports need."""

    async def publish(self, subject: str, data: bytes) -> None: ...


class InstallReports:
    def __init__(self, bus: Publisher, clock: Clock, *, is_with_localai: Callable[[], bool] = lambda: False) -> None:
        self._bus = bus
        self._clock = clock
        self._is_with_localai = is_with_localai

    @asynccontextmanager
    async def of(self, node_id: NodeId, request: InstallRequest | UpgradeRequest) -> AsyncIterator[Report]:
        """Yield a report function for one operation; send what is pending before returning."""
        if not request.op_id:
            yield lambda _: None  # nobody follows the progress
            return
        reporter = _Reporter(self._bus, self._clock, node_id, request, is_with_localai=self._is_with_localai())
        task = start_task(reporter.run(), name=f"progress of {request.op_id}")
        try:
            yield reporter.report
        finally:
            await asyncio.sleep(0)  # process the last reports from threads
            await reporter.flush()
            await end_tasks(task)


class _Reporter:
    """Keeps the newest step until it may be sent."""

    def __init__(
        self,
        bus: Publisher,
        clock: Clock,
        node_id: NodeId,
        request: InstallRequest | UpgradeRequest,
        *,
        is_with_localai: bool,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._node_id = node_id
        self._request = request
        self._is_with_localai = is_with_localai
        self._loop = asyncio.get_running_loop()
        self._pending: InstallStep | None = None
        self._rung = asyncio.Event()
        self._sending = asyncio.Lock()
        self._sent = 0
        self._attempt = int(clock.now().timestamp() * 1000)
        self._onward = Onward()

    def report(self, step: InstallStep) -> None:
        self._loop.call_soon_threadsafe(self._take, step)

    async def run(self) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            await self.flush()
            await self._clock.sleep(INTERVAL.total_seconds())

    async def flush(self) -> None:
        """Send the pending step after the one that is being sent."""
        async with self._sending:
            step, self._pending = self._pending, None
            if step is None:
                return
            self._sent += 1
            op_id = self._request.op_id
            event = InstallProgress(
                op_id=op_id,
                node_id=self._node_id,
                backend=self._request.backend,
                file_name=step.text,
                current=size_text(step.done),
                total=size_text(step.total),
                percentage=step.percentage,
                phase=_plain(step.phase) if self._is_with_localai else step.phase,
                corral=InstallBytes(sequence=self._sent, current=step.done, total=step.total, attempt=self._attempt),
            )
            try:
                await self._bus.publish(subjects.install_progress(self._node_id, op_id), go_json.encode(event))
            except (CorralError, ValueError) as error:
                log.debug("the progress could not be reported: %s", error, extra={"event": "install.progress_lost"})

    def _take(self, step: InstallStep) -> None:
        self._pending = self._onward.after(step)
        self._rung.set()


def _plain(phase: Phase) -> Phase:
    """The phase in a word that LocalAI's frontends know."""
    return Phase.EXTRACTING if phase is Phase.VERIFYING else phase
