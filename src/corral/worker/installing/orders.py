"""What is asked of the installer, and what its sources answer: where a backend can be had, and how it came."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from corral.base.errors import CorralError
from corral.wire.install import Gallery
from corral.worker.installing.backend_metadata import Metadata, Provenance
from corral.worker.installing.progress import Report


class CannotInstall(CorralError):
    """This worker has no way to get that backend."""

    code = "cannot_install"


class NoSuchBackend(CannotInstall):
    """No source has a backend of that name."""

    code = "no_such_backend"


class GalleryAway(NoSuchBackend):
    """No source has a backend of that name, but one of them could not be asked."""

    code = "gallery_away"
    retryable = True


class NoRoom(CannotInstall):
    """The backend does not fit on the disk."""

    code = "no_room"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOrder:
    """What somebody wants to have installed."""

    backend: str
    """The name it is asked for by."""
    uri: str = ""
    """Where to have it from, instead of a gallery."""
    name: str = ""
    """Its name once it is installed from a URI; empty: as the source calls it."""
    alias: str = ""
    galleries: Sequence[Gallery] | None = None
    """For this order alone; None: the worker's own."""
    wants_newest: bool = False
    """Galleries are asked for something new, also when what is known of them is not old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """One attempt to get a backend."""

    into: Path
    """An empty directory."""
    report: Report
    have: tuple[str, ...] = ()
    """Digests of what is installed: the same content need not be fetched again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """How a backend came."""

    digest: str = ""
    """Of what its uri names: of the index, where there is one. Empty: nobody knows."""
    platform_digest: str = ""
    """Of the image for this machine."""
    source: str = ""
    """The uri that delivered it, where several were tried."""
    is_unchanged: bool = False
    """It did not come: what is installed is the same."""
    is_settled: bool = False
    """Whoever fetched it has seen to it that all of it is on the disk itself."""

    def noted_in(self, metadata: Metadata) -> Metadata:
        told = metadata.corral or Provenance()
        provenance = replace(told, platform_digest=self.platform_digest, source=self.source)
        corral = None if provenance == Provenance() else provenance
        return replace(metadata, digest=self.digest or metadata.digest, corral=corral)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallableBackend:
    """A backend that can be had."""

    metadata: Metadata
    """Its name is that of its directory."""
    fetch: Callable[[Fetching], Awaitable[Delivered]]
    meta: Metadata | None = None
    """When a meta backend was asked for: what its own directory says."""
    key: str = ""
    """The backend's own name, where the one that it was asked for by need not be known on the disk; else empty."""

    @property
    def places(self) -> frozenset[str]:
        """Names of the directories that installing it changes."""
        return frozenset(one.name for one in (self.metadata, self.meta) if one is not None)


class InstallSource(Protocol):
    async def find(self, order: InstallOrder) -> InstallableBackend | None:
        """None when the order is not for this source. CannotInstall when it is, and cannot be met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepPrevious:
    """Whether the version before stays on the disk, so that one can go back to it."""

    is_wanted: bool = False
    free_bytes: int = 0
    """What must be free beside it; else it goes."""
