"""How far a pull is, told at most four times a second: the bytes that are fetched, and the share of fetching and
unpacking together. Neither goes back."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.oci.orders import PullProgress
from corral.wire.progress import Phase

DEBOUNCE: Final = timedelta(milliseconds=250)


class _Onward:
    """A share that never shrinks, kept as a fraction: rounding would make it creep."""

    def __init__(self) -> None:
        self._part, self._whole = 0, 1

    def reached(self, current: int, total: int) -> int:
        """How much of the total is at least done, by this reading and by those before."""
        if not total:
            return 0
        current = max(min(current, total), -(-self._part * total // self._whole))
        self._part, self._whole = current, total
        return current


class Scale:
    """Sums up positions, which may be set from any thread."""

    def __init__(self) -> None:
        self._name = ""
        self._phase = Phase.RESOLVING
        self._fetched: dict[int, int] = {}
        self._fetched_sizes: dict[int, int] = {}
        self._unpacked: dict[int, int] = {}
        self._unpacked_sizes: dict[int, int] = {}
        self._layer = 0
        self._bytes = _Onward()
        self._work = _Onward()
        self._sequence = 0

    def begin(self, name: str, sizes: dict[int, int], *, fetched: dict[int, int]) -> None:
        """An image, with the sizes of its layers, and of those that are to be fetched. A mirror begins anew."""
        self._name = name
        self._fetched, self._unpacked = dict.fromkeys(fetched, 0), dict.fromkeys(sizes, 0)
        self._fetched_sizes, self._unpacked_sizes = dict(fetched), dict(sizes)
        self._layer = 0

    def enter(self, phase: Phase) -> None:
        self._phase = phase

    def size(self, layer: int, size: int) -> None:
        """Of a layer, now that it is known."""
        self._unpacked_sizes[layer] = size
        if layer in self._fetched_sizes:
            self._fetched_sizes[layer] = size

    def fetched(self, layer: int, position: int) -> None:
        self._layer = layer
        if layer in self._fetched:
            self._fetched[layer] = max(self._fetched[layer], position)

    def unpacked(self, layer: int, position: int) -> None:
        if self._phase is not Phase.DOWNLOADING:
            self._layer = layer
        self._unpacked[layer] = max(self._unpacked.get(layer, 0), position)

    def reading(self) -> PullProgress:
        fetched, unpacked = sum(self._fetched.values()), sum(self._unpacked.values())
        to_fetch, to_unpack = sum(self._fetched_sizes.values()), sum(self._unpacked_sizes.values())
        total, work = to_fetch or to_unpack, to_fetch + to_unpack
        self._sequence += 1
        return PullProgress(
            sequence=self._sequence,
            phase=self._phase.value,
            name=self._name,
            layer=min(self._layer + 1, len(self._unpacked)),
            layers=len(self._unpacked),
            current_bytes=self._bytes.reached(fetched if to_fetch else unpacked, total),
            total_bytes=total,
            percentage=100.0 * self._work.reached(fetched + unpacked, work) / work if work else 0.0,
        )


class PullReporter:
    """Tells of changes, a quarter of a second apart, and of the last one in the end."""

    def __init__(self, scale: Scale, tell: Callable[[PullProgress], None], clock: Clock) -> None:
        self._scale = scale
        self._tell = tell
        self._clock = clock
        self._told: tuple[object, ...] = ()

    async def run(self) -> None:
        while True:
            self.flush()
            await self._clock.sleep(DEBOUNCE.total_seconds())

    def flush(self) -> None:
        reading = self._scale.reading()
        content = msgspec.structs.astuple(msgspec.structs.replace(reading, sequence=0))
        if content != self._told:
            self._told = content
            self._tell(reading)


def words_of(progress: PullProgress, source: str) -> str:
    """What is being done, as LocalAI's worker says it; `source` is what was asked for, until the image has a name."""
    name = progress.name or source
    match progress.phase:
        case Phase.RESOLVING:
            return f"Resolving {name}"
        case Phase.DOWNLOADING:
            return f"Downloading {progress.layer}/{progress.layers} {name}"
        case Phase.EXTRACTING:
            return f"Extracting {name}"
        case Phase.VERIFYING:
            return f"Verifying {name}"
        case _:
            return name
