"""How much room is left where control writes: the data directory, and an SQLite file that is elsewhere."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from corral.base.setting_kinds import size
from corral.base.settings import setting
from corral.base.tasks import SharedThread

PERIOD: Final = timedelta(seconds=5)
FULL: Final = "the disk of the data directory is full"
LOW: Final = "the disk of the data directory is nearly full"
UNREADABLE: Final = "the data directory cannot be read"
SILENT: Final = "the disk of the data directory does not answer"
_PATIENCE: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPolicy:
    """When a disk counts as full."""

    low: int = setting(
        size("0B", "1024GiB"),
        """Free bytes of the data directory's disk below which it counts as nearly full: `corral doctor` warns, and
        `/api/v1/ready` says so beside its ok. 1 GiB: weeks of a busy fleet's events.""",
        name="disk_low",
        default="1GiB",
    )
    full: int = setting(
        size("0B", "1024GiB"),
        """Free bytes of the data directory's disk below which it counts as full: `/api/v1/ready` answers 503, and
        `corral doctor` calls it a problem. Control goes on while it can write. 100 MiB: enough to see it in time.""",
        name="disk_full",
        default="100MiB",
    )


def free_bytes(path: Path) -> int:
    """What we may still write on the filesystem of this path."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


class DataDisk:
    """Looks at the room every few seconds, so that asking costs nothing."""

    def __init__(
        self, places: Sequence[Path], policy: DiskPolicy, *, measure: Callable[[Path], int] = free_bytes
    ) -> None:
        self._places = tuple(places)
        self._policy = policy
        self._measure = measure
        self._thread = SharedThread("look at the disk")
        self._free: int | None = None
        self._problem = ""
        self.is_silent = False
        """Whether the last look had no answer in time, as from a mount whose server is away."""

    async def look(self) -> int | None:
        """Measure now; returns what is free in the fullest place. None: it cannot be read, or does not answer."""
        try:
            self._free = await self._thread.run(lambda: min(map(self._measure, self._places)), within=_PATIENCE)
            self._problem, self.is_silent = "", False
        except TimeoutError:
            self._free, self._problem, self.is_silent = None, "it does not answer", True
        except OSError as error:
            self._free, self._problem, self.is_silent = None, error.strerror or type(error).__name__, False
        return self._free

    @property
    def unreadable(self) -> str:
        """Why the last look could not read it; empty when it could."""
        return self._problem

    @property
    def is_full(self) -> bool:
        return self._free is not None and self._free < self._policy.full

    @property
    def is_low(self) -> bool:
        return self._free is not None and self._free < self._policy.low
