"""Galleries for frontends under test: a fixed catalogue, and an index file with images in a fake registry."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral.base.errors import CorralError
from corral.frontend.backends.catalogue import GalleryCatalogue, Lookups, RegistryImages
from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.config import GalleriesConfig
from corral.galleries.fetching import ArtefactFile
from corral.galleries.galleries import open_galleries
from corral.galleries.gallery import GalleryContent, GalleryEntry, GallerySource
from corral.galleries.model_galleries import open_model_galleries
from corral.galleries.readings import GalleryReading, Readings
from corral.hubs.access import HubAccess
from corral.oci.config import ImagesConfig
from corral.oci.manifests import Descriptor, ImagePlatform
from tests.kit.clock import HurriedClock
from tests.kit.images import a_layer
from tests.kit.registry import FakeRegistry

AMD64: Final = "linux/amd64"
LAYER: Final = a_layer({"run.sh": b"#!/bin/sh\n"})


class RegistryMissing(CorralError):
    """This program cannot read galleries from registries: give the index an http, https or file URL."""

    code = "registry_missing"


class NoRegistry:
    """Stands for the registry client where galleries are files or come over HTTP."""

    async def read_artefact(self, reference: str, *, known_digest: str, most_bytes: int) -> ArtefactFile | None:
        raise RegistryMissing


def odd_metas(entries: Sequence[GalleryEntry]) -> Iterator[tuple[GalleryEntry, str]]:
    """Yield meta backends with an invalid target for some capability, and why. They are usable for the others."""
    by_name = {entry.name.lower(): entry for entry in reversed(entries)}
    for meta in entries:
        if not meta.is_meta:
            continue
        for capability, target in meta.capabilities.items():
            build = by_name.get(target.lower())
            if build is None:
                yield meta, f"names {target!r} for {capability}, which is not there"
            elif build is meta:
                yield meta, f"names itself for {capability}"
            elif build.is_meta:
                yield meta, f"names {target!r} for {capability}, which is no build but another meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedGallery:
    registry: FakeRegistry
    index: Path
    lookups: Lookups
    """What a frontend asks it with."""

    def uri(self, backend: str) -> str:
        return f"oci://{self.registry.reference(f'backends/{backend}')}"

    def offer(self, *backends: str, version: str = "") -> None:
        """Write the index with these backends."""
        entries = (f"- name: {name}\n  uri: {self.uri(name)}\n  version: '{version}'\n" for name in backends)
        self.index.write_text("".join(entries), encoding="utf-8")

    def publish(self, backend: str, *layers: bytes, platforms: Sequence[str] = (AMD64,)) -> Descriptor:
        """Move the tag of a backend to an image of these layers, for these platforms."""
        members = [
            self.registry.add_image(
                f"backends/{backend}", layers or [LAYER], platform=ImagePlatform(os=os, architecture=architecture)
            )
            for os, architecture in (platform.split("/") for platform in platforms)
        ]
        return self.registry.add_index(f"backends/{backend}", members)


@asynccontextmanager
async def open_published_gallery(folder: Path) -> AsyncIterator[PublishedGallery]:
    index = folder / "index.yaml"
    index.write_text("[]", encoding="utf-8")
    source = GallerySource(name="g", url=f"file://{index}")
    config = GalleriesConfig(sources=(source,), cache=folder / "cache")
    async with (
        FakeRegistry() as registry,
        open_galleries(config, registry=NoRegistry(), clock=HurriedClock()) as galleries,
    ):
        lookups = Lookups(galleries=GalleryCatalogue(galleries), images=RegistryImages(ImagesConfig(), HurriedClock()))
        yield PublishedGallery(registry=registry, index=index, lookups=lookups)


@asynccontextmanager
async def open_gallery_of_models(
    folder: Path, *others: GallerySource, hub: HubAccess | None = None
) -> AsyncIterator[Lookups]:
    """What a frontend asks a gallery of models with: the file `models.yaml` of a folder, and maybe others."""
    source = GallerySource(name="m", url=(folder / "models.yaml").as_uri())
    config = GalleriesConfig(sources=(), model_sources=(source, *others), cache=folder / "cache")
    async with open_model_galleries(config, registry=NoRegistry(), clock=HurriedClock()) as models:
        yield Lookups(models=models, hub=hub)


class StaticCatalogue:
    """A gallery with fixed entries, which needs no index."""

    def __init__(self, source: GallerySource, *entries: GalleryEntry) -> None:
        self._gallery = GalleryContent(source=source, entries=entries)
        self.closed = False
        """Whether nothing can be read."""

    async def catalogue(self) -> BackendCatalogue | None:
        return None if self.closed else BackendCatalogue([self._gallery])

    async def rechecked(self) -> BackendCatalogue | None:
        return await self.catalogue()

    async def newest(self) -> BackendCatalogue | None:
        return await self.catalogue()

    async def readings(self, *, newest: bool = False) -> Readings | None:
        if self.closed:
            return None
        return Readings(readings=(GalleryReading(gallery=self._gallery, url=self._gallery.source.url),))
