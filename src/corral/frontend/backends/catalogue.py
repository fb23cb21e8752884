"""What galleries and registries know of backends, for the frontend."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.tasks import task_group
from corral.galleries.build_uris import candidates, is_pulled
from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.galleries import Galleries
from corral.galleries.gallery import GalleryEntry, GallerySource
from corral.galleries.model_galleries import ModelGalleries
from corral.galleries.readings import GalleryReading, Readings
from corral.hubs.access import HubAccess
from corral.oci.config import ImagesConfig
from corral.oci.errors import ImageError, ImageNotFound, RegistryUnavailable
from corral.oci.manifests import ImageFacts
from corral.oci.references import RegistryImage, parse_source
from corral.oci.registry import ImageLooks

log = logging.getLogger(__name__)


class CatalogueSource(Protocol):
    """Where backends are looked up."""

    async def catalogue(self) -> BackendCatalogue | None:
        """None when the galleries cannot be read from here: then only the nodes know."""

    async def rechecked(self) -> BackendCatalogue | None:
        """The catalogue, after asking galleries that were not asked a moment ago: for a name that it lacks."""

    async def newest(self) -> BackendCatalogue | None:
        """The catalogue, after asking every gallery whether there is something new. May take minutes."""

    async def readings(self, *, newest: bool = False) -> Readings | None:
        """Each gallery with its age and its problem; None when there is nobody who reads them."""


class NoCatalogue:
    """A frontend that cannot look anything up."""

    async def catalogue(self) -> BackendCatalogue | None:
        return None

    async def rechecked(self) -> BackendCatalogue | None:
        return None

    async def newest(self) -> BackendCatalogue | None:
        return None

    async def readings(self, *, newest: bool = False) -> Readings | None:
        return None


_PATIENCE: Final = timedelta(seconds=3)
"""How long an operation waits for galleries that are away, before it is planned without them."""
_PATIENCE_BESIDE: Final = timedelta(minutes=2)
"""The limit for background lookups."""
_PATIENCE_ASKED: Final = timedelta(seconds=20)
"""How long a person waits who asked for the newest version: less than clients wait for an answer."""


_Reader = Callable[[Sequence[GallerySource]], Awaitable[Readings]]


class GalleryCatalogue:
    """Waits for each gallery by itself, and reads on in the background when one takes too long, so that the next reader
    finds it. A gallery that is away hides none of the others."""

    def __init__(self, galleries: Galleries, *, patience: timedelta = _PATIENCE) -> None:
        self._galleries = galleries
        self._patience = patience

    async def catalogue(self) -> BackendCatalogue | None:
        """None when nothing is known: names are then stored as they were given, and nothing is judged."""
        return _catalogue_of(await self.readings())

    async def rechecked(self) -> BackendCatalogue | None:
        return _catalogue_of(await self._read(self._patience, self._read_again))

    async def _read_again(self, sources: Sequence[GallerySource]) -> Readings:
        return await self._galleries.recheck(await self._galleries.read(sources))

    async def newest(self) -> BackendCatalogue | None:
        return _catalogue_of(await self._read(_PATIENCE_BESIDE, self._galleries.refresh))

    async def readings(self, *, newest: bool = False) -> Readings:
        if newest:
            return await self._read(_PATIENCE_ASKED, self._galleries.refresh)
        return await self._read(self._patience, self._galleries.read)

    async def _read(self, patience: timedelta, read: _Reader) -> Readings:
        async with task_group() as group:
            tasks = [
                group.create_task(self._read_one(source, patience, read), name=f"backends of {source.name}")
                for source in self._galleries.sources
            ]
        return Readings(readings=tuple(task.result() for task in tasks))

    async def _read_one(self, source: GallerySource, patience: timedelta, read: _Reader) -> GalleryReading:
        try:
            async with asyncio.timeout(patience.total_seconds()):
                (reading,) = (await read([source])).readings
                return reading
        except TimeoutError:
            problem = f"has not answered for {patience.total_seconds():.0f} s; it is still being read"
        except CorralError as error:
            problem = error.message
        fields = {"event": "operation.without_galleries", "gallery": source.name}
        log.info("a gallery is not read: %s", problem, extra=fields)
        return await self._galleries.last_copy(source, problem)


def _catalogue_of(readings: Readings) -> BackendCatalogue | None:
    return readings.catalogue if any(reading.is_known for reading in readings.readings) else None


PATIENCE: Final = timedelta(seconds=3)
"""How long somebody who asks for an operation waits for registries, before it is planned without them."""
_PAUSE: Final = timedelta(seconds=30)
"""How long a registry that did not answer is not asked again, so that a list of backends does not wait for each."""
_ATTEMPTS: Final = 2
_AT_ONCE: Final = 8


class ImageSource(Protocol):
    """Where images are looked at."""

    async def facts(self, build: GalleryEntry) -> ImageFacts | None:
        """None when nobody could be asked, or when there is nobody to ask."""


class NoImages:
    """A frontend that asks no registries."""

    async def facts(self, build: GalleryEntry) -> ImageFacts | None:
        return None


class Lookups(msgspec.Struct, frozen=True, kw_only=True):
    """Where it is looked up what can be had; by default nowhere."""

    galleries: CatalogueSource = msgspec.field(default_factory=NoCatalogue)
    images: ImageSource = msgspec.field(default_factory=NoImages)
    models: ModelGalleries | None = None
    hub: HubAccess | None = None
    """Where models come from without a gallery, and what their files say."""


class RegistryImages:
    """Asks the places that a worker would try, in its order, until one has the image."""

    def __init__(self, config: ImagesConfig, clock: Clock, *, patience: timedelta = PATIENCE) -> None:
        hasty = replace(config.network, attempts=_ATTEMPTS)
        self._looks = ImageLooks(replace(config, network=hasty), clock)
        self._clock = clock
        self._patience = patience.total_seconds()
        self._paused: dict[str, float] = {}
        """Registries that did not answer, until when they are left alone."""

    async def facts(self, build: GalleryEntry) -> ImageFacts | None:
        if not is_pulled(build.artefact):
            return None
        try:
            async with asyncio.timeout(self._patience):
                missing = ImageNotFound("it names no image")
                for uri in candidates(build):
                    try:
                        return await self._look(uri)
                    except ImageNotFound as error:
                        missing = error
                raise missing
        except (ImageError, TimeoutError) as error:
            why = str(error) or f"no answer within {self._patience:.0f} s"
            log.info("%s is not looked at: %s", build.name, why, extra={"event": "operation.without_image"})
            return None

    async def _look(self, uri: str) -> ImageFacts | None:
        source = parse_source(uri)
        host = source.reference.registry if isinstance(source, RegistryImage) else ""
        if self._paused.get(host, 0.0) > self._clock.monotonic():
            raise RegistryUnavailable(f"{host} did not answer a moment ago")
        try:
            return await self._looks.at(uri)
        except (asyncio.CancelledError, RegistryUnavailable):  # cancelled is what a time-out looks like from inside
            self._paused[host] = self._clock.monotonic() + _PAUSE.total_seconds()
            raise


async def facts_of(builds: Iterable[GalleryEntry], images: ImageSource) -> dict[str, ImageFacts]:
    """The images of these builds, by uri, looked at in parallel; without those that could not be looked at."""
    facts_by_uri: dict[str, ImageFacts] = {}
    slots = asyncio.Semaphore(_AT_ONCE)

    async def look(build: GalleryEntry) -> None:
        async with slots:
            facts = await images.facts(build)
        if facts is not None:
            facts_by_uri[build.artefact] = facts

    async with task_group() as group:
        for build in {listed_build.artefact: listed_build for listed_build in builds}.values():
            group.create_task(look(build), name=f"look at {build.name}")
    return facts_by_uri
