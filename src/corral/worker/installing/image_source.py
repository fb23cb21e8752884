"""Installs images and archives, by their uri or by a name in galleries. A child process pulls them straight into the
directory of the next version."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from corral.galleries.build_uris import candidates
from corral.galleries.catalogue import Missing, ResolvedBuild, UnresolvedBuild
from corral.galleries.config import BUILT_IN, sources_of
from corral.galleries.gallery import BUILT_IN_URL, GallerySource
from corral.galleries.places import without_secrets
from corral.galleries.readings import GalleryReading, Readings
from corral.oci.config import ImagesConfig, Pin, make_order
from corral.oci.errors import DiskFull, ImageError, SourceInvalid
from corral.oci.orders import words_of
from corral.oci.puller import Puller
from corral.oci.references import default_name, names_an_entry, parse_source
from corral.wire.backends import Phase, read_galleries
from corral.worker.installing.backend_metadata import Metadata, Provenance
from corral.worker.installing.orders import (
    CannotInstall,
    Delivered,
    Fetching,
    GalleryAway,
    InstallableBackend,
    InstallOrder,
    NoRoom,
    NoSuchBackend,
)
from corral.worker.installing.progress import InstallStep

log = logging.getLogger(__name__)


class PullArtefact(msgspec.Struct, frozen=True, kw_only=True):
    """What to pull, and from where."""

    uris: tuple[str, ...]
    """The primary uri, then its mirrors and other tags, in the order to try."""
    sha256: str = ""
    """Hash of an archive that is not an image; empty when unknown."""
    verification: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Signature policy of the gallery; empty when no signature is needed."""


class Pulls:
    """Starts puller processes, and forwards their progress."""

    def __init__(self, config: ImagesConfig, *, cache: Path) -> None:
        self._config = config
        self._cache = cache

    async def fetch(self, artefact: PullArtefact, fetching: Fetching) -> Delivered:
        """Pull. Raise CannotInstall in LocalAI's words, with our reason. Cancelling this ends the puller."""
        uri = artefact.uris[0]
        failed = f'failed to download backend "{uri}"'
        try:
            order, notes = await asyncio.to_thread(
                make_order,
                self._config,
                artefact.uris,
                target=fetching.into,
                cache=self._cache,
                pin=Pin(sha256=artefact.sha256),
                verification=artefact.verification,  # nobody else passes on the gallery's signature policy
            )
            for note in notes:
                log.warning("%s", note, extra={"event": "install.noted"})
            order = msgspec.structs.replace(order, have=fetching.have)
            async with Puller(order, environment=self._config.environment) as puller:
                async for progress in puller.progress():
                    step = InstallStep(
                        text=words_of(progress, uri),
                        done=progress.current_bytes,
                        total=progress.total_bytes,
                        share=progress.percentage,
                        phase=Phase(progress.phase),
                    )
                    fetching.report(step)
                result = await puller.result()
        except DiskFull as error:
            advice = "make room, or set another backends directory (LOCALAI_BACKENDS_PATH)"
            raise NoRoom(f"{failed}: {error.message}; {advice}") from error
        except ImageError as error:
            raise CannotInstall(f"{failed}: {error.message}") from error
        return Delivered(
            digest=result.digest,
            platform_digest=result.platform_digest,
            source="" if result.source == uri else result.source,
            is_unchanged=result.is_unchanged,
            is_settled=order.is_durable,
        )


class UriSource:
    """Accepts every uri that is not the name of a gallery entry; errors are reported for it."""

    def __init__(self, pulls: Pulls) -> None:
        self._pulls = pulls

    async def find(self, order: InstallOrder) -> InstallableBackend | None:
        if not order.uri or names_an_entry(order.uri):
            return None
        try:
            source = parse_source(order.uri)
        except SourceInvalid as error:
            raise CannotInstall(error.message) from error
        name = order.name or default_name(source)
        if not name:
            raise CannotInstall("specifying a name is required for OCI images")
        metadata = Metadata(name=name, alias=order.alias, uri=order.uri)
        return InstallableBackend(metadata=metadata, fetch=partial(self._pulls.fetch, PullArtefact(uris=(order.uri,))))


class GalleryReader(Protocol):
    """The part of galleries that is used here."""

    @property
    def sources(self) -> Sequence[GallerySource]: ...

    async def read(self, sources: Sequence[GallerySource] | None = None) -> Readings: ...

    async def refresh(self, sources: Sequence[GallerySource] | None = None) -> Readings: ...

    async def recheck(self, readings: Readings) -> Readings: ...


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

            async def refuse(_: Fetching) -> Delivered:
                raise CannotInstall(
                    f"{build.name} came with the system and is used where it lies; it is replaced with that"
                )

            # A system backend is used in place: a copy would hide it, and become outdated.
            return InstallableBackend(metadata=Metadata(name=build.name), fetch=refuse, key=Path(build.local_path).name)
        return self._installable(resolved, readings)

    async def _resolved(self, name: str, order: InstallOrder) -> tuple[ResolvedBuild, Readings]:
        """Resolve the name, one gallery after the other: a backend in a local gallery does not wait for the network."""
        sources = self._galleries.sources
        if (galleries := read_galleries(order.galleries)) is not None:
            sources = sources_of(galleries)
            if all(source.url != BUILT_IN_URL for source in sources):
                sources = (*sources, BUILT_IN)  # it belongs to the galleries of every order
        read = self._galleries.refresh if order.wants_newest else self._galleries.read
        readings = Readings()
        resolved = readings.catalogue.resolve(name, self._capability)
        for source in sources:
            more = await read([source])
            readings = Readings(readings=(*readings.readings, *more.readings))
            resolved = readings.catalogue.resolve(name, self._capability)
            if not isinstance(resolved, UnresolvedBuild):
                return resolved, readings
        if not readings.catalogue.knows(name):
            readings = await self._galleries.recheck(readings)
            resolved = readings.catalogue.resolve(name, self._capability)
        if not isinstance(resolved, UnresolvedBuild):
            return resolved, readings
        if resolved.missing is not Missing.UNKNOWN:
            raise CannotInstall(resolved.message)
        hints = [f"did you mean {' or '.join(resolved.suggestions)}?"] if resolved.suggestions else []
        # Unreadable galleries, which may have the backend, are named as well.
        kind = GalleryAway if readings.failures else NoSuchBackend
        raise kind("; ".join([f'no backend found with name "{resolved.asked}"', *readings.failures, *hints]))

    def _installable(self, resolved: ResolvedBuild, readings: Readings) -> InstallableBackend:
        build, entry = resolved.build, resolved.entry
        reading = readings.reading_of(build)
        artefact = PullArtefact(
            uris=candidates(build), sha256=build.sha256, verification=dict(reading.source.verification)
        )
        # The directory of a meta backend only points to the build: LocalAI's keys, and no uri.
        pointer = Metadata(
            meta_backend_for=resolved.key,
            name=entry.name,
            gallery_url=_url_of(readings.reading_of(entry)),
            version=build.version,
            corral=Provenance(gallery=entry.gallery),
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
            meta=pointer if entry.is_meta else None,
            key=resolved.key,
        )


def _url_of(reading: GalleryReading) -> str:
    """Return the URL that can be read without a login: the gallery's, or that of the file it points to."""
    is_reference = reading.source.url.endswith(".ref")
    return without_secrets(reading.url if is_reference else reading.source.url)
