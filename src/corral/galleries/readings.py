"""The result of reading a gallery: its entries, their origin and age; and the API views of it."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Generic

import msgspec

from corral.galleries.catalogue import BackendCatalogue, ResolvedBuild
from corral.galleries.fit import Blocked, NodeTraits, blocked_by, judge_build
from corral.galleries.gallery import E, EntryProblem, GalleryEntry, GallerySource, IndexContent
from corral.galleries.places import without_secrets
from corral.wire.galleries import FitView, GalleryEntryView, GalleryView, SkippedView
from corral.wire.go_json import format_time


class IndexReading(msgspec.Struct, Generic[E], frozen=True, kw_only=True):
    """One gallery of any kind as last read."""

    gallery: IndexContent[E]
    """Without entries if it could never be read."""
    url: str = ""
    """The source's own URL or a mirror's; empty if it could never be read."""
    fetched_at: datetime | None = None
    """When this version was fetched. None for local files, which are always current."""
    checked_at: datetime | None = None
    """When it was last confirmed as the newest version."""
    is_stale: bool = False
    """Whether this is an old copy because no place answers."""
    is_new: bool = False
    """Whether this reading found a new version."""
    problem: str = ""
    """Why places failed; may be set even though a mirror answered."""

    @property
    def source(self) -> GallerySource:
        return self.gallery.source

    @property
    def is_known(self) -> bool:
        return bool(self.url)

    def age(self, now: datetime) -> timedelta:
        """Return the time since it was last confirmed as the newest version."""
        return timedelta(0) if self.checked_at is None else max(now - self.checked_at, timedelta(0))


GalleryReading = IndexReading[GalleryEntry]
"""One gallery of backends as last read."""


class Readings(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Several galleries of backends, in order of precedence."""

    readings: tuple[GalleryReading, ...] = msgspec.field(default=())

    @cached_property
    def catalogue(self) -> BackendCatalogue:
        return BackendCatalogue(reading.gallery for reading in self.readings)

    def reading_of(self, entry: GalleryEntry) -> GalleryReading:
        """Return the reading that an entry of the catalogue comes from."""
        return self.readings[self.catalogue.position_of(entry)]

    @property
    def failures(self) -> tuple[str, ...]:
        return failures_of(self.readings)


def failures_of(readings: Iterable[IndexReading[E]]) -> tuple[str, ...]:
    """One sentence per gallery that could not be read: a name may be missing for that reason."""
    return tuple(
        f"the gallery {reading.source.name} cannot be read: {reading.problem}"
        for reading in readings
        if not reading.is_known
    )


def entry_view(entry: GalleryEntry) -> GalleryEntryView:
    """Convert a gallery entry to its API view."""
    return GalleryEntryView(
        id=entry.id,
        name=entry.name,
        gallery=entry.gallery,
        meta=entry.is_meta,
        development=entry.is_development,
        alias=entry.alias,
        description=entry.description,
        license=entry.license,
        version=entry.version,
        tags=list(entry.tags),
        urls=list(entry.urls),
        uri=entry.artefact,
        mirrors=list(entry.mirrors),
        capabilities=dict(entry.capabilities) if entry.is_meta else {},
    )


def fit_view(catalogue: BackendCatalogue, name: str, node: NodeTraits) -> FitView:
    """Return whether a node can use a name, without asking a registry: platform and size of an image are checked when
    it is installed."""
    resolved = catalogue.resolve(name, node.effective_capability)
    verdict = judge_build(resolved.build, node, None) if isinstance(resolved, ResolvedBuild) else blocked_by(resolved)
    if isinstance(verdict, Blocked):
        return FitView(verdict=verdict.word, reason=verdict.reason, would_fit=list(verdict.would_fit))
    build = verdict.build.name
    return FitView(verdict="fits", build=build, installed=build in node.installed)


def gallery_views(readings: Readings, now: datetime) -> list[GalleryView]:
    """Return the state of each gallery."""
    return index_views(readings.readings, readings.catalogue.problems, now)


def index_views(
    readings: Iterable[IndexReading[E]], problems: Sequence[EntryProblem], now: datetime
) -> list[GalleryView]:
    """Return the state of each gallery of any kind."""
    return [
        GalleryView(
            name=reading.source.name,
            url=without_secrets(reading.source.url),
            read_from=without_secrets(reading.url),
            entries=len(reading.gallery.entries),
            fetched_at=None if reading.fetched_at is None else format_time(reading.fetched_at),
            checked_at=None if reading.checked_at is None else format_time(reading.checked_at),
            age_seconds=None if reading.checked_at is None else reading.age(now).total_seconds(),
            stale=reading.is_stale,
            changed=reading.is_new,
            problem=reading.problem,
            skipped=[
                SkippedView(gallery=skipped.gallery, name=skipped.name, line=skipped.line, problem=skipped.problem)
                for skipped in problems
                if skipped.gallery == reading.source.name
            ],
        )
        for reading in readings
    ]
