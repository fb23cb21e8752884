"""How long open streams are silent between two events."""

import asyncio
import sys
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from bench.gaps_process import GapsOrder
from bench.up import environment
from corral.base.errors import ChildFailed
from corral.base.processes import ChildCommand, ChildProcess, OutputTail, Streams, secret_descriptor, start_process
from corral.base.tasks import first_done

_BEGIN_WITHIN_SECONDS: Final = 120.0
_READY: Final = b"ready\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Two moments of the monotonic clock."""

    began: float
    ended: float

    def __contains__(self, moment: float) -> bool:
        return self.began <= moment <= self.ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """What was seen of all streams. Seconds."""

    broken: int
    """Streams that ended, which none should."""
    moments: Sequence[float]
    lengths: Sequence[float]

    def within(self, windows: Sequence[Window]) -> list[float]:
        """Gaps that ended in one of these times, in milliseconds."""
        pairs = zip(self.moments, self.lengths, strict=True)
        return [1000 * length for moment, length in pairs if any(moment in window for window in windows)]


class OpenStreams:
    """Use `open_streams`."""

    def __init__(self) -> None:
        self._said = bytearray()
        self._complaints = OutputTail()
        self._begun = asyncio.Event()
        self._process: ChildProcess | None = None

    async def start(self, order: GapsOrder) -> None:
        """Returns when every stream has begun."""
        descriptor = secret_descriptor(msgspec.json.encode(order))
        self._process = start_process(
            ChildCommand(
                argv=[sys.executable, "-m", "bench.gaps_process", "--order", str(descriptor)],
                env=environment(),
                output=Streams(stdout=self._hear, stderr=self._complaints.feed),
                handed_over=[descriptor],
            )
        )
        async with asyncio.timeout(_BEGIN_WITHIN_SECONDS):
            if await first_done(self._begun.wait(), self._process.wait()) == 1:
                raise ChildFailed("the streams did not begin: " + "\n".join(self._complaints.lines))

    async def end(self) -> Gaps:
        assert self._process is not None
        self._process.terminate()
        if await self._process.wait() != 0:
            raise ChildFailed("the client of the streams failed: " + "\n".join(self._complaints.lines))
        broken, _, data = bytes(self._said).removeprefix(_READY).partition(b"\n")
        events = array("d", data)
        return Gaps(broken=int(broken), moments=events[0::2], lengths=events[1::2])

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    def _hear(self, data: bytes) -> None:
        self._said += data
        if self._said.startswith(_READY):
            self._begun.set()


@asynccontextmanager
async def open_streams(order: GapsOrder) -> AsyncIterator[OpenStreams]:
    """Open the streams. `end()` returns what was measured; no stream is left open on any path."""
    streams = OpenStreams()
    try:
        await streams.start(order)
        yield streams
    finally:
        await streams.kill()
