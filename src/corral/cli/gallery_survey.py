"""What `corral gallery` shows: the galleries as this machine knows them, and which backends fit it."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime

from corral.app.configs.backends import galleries_config, images_config
from corral.app.configs.machine import machine_config
from corral.app.settings_sources import Sources, resolve
from corral.app.settings_table import GallerySettings, ImageSettings
from corral.app.this_machine import measure
from corral.base.clock import SystemClock
from corral.base.tasks import task_group
from corral.cli.quiet import quiet
from corral.domain.backend_catalogue import BackendCatalogue, Found
from corral.domain.fit import NodeTraits, blocked_by
from corral.domain.gallery import EntryProblem, GalleryEntry
from corral.galleries.artefacts import RegistryArtefacts
from corral.galleries.galleries import Galleries, open_galleries
from corral.galleries.places import without_secrets
from corral.galleries.readings import GalleryReading, Readings
from corral.protocol.gallery_views import BackendView, FitView, GalleryListing, GalleryView, SkippedView
from corral.protocol.times import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Galleries and machine together, at one moment."""

    readings: Readings
    node: NodeTraits
    now: datetime

    @property
    def catalogue(self) -> BackendCatalogue:
        return self.readings.catalogue

    def fit(self, name: str) -> FitView:
        """What can be told without asking a registry: platform and size of an image are seen when it is installed."""
        resolved = self.catalogue.resolve(name, self.node.effective_capability)
        if isinstance(resolved, Found):
            return FitView(verdict="fits", build=resolved.key, installed=resolved.key in self.node.installed)
        blocked = blocked_by(resolved)
        return FitView(verdict=blocked.word, reason=resolved.reason, would_fit=list(blocked.would_fit))

    def listing(self, entries: list[GalleryEntry]) -> GalleryListing:
        return GalleryListing(
            capability=self.node.effective_capability,
            items=[self.backend(entry) for entry in entries],
            galleries=[self.gallery(reading) for reading in self.readings.readings],
        )

    def backend(self, entry: GalleryEntry) -> BackendView:
        return BackendView(
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
            fit=self.fit(entry.id),
        )

    def gallery(self, reading: GalleryReading) -> GalleryView:
        clashes = [problem for problem in self.catalogue.problems if problem.gallery == reading.source.name]
        return GalleryView(
            name=reading.source.name,
            url=without_secrets(reading.source.url),
            read_from=without_secrets(reading.url),
            entries=len(reading.gallery.entries),
            fetched_at=None if reading.fetched_at is None else format_time(reading.fetched_at),
            checked_at=None if reading.checked_at is None else format_time(reading.checked_at),
            age_seconds=None if reading.checked_at is None else reading.age(self.now).total_seconds(),
            stale=reading.is_stale,
            changed=reading.is_new,
            problem=reading.problem,
            skipped=[_skipped(problem) for problem in clashes],
        )


def _skipped(problem: EntryProblem) -> SkippedView:
    return SkippedView(gallery=problem.gallery, name=problem.name, line=problem.line, problem=problem.problem)


def survey(sources: Sources) -> Survey:
    """Read the galleries, as new as they need to be, and look at the machine."""
    with quiet():
        return asyncio.run(_survey(sources, Galleries.read))


def fresh_survey(sources: Sources) -> Survey:
    """The same, after asking every place for something new."""
    with quiet():
        return asyncio.run(_survey(sources, Galleries.refresh))


async def _survey(sources: Sources, read: Callable[[Galleries], Coroutine[None, None, Readings]]) -> Survey:
    config = galleries_config(resolve(GallerySettings, sources))
    machine = machine_config(sources)
    images = images_config(resolve(ImageSettings, sources), sources.environment)
    registry = RegistryArtefacts(images, clock=SystemClock())
    async with open_galleries(config, registry=registry, clock=SystemClock()) as galleries, task_group() as group:
        reading = group.create_task(read(galleries), name="read galleries")
        looking = group.create_task(measure(machine), name="look at this machine")
    return Survey(readings=reading.result(), node=looking.result(), now=datetime.now(UTC))
