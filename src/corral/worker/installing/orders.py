"""Requests to the installer, and the answers of its sources."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from corral.base.errors import CorralError
from corral.galleries.build_uris import BackendRef
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


class InstallOrder(BackendRef, frozen=True, kw_only=True):
    """A request to install one backend. Without a name, a backend from a uri is called as its source calls it."""

    wants_newest: bool = False
    """Whether galleries are refreshed even if their cached copy is fresh."""


class Fetching(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to get a backend."""

    into: Path
    """An empty directory to fetch into."""
    report: Report
    have: tuple[str, ...] = ()
    """Digests of the installed version, whose content need not be fetched again."""


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """What a source has put into the directory that it was given."""

    digest: str = ""
    """Digest that the URI resolves to: the index's if there is one. Empty when unknown."""
    platform_digest: str = ""
    """Digest of the image for this machine."""
    source: str = ""
    """The uri that worked, if several were tried."""
    is_unchanged: bool = False
    """Nothing was fetched, because the installed version is the same."""
    is_settled: bool = False
    """The files have already been flushed to disk."""

    def noted_in(self, metadata: Metadata) -> Metadata:
        before = metadata.corral or Provenance()
        provenance = replace(before, platform_digest=self.platform_digest, source=self.source)
        corral = None if provenance == Provenance() else provenance
        return replace(metadata, digest=self.digest or metadata.digest, corral=corral)


class InstallableBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that a source can deliver."""

    metadata: Metadata
    """Metadata of the build; its name is the directory's."""
    fetch: Callable[[Fetching], Awaitable[Delivered]]
    meta: Metadata | None = None
    """Metadata of the meta backend, if one was requested."""
    key: str = ""
    """The backend's own name, if the disk may not know the requested one; else empty."""

    @property
    def places(self) -> frozenset[str]:
        """Names of the directories that installing it changes."""
        return frozenset(metadata.name for metadata in (self.metadata, self.meta) if metadata is not None)

    @property
    def aliases(self) -> frozenset[str]:
        """Other names that these backends get."""
        both = (self.metadata, self.meta)
        return frozenset(metadata.alias for metadata in both if metadata is not None and metadata.alias)


class InstallSource(Protocol):
    async def find(self, order: InstallOrder) -> InstallableBackend | None:
        """Return None when the order is not for this source. Raise CannotInstall when it is, but cannot be met."""


class KeepPrevious(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the previous version is kept for a rollback."""

    is_wanted: bool = False
    free_bytes: int = 0
    """Bytes that must stay free if the previous version is kept; else it is removed."""
