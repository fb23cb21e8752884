"""What a puller is told, and what it tells: one order through an inherited descriptor, then lines on its output.

Progress is told at most four times a second: the bytes that are fetched, and the share of fetching and unpacking
together. Neither goes back.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

import msgspec

from corral.base.clock import Clock
from corral.oci.auth import Credential
from corral.oci.limits import UnpackLimits
from corral.oci.manifests import ImagePlatform
from corral.oci.network import Network
from corral.oci.signatures.policy import Verification
from corral.wire.progress import Phase


class PullOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fetch, check and unpack one image."""

    sources: tuple[str, ...]
    """Uris, tried in this order: the first one and its mirrors."""
    target: str
    """A directory that is empty, or not there yet. Afterwards it is whole, or as it was."""
    cache: str
    """A directory for what is fetched, on a disk with room; unfinished layers stay there for the next attempt."""
    platform: ImagePlatform
    expected_digest: str = ""
    """Of the index or of the image for this machine; anything else is refused. Empty: whatever the source has."""
    sha256: str = ""
    """Of an archive that is no image, in hexadecimal digits. Empty: not known."""
    have: tuple[str, ...] = ()
    """Digests of what the caller has already: an image with one of them is not fetched, and that is said."""
    credentials: tuple[Credential, ...] = ()
    network: Network = Network()
    limits: UnpackLimits = UnpackLimits()
    parallel: int = 3
    """Layers that are fetched at a time. Three fill a usual line; registries refuse those who open many."""
    keep_layers: bool = False
    """Whether layers stay in the cache after they were unpacked."""
    is_durable: bool = True
    """Whether everything is on the disk, and not only in memory, before success is told."""
    niceness: int = 10
    """How far behind everything else on the machine, from 0 to 19."""
    verification: Verification | None = None
    """Whose signature an image of a registry needs, or of a file, which has none. Nothing of it is fetched before."""
    trusted_root: str = ""
    """A file that says whom to trust with keyless signatures; empty: Sigstore's public instance."""


class PullProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """How far it is: the bytes of the download, and the share of all the work, which includes unpacking."""

    sequence: int
    """Larger in each line."""
    phase: str
    name: str = ""
    """Of the image."""
    layer: int = 0
    """Which one is at work, from 1 on; 0: none in particular."""
    layers: int = 0
    current_bytes: int = 0
    """Fetched; where nothing has to be fetched, unpacked. Never less than before, as a share of the total."""
    total_bytes: int = 0
    """0 while it is not known."""
    percentage: float = 0.0
    """Of fetching and unpacking together; never less than before."""


class PullResult(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """All is there."""

    source: str
    """The uri that it came from."""
    digest: str = ""
    """Of what the uri named: of the index, where there is one. Empty: nobody knows."""
    platform_digest: str = ""
    """Of the image for this machine."""
    downloaded_bytes: int = 0
    """What came over the network this time."""
    size_bytes: int = 0
    """Of all files, unpacked."""
    entries: int = 0
    is_unchanged: bool = False
    """The caller has it already, and nothing was fetched."""


class PullFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Nothing is there but unfinished layers in the cache."""

    code: str
    message: str
    retryable: bool


PullLine: TypeAlias = PullProgress | PullResult | PullFailure


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
