"""What is asked of the installer, and what its sources answer: where a backend can be had, and how it came."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from corral.base.errors import CorralError
from corral.wire.backends import Gallery
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
    """A request to install one backend."""

    backend: str
    """The name it is asked for by."""
    uri: str = ""
    """Where to have it from, instead of a gallery."""
    name: str = ""
    """Name for a backend that is installed from a URI; empty uses the source's name."""
    alias: str = ""
    galleries: Sequence[Gallery] | None = None
    """For this order alone; None: the worker's own."""
    wants_newest: bool = False
    """Galleries are asked for something new, also when what is known of them is not old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetching:
    """One attempt to get a backend."""

    into: Path
    """An empty directory to fetch into."""
    report: Report
    have: tuple[str, ...] = ()
    """Digests of what is installed: the same content need not be fetched again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Result of a fetch."""

    digest: str = ""
    """Digest of what the URI names: of the index, where there is one. Empty when unknown."""
    platform_digest: str = ""
    """Digest of the image for this machine."""
    source: str = ""
    """The uri that delivered it, where several were tried."""
    is_unchanged: bool = False
    """Nothing was fetched, because the installed version is the same."""
    is_settled: bool = False
    """The files have already been flushed to disk."""

    def noted_in(self, metadata: Metadata) -> Metadata:
        told = metadata.corral or Provenance()
        provenance = replace(told, platform_digest=self.platform_digest, source=self.source)
        corral = None if provenance == Provenance() else provenance
        return replace(metadata, digest=self.digest or metadata.digest, corral=corral)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallableBackend:
    """A backend that can be had."""

    metadata: Metadata
    """Metadata of the build; its name is the directory's."""
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
        """Return None when the order is not for this source. Raise CannotInstall when it is, but cannot be met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepPrevious:
    """Whether the version before stays on the disk, so that one can go back to it."""

    is_wanted: bool = False
    free_bytes: int = 0
    """Bytes that must stay free if the previous version is kept; else it is removed."""
