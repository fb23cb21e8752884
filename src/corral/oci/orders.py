"""The protocol with a puller process: one order through an inherited descriptor, then lines on its output.

Progress is sent at most four times a second: the downloaded bytes, and the share of downloading and unpacking
together. Both only grow.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

import msgspec

from corral.base.clock import Clock
from corral.base.reporting_child import FailureLine
from corral.oci.auth import Credential
from corral.oci.limits import Network, UnpackLimits
from corral.oci.manifests import ImagePlatform
from corral.oci.signatures.policy import Verification
from corral.wire.backends import Phase


class PullOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fetch, check and unpack one image."""

    sources: tuple[str, ...]
    """Uris in the order to try: the primary source, then its mirrors."""
    target: str
    """An empty or missing directory. Afterwards it is complete, or unchanged."""
    cache: str
    """Directory for downloads. Partial layers stay there for the next attempt."""
    platform: ImagePlatform
    expected_digest: str = ""
    """Digest of the index or of the image for this machine; any other is refused. Empty: not checked."""
    sha256: str = ""
    """Hash of an archive that is not an image, in hex. Empty: unknown."""
    have: tuple[str, ...] = ()
    """Digests that the caller has already. An image with one of them is not downloaded, and the result says so."""
    credentials: tuple[Credential, ...] = ()
    network: Network = Network()
    limits: UnpackLimits = UnpackLimits()
    parallel: int = 3
    """Layers downloaded in parallel. Three fill a usual line; registries refuse clients with many connections."""
    keep_layers: bool = False
    """Whether layers stay in the cache after unpacking."""
    is_durable: bool = True
    """Whether everything is synced to disk before success is reported."""
    niceness: int = 10
    """Niceness of the process, 0 to 19."""
    verification: Verification | None = None
    """Whose signature the image must have. Checked before layers are downloaded; files have no signatures and are
    refused."""
    trusted_root: str = ""
    """Trust root file for keyless signatures; empty: Sigstore's public instance."""


class PullProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Progress of a pull: bytes downloaded, and the share of all work including unpacking."""

    sequence: int
    """Increases with each line."""
    phase: str
    name: str = ""
    """Name of the image."""
    layer: int = 0
    """The layer being processed, from 1; 0: none in particular."""
    layers: int = 0
    current_bytes: int = 0
    """Bytes downloaded, or unpacked if there is nothing to download. As a share of the total it never shrinks."""
    total_bytes: int = 0
    """0 while unknown."""
    percentage: float = 0.0
    """Share of downloading and unpacking together; never shrinks."""


class PullResult(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The last line of a puller that succeeded: what was fetched and unpacked."""

    source: str
    """The uri that worked."""
    digest: str = ""
    """Digest that the uri resolved to: the index's if there is one. Empty: unknown."""
    platform_digest: str = ""
    """Digest of the image for this machine."""
    downloaded_bytes: int = 0
    """Bytes downloaded by this pull."""
    size_bytes: int = 0
    """Total size of the unpacked files."""
    entries: int = 0
    is_unchanged: bool = False
    """The caller has the image already; nothing was downloaded."""


PullLine: TypeAlias = PullProgress | PullResult | FailureLine


DEBOUNCE: Final = timedelta(milliseconds=250)


class _Onward:
    """A share that never shrinks, kept as a fraction so that rounding errors do not accumulate."""

    def __init__(self) -> None:
        self._part, self._whole = 0, 1

    def reached(self, current: int, total: int) -> int:
        """Return the part of the total that is done, never less than the share reported before."""
        if not total:
            return 0
        current = max(min(current, total), -(-self._part * total // self._whole))
        self._part, self._whole = current, total
        return current


class Scale:
    """Adds up the positions of all layers. Thread-safe."""

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
        """Begin an image: the sizes of all layers, and of those to download. Called again for a mirror."""
        self._name = name
        self._fetched, self._unpacked = dict.fromkeys(fetched, 0), dict.fromkeys(sizes, 0)
        self._fetched_sizes, self._unpacked_sizes = dict(fetched), dict(sizes)
        self._layer = 0

    def enter(self, phase: Phase) -> None:
        self._phase = phase

    def size(self, layer: int, size: int) -> None:
        """Set a layer's size, now that it is known."""
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
    """Sends changed progress four times a second, and the last state at the end."""

    def __init__(self, scale: Scale, tell: Callable[[PullProgress], None], clock: Clock) -> None:
        self._scale = scale
        self._tell = tell
        self._clock = clock
        self._last_sent: tuple[object, ...] = ()

    async def run(self) -> None:
        while True:
            self.flush()
            await self._clock.sleep(DEBOUNCE.total_seconds())

    def flush(self) -> None:
        reading = self._scale.reading()
        content = msgspec.structs.astuple(msgspec.structs.replace(reading, sequence=0))
        if content != self._last_sent:
            self._last_sent = content
            self._tell(reading)


def words_of(progress: PullProgress, source: str) -> str:
    """Describe the current step in the words of LocalAI's worker; `source` is shown until the image's name is known."""
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
