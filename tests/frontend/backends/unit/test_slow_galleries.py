"""What is known of backends while a gallery does not answer, as behind a firewall that drops packets."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from corral.frontend.backends.catalogue import GalleryCatalogue
from corral.galleries.config import GalleriesConfig
from corral.galleries.galleries import Galleries, open_fetcher
from corral.galleries.gallery import GalleryEntry, GallerySource, IndexContent
from corral.galleries.readings import GalleryReading, Readings
from tests.kit.clock import ManualClock
from tests.kit.galleries import NoRegistry

HERE = GallerySource(name="here", url="corral:builtin")
AWAY = GallerySource(name="away", url="https://gallery.invalid/index.yaml")


class SilentGalleries(Galleries):
    """Galleries of which only `here` ever answers."""

    async def read(self, sources: Sequence[GallerySource] | None = None) -> Readings:
        assert sources is not None
        if AWAY in sources:
            await asyncio.Event().wait()
        content = IndexContent(source=HERE, entries=(GalleryEntry(name="echo", gallery="here"),))
        return Readings(readings=(GalleryReading(gallery=content, url=HERE.url),))


@pytest.fixture
async def silent(tmp_path: Path, clock: ManualClock) -> AsyncIterator[GalleryCatalogue]:
    config = GalleriesConfig(sources=(HERE, AWAY), cache=tmp_path)
    async with open_fetcher(config, NoRegistry()) as fetcher:
        galleries = SilentGalleries(config, fetcher=fetcher, clock=clock)
        yield GalleryCatalogue(galleries, patience=timedelta(0))
        await galleries.close()


async def test_a_gallery_that_does_not_answer_hides_none_of_the_others(silent: GalleryCatalogue) -> None:
    here, away = (await silent.readings()).readings
    assert ([entry.name for entry in here.gallery.entries], here.problem) == (["echo"], "")
    assert (away.source, away.is_known) == (AWAY, False)
    assert away.problem == "has not answered for 0 s; it is still being read"


async def test_backends_of_the_others_are_found_by_name(silent: GalleryCatalogue) -> None:
    catalogue = await silent.catalogue()
    assert catalogue is not None
    assert catalogue.resolve("echo", "default").entry is not None
