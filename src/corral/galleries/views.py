"""Entries, readings and verdicts of galleries in the shapes that programs see."""

from datetime import datetime

from corral.domain.backend_catalogue import BackendCatalogue, ResolvedBuild
from corral.domain.fit import Blocked, NodeTraits, blocked_by, judge_build
from corral.domain.gallery import EntryProblem, GalleryEntry
from corral.galleries.places import without_secrets
from corral.galleries.readings import GalleryReading, Readings
from corral.wire.gallery_views import FitView, GalleryEntryView, GalleryView, SkippedView
from corral.wire.times import format_time


def entry_view(entry: GalleryEntry) -> GalleryEntryView:
    """What the gallery says of an entry."""
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
    """Whether a node can use what a name means there, as far as it is known without asking a registry: platform and
    size of an image are seen when it is installed."""
    resolved = catalogue.resolve(name, node.effective_capability)
    verdict = judge_build(resolved.build, node, None) if isinstance(resolved, ResolvedBuild) else blocked_by(resolved)
    if isinstance(verdict, Blocked):
        return FitView(verdict=verdict.word, reason=verdict.reason, would_fit=list(verdict.would_fit))
    build = verdict.build.name
    return FitView(verdict="fits", build=build, installed=build in node.installed)


def gallery_views(readings: Readings, now: datetime) -> list[GalleryView]:
    """How each gallery is known."""
    problems = readings.catalogue.problems
    return [_gallery_view(reading, problems, now) for reading in readings.readings]


def _gallery_view(reading: GalleryReading, problems: tuple[EntryProblem, ...], now: datetime) -> GalleryView:
    return GalleryView(
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
        skipped=[_skipped(problem) for problem in problems if problem.gallery == reading.source.name],
    )


def _skipped(problem: EntryProblem) -> SkippedView:
    return SkippedView(gallery=problem.gallery, name=problem.name, line=problem.line, problem=problem.problem)
