"""What a puller is told, and what it tells: one order through an inherited descriptor, then lines on its output."""

from typing import TypeAlias

import msgspec

from corral.oci.auth import Credential
from corral.oci.limits import UnpackLimits
from corral.oci.network import Network
from corral.oci.platforms import ImagePlatform
from corral.oci.signatures.policy import Verification


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
