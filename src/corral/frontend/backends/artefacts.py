"""What registries have of the builds that people want: asked for a short time, and never waited for longer."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.tasks import task_group
from corral.galleries.build_uris import candidates, is_pulled
from corral.galleries.fit import ImageFacts, ImageManifest, read_platform
from corral.galleries.gallery import GalleryEntry
from corral.oci.config import ImagesConfig
from corral.oci.errors import ImageError, ImageNotFound, RegistryUnavailable
from corral.oci.looks import ImageLook, ImageLooks, PlatformImage
from corral.oci.references import RegistryImage, parse_source

log = logging.getLogger(__name__)

PATIENCE: Final = timedelta(seconds=3)
"""How long somebody who asks for an operation waits for registries, before only the nodes can tell."""
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
                return await self._first(candidates(build))
        except (ImageError, TimeoutError) as error:
            why = str(error) or f"no answer within {self._patience:.0f} s"
            log.info("%s is not looked at: %s", build.name, why, extra={"event": "operation.without_image"})
            return None

    async def _first(self, uris: Sequence[str]) -> ImageFacts | None:
        missing = ImageNotFound("it names no image")
        for uri in uris:
            try:
                return await self._look(uri)
            except ImageNotFound as error:
                missing = error
        raise missing

    async def _look(self, uri: str) -> ImageFacts | None:
        host = _host_of(uri)
        if self._paused.get(host, 0.0) > self._clock.monotonic():
            raise RegistryUnavailable(f"{host} did not answer a moment ago")
        try:
            found = await self._looks.at(uri)
        except (asyncio.CancelledError, RegistryUnavailable):  # cancelled is what a time-out looks like from inside
            self._paused[host] = self._clock.monotonic() + _PAUSE.total_seconds()
            raise
        return None if found is None else _facts(found, uri)


async def facts_of(builds: Iterable[GalleryEntry], images: ImageSource) -> dict[str, ImageFacts]:
    """By the uri of each build, side by side, without those of which nothing could be told."""
    found: dict[str, ImageFacts] = {}
    slots = asyncio.Semaphore(_AT_ONCE)

    async def look(build: GalleryEntry) -> None:
        async with slots:
            facts = await images.facts(build)
        if facts is not None:
            found[build.artefact] = facts

    async with task_group() as group:
        for build in {one.artefact: one for one in builds}.values():
            group.create_task(look(build), name=f"look at {build.name}")
    return found


def _host_of(uri: str) -> str:
    source = parse_source(uri)
    return source.reference.registry if isinstance(source, RegistryImage) else ""


def _facts(found: ImageLook, uri: str) -> ImageFacts:
    return ImageFacts(
        is_index=found.is_index, digest=found.digest, uri=uri, manifests=tuple(map(_manifest, found.members))
    )


def _manifest(member: PlatformImage) -> ImageManifest:
    platform = None if member.platform is None else read_platform(str(member.platform))
    return ImageManifest(platform=platform, digest=member.digest, download_bytes=member.layer_bytes)
