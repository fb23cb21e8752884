"""Tells all frontends, LocalAI's too, how far the files of a model are on their way to a node, in LocalAI's words."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Final

import msgspec
from msgspec import UNSET

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.tasks import running
from corral.bus.port import Bus
from corral.frontend.serving.staging.service import StagingCount, StagingWatch
from corral.wire import subjects
from corral.wire.broadcasts import StagingProgress, StagingStatus
from corral.wire.go_json import format_time

log = logging.getLogger(__name__)

_PREPARING: Final = "Preparing to stage model files"
_EVERY: Final = 1.0
"""Seconds between two words."""


def staging_status(
    model: str, node: str, count: StagingCount, speed: float | None, *, started_at: str
) -> StagingStatus:
    """How far it is. Numbers of bytes are those of one file, as LocalAI's frontends tell them."""
    status = StagingStatus(
        model_id=model,
        node_name=node,
        total_files=count.total_files,
        progress=100.0 * count.present_bytes / count.total_bytes if count.total_bytes else 0.0,
        message=_PREPARING,
        started_at=started_at,
    )
    if count.file:
        status.file_name = PurePosixPath(count.file).name
        status.bytes_sent, status.total_bytes = count.file_bytes, count.file_size
        status.file_index = min(count.present_files + 1, count.total_files)
        status.speed = "" if speed is None else f"{sized(speed)}/s"
        amounts = ", ".join(filter(None, (f"{sized(count.file_bytes)} / {sized(count.file_size)}", status.speed)))
        status.message = f"{status.file_name} ({amounts})"
    return status


def sized(count: float) -> str:
    """Bytes as LocalAI writes them: in units of 1024 with the names of those of 1000."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


class StagingNews:
    """A lost word costs a moment: nobody depends on them."""

    def __init__(self, bus: Bus, clock: Clock, node_name: Callable[[NodeId], Awaitable[str]]) -> None:
        self._bus = bus
        self._clock = clock
        self._node_name = node_name

    @asynccontextmanager
    async def told(self, model: str, node_id: NodeId, watch: StagingWatch) -> AsyncIterator[None]:
        """Tell of the beginning, every second, and of the end, however it comes."""
        node, started_at = await self._node_name(node_id), format_time(self._clock.now())

        async def tell() -> None:
            status = staging_status(model, node, watch.count, watch.speed(), started_at=started_at)
            await self._publish(model, status)

        async def tell_often() -> None:
            while True:
                await self._clock.sleep(_EVERY)
                await tell()

        await tell()
        try:
            async with running(tell_often(), name=f"news of {model}"):
                yield
            await tell()
        finally:
            await self._publish(model, None)

    async def _publish(self, model: str, status: StagingStatus | None) -> None:
        news = StagingProgress(model_id=model, status=UNSET if status is None else status, done=status is None)
        try:
            await self._bus.publish(subjects.staging_progress(model), msgspec.json.encode(news))
        except CorralError as error:
            log.debug("a staging is not told: %s", error, extra={"event": "staging.untold", "model": model})
