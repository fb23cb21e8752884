"""Installs backends from galleries: resolves a name, an alias or a meta backend to one build, and pulls it."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from corral.galleries import catalogue as backend_catalogue
from corral.galleries.build_uris import candidates
from corral.galleries.catalogue import Missing, UnresolvedBuild
from corral.galleries.config import BUILT_IN, sources_of
from corral.galleries.gallery import BUILT_IN_URL, GalleryEntry, GallerySource
from corral.galleries.places import without_secrets
from corral.galleries.readings import GalleryReading, Readings
from corral.oci.references import names_an_entry
from corral.wire.backends import read_galleries
from corral.worker.installing.backend_metadata import Metadata, Provenance
from corral.worker.installing.orders import (
    CannotInstall,
    Delivered,
    Fetching,
    GalleryAway,
    InstallableBackend,
    InstallOrder,
    NoSuchBackend,
)
from corral.worker.installing.sources.pulling import PullArtefact, Pulls


class GalleryReader(Protocol):
    """The part of galleries that is used here."""

    @property
    def sources(self) -> Sequence[GallerySource]: ...

    async def read(self, sources: Sequence[GallerySource] | None = None) -> Readings: ...

    async def refresh(self, sources: Sequence[GallerySource] | None = None) -> Readings: ...


class GalleryBackends:
    """Resolves names of builds, of meta backends and aliases, each plain or as `gallery@name`."""

    def __init__(self, galleries: GalleryReader, pulls: Pulls, *, capability: str, system: Sequence[Path] = ()) -> None:
        self._galleries = galleries
        self._pulls = pulls
        self._capability = capability
        self._system = frozenset(folder.resolve() for folder in system)

    async def find(self, order: InstallOrder) -> InstallableBackend | None:
        name = order.uri or order.backend
        if not name or (order.uri and not names_an_entry(order.uri)):
            return None
        if order.uri and (order.name or order.alias):
            raise CannotInstall("specifying a name or alias is not supported for this backend")
        resolved, readings = await self._resolved(name, order)
        build = resolved.build
        if build.local_path and Path(build.local_path).parent in self._system:
            return _used_where_it_lies(build)
        return self._installable(resolved, readings)

    async def _resolved(self, name: str, order: InstallOrder) -> tuple[backend_catalogue.ResolvedBuild, Readings]:
        """Resolve the name, one gallery after the other in order of precedence: a backend in a local gallery does not
        wait for the network."""
        read = self._galleries.refresh if order.wants_newest else self._galleries.read
        readings = Readings()
        resolved = readings.catalogue.resolve(name, self._capability)
        for source in _sources(order) or self._galleries.sources:
            more = await read([source])
            readings = Readings(readings=(*readings.readings, *more.readings))
            resolved = readings.catalogue.resolve(name, self._capability)
            if not isinstance(resolved, UnresolvedBuild):
                break
        if isinstance(resolved, UnresolvedBuild):
            raise _refusal(resolved, readings)
        return resolved, readings

    def _installable(self, resolved: backend_catalogue.ResolvedBuild, readings: Readings) -> InstallableBackend:
        build = resolved.build
        reading = _reading_of(build, readings)
        artefact = PullArtefact(
            uris=candidates(build), sha256=build.sha256, verification=dict(reading.source.verification)
        )
        return InstallableBackend(
            metadata=Metadata(
                name=build.name,
                alias=build.alias,
                gallery_url=_url_of(reading),
                version=build.version,
                uri=build.artefact,
                corral=Provenance(gallery=build.gallery),
            ),
            fetch=partial(self._pulls.fetch, artefact),
            meta=_pointer(resolved, readings) if resolved.entry.is_meta else None,
            key=resolved.key,
        )


def _used_where_it_lies(build: GalleryEntry) -> InstallableBackend:
    """Return a system backend, which is used in place: a copy would hide it, and become outdated."""

    async def refuse(_: Fetching) -> Delivered:
        raise CannotInstall(f"{build.name} came with the system and is used where it lies; it is replaced with that")

    return InstallableBackend(metadata=Metadata(name=build.name), fetch=refuse, key=Path(build.local_path).name)


def _sources(order: InstallOrder) -> Sequence[GallerySource] | None:
    """Return the galleries of the order, or this node's own. The built-in gallery always belongs to them."""
    galleries = read_galleries(order.galleries)
    if galleries is None:
        return None
    sources = sources_of(galleries)
    return sources if any(source.url == BUILT_IN_URL for source in sources) else (*sources, BUILT_IN)


def _pointer(resolved: backend_catalogue.ResolvedBuild, readings: Readings) -> Metadata:
    """Return the metadata of a meta backend's directory: LocalAI's keys, and no uri."""
    meta = resolved.entry
    return Metadata(
        meta_backend_for=resolved.key,
        name=meta.name,
        gallery_url=_url_of(_reading_of(meta, readings)),
        version=resolved.build.version,
        corral=Provenance(gallery=meta.gallery),
    )


def _reading_of(entry: GalleryEntry, readings: Readings) -> GalleryReading:
    return next(reading for reading in readings.readings if reading.source.name == entry.gallery)


def _url_of(reading: GalleryReading) -> str:
    """Return the URL that can be read without a login: the gallery's, or that of the file it points to."""
    is_reference = reading.source.url.endswith(".ref")
    return without_secrets(reading.url if is_reference else reading.source.url)


def _refusal(missing: UnresolvedBuild, readings: Readings) -> CannotInstall:
    """Return the error for an unresolved name. It also names unreadable galleries, which may have the backend."""
    if missing.missing is not Missing.UNKNOWN:
        return CannotInstall(missing.message)
    hints = [f"did you mean {' or '.join(missing.suggestions)}?"] if missing.suggestions else []
    kind = GalleryAway if readings.failures else NoSuchBackend
    return kind("; ".join([f'no backend found with name "{missing.asked}"', *readings.failures, *hints]))
