"""Galleries of models that people added: once each, in order, whoever adds them at the same moment."""

import asyncio

from corral.frontend.models.store.galleries import AddedGalleries
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.store import Events
from corral.frontend.store.db import Database
from corral.galleries.gallery import GallerySource
from tests.kit.samples import after


def event(kind: EventKind = EventKind.MODEL_GALLERY_ADDED) -> Event:
    return Event(kind=kind, at=after(0), actor="me", data={"gallery": "g"})


async def add(galleries: AddedGalleries, name: str, seconds: int = 0, *mirrors: str) -> bool:
    source = GallerySource(name=name, url=f"https://example.org/{name}", mirrors=mirrors)
    return await galleries.add(source, at=after(seconds), by="me", event=event())


async def test_galleries_are_kept_in_the_order_in_which_they_came(database: Database, events: Events) -> None:
    galleries = AddedGalleries(database)
    assert await add(galleries, "second", 2, "https://mirror.example.org/i")
    assert await add(galleries, "first", 1)
    assert not await add(galleries, "FIRST", 3)
    first, second = await galleries.all()
    assert (first.name, second.name, second.mirrors) == ("first", "second", ("https://mirror.example.org/i",))
    assert await galleries.remove("First", event=event(EventKind.MODEL_GALLERY_REMOVED))
    assert not await galleries.remove("first", event=event(EventKind.MODEL_GALLERY_REMOVED))
    assert [source.name for source in await galleries.all()] == ["second"]
    assert [entry.event.kind for entry in await events.after(0, limit=9)] == [
        EventKind.MODEL_GALLERY_ADDED,
        EventKind.MODEL_GALLERY_ADDED,
        EventKind.MODEL_GALLERY_REMOVED,
    ]


async def test_one_of_many_adds_a_name(database: Database) -> None:
    galleries = AddedGalleries(database)
    assert sum(await asyncio.gather(*(add(galleries, "g", number) for number in range(8)))) == 1
    assert len(await galleries.all()) == 1
