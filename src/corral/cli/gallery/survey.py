"""The part of `corral gallery` that needs no fleet: reads galleries on this machine, and judges what fits it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
from msgspec.structs import asdict

from corral.base.clock import SystemClock
from corral.base.tasks import task_group
from corral.cli.output import quiet
from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.config import GalleriesConfig
from corral.galleries.fetching import RegistryArtefacts
from corral.galleries.fit import NodeTraits
from corral.galleries.galleries import Galleries, open_galleries
from corral.galleries.gallery import GalleryEntry
from corral.galleries.readings import Readings, entry_view, fit_view, gallery_views
from corral.processes.configs import images_config
from corral.processes.local_backends import machine_config, measure
from corral.processes.settings_sources import SettingSources, resolve
from corral.wire.galleries import BackendView, FitView, GalleryListing, GalleryView


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The galleries and this machine's properties, read at one moment."""

    readings: Readings
    node: NodeTraits
    now: datetime

    @property
    def catalogue(self) -> BackendCatalogue:
        return self.readings.catalogue

    def fit(self, name: str) -> FitView:
        return fit_view(self.catalogue, name, self.node)

    def listing(self, entries: Sequence[GalleryEntry]) -> GalleryListing:
        return GalleryListing(
            capability=self.node.effective_capability,
            items=[self.backend(entry) for entry in entries],
            galleries=self.galleries(),
        )

    def backend(self, entry: GalleryEntry) -> BackendView:
        return BackendView(**asdict(entry_view(entry)), fit=self.fit(entry.id))

    def galleries(self) -> list[GalleryView]:
        return gallery_views(self.readings, self.now)


def take_survey(sources: SettingSources, *, refresh: bool) -> Survey:
    """Read the galleries, from the cache while it is fresh unless `refresh` is set, and examine this machine."""
    with quiet():
        return asyncio.run(_survey(sources, Galleries.refresh if refresh else Galleries.read))


async def _survey(sources: SettingSources, read: Callable[[Galleries], Coroutine[None, None, Readings]]) -> Survey:
    config = resolve(GalleriesConfig, sources)
    machine = machine_config(sources)
    images = images_config(sources)
    registry = RegistryArtefacts(images, clock=SystemClock())
    config = replace(config, trusts_earlier_checks=True)
    async with open_galleries(config, registry=registry, clock=SystemClock()) as galleries, task_group() as group:
        reading = group.create_task(read(galleries), name="read galleries")
        looking = group.create_task(measure(machine), name="look at this machine")
    return Survey(readings=reading.result(), node=looking.result(), now=datetime.now(UTC))
