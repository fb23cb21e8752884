"""Reads galleries: from memory, from the disk, or from where they are, whichever is still good enough.

A gallery that cannot be read hurts no other one. While its places are away the last good copy is used, and its age is
told. A version that another process fetched is seen at the next reading.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.http_client import open_session
from corral.base.tasks import end_tasks, start_task, task_group
from corral.galleries.cache import Copy, CopyMark, IndexCache
from corral.galleries.config import GalleriesConfig
from corral.galleries.fetching import ArtefactReader, IndexFetcher
from corral.galleries.gallery import GalleryContent, GallerySource
from corral.galleries.index_document import read_copy
from corral.galleries.local_index import LocalIndexes
from corral.galleries.places import IndexLocation, read_place
from corral.galleries.readings import GalleryReading, Readings

log = logging.getLogger(__name__)

_MOST_KNOWN: Final = 64
"""Sources that are kept in memory. Requests may name their own."""

_SourceKey = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The last good copy of a source, parsed."""

    copy: Copy
    gallery: GalleryContent
    mark: CopyMark | None


class Galleries:
    """Safe to ask from many tasks at once: who asks for what is being fetched already waits for that."""

    def __init__(self, config: GalleriesConfig, *, fetcher: IndexFetcher, clock: Clock) -> None:
        self._config = config
        self._fetcher = fetcher
        self._clock = clock
        self._cache = IndexCache(config.cache)
        self._local = LocalIndexes(config.max_bytes, config.builtin)
        self._known: dict[_SourceKey, _Known] = {}
        self._paused: dict[str, float] = {}
        self._flights: dict[tuple[_SourceKey, bool], asyncio.Task[GalleryReading]] = {}
        self._told: dict[_SourceKey, str] = {}

    @property
    def sources(self) -> Sequence[GallerySource]:
        """Those of the settings, in the order in which they count."""
        return self._config.sources

    async def read(self, sources: Sequence[GallerySource] | None = None) -> Readings:
        """These galleries, or those of the settings, as fresh as they need to be."""
        return await self._read_all(self._config.sources if sources is None else sources, force=False)

    async def refresh(self, sources: Sequence[GallerySource] | None = None) -> Readings:
        """The same, after asking every place whether there is something new."""
        return await self._read_all(self._config.sources if sources is None else sources, force=True)

    async def close(self) -> None:
        """End what is being fetched."""
        await end_tasks(*self._flights.values())

    async def _read_all(self, sources: Sequence[GallerySource], *, force: bool) -> Readings:
        async with task_group() as group:
            tasks = [group.create_task(self._join(source, force), name=f"gallery {source.name}") for source in sources]
        return Readings(readings=tuple(task.result() for task in tasks))

    async def _join(self, source: GallerySource, force: bool) -> GalleryReading:
        """Start a reading, or wait for one that is under way."""
        flight = (_key_of(source), force)
        task = self._flights.get(flight)
        if task is None:
            task = start_task(self._look(source, force=force), name=f"read gallery {source.name}")
            self._flights[flight] = task
            task.add_done_callback(lambda _: self._flights.pop(flight, None))
        # Shielded, because others may wait for the same: who gives up must not end it for them. `close` does.
        reading = await asyncio.shield(task)
        return replace(reading, gallery=replace(reading.gallery, source=source))

    async def _look(self, source: GallerySource, *, force: bool) -> GalleryReading:
        try:
            places = [read_place(url) for url in source.urls]
        except CorralError as error:
            return self._nothing(source, error.message)
        if not places:
            return self._nothing(source, "it has no url")
        known = await self._newest_known(source)
        return await self._from_places(source, places, known, force=force)

    def _is_fresh(self, known: _Known) -> bool:
        """A copy from the future is not: somebody's clock was wrong."""
        age = self._clock.now().timestamp() - known.copy.checked_at
        return 0 <= age < self._config.max_age.total_seconds()

    async def _newest_known(self, source: GallerySource) -> _Known | None:
        """What memory has, unless another process left something else on the disk."""
        key = _key_of(source)
        known = self._known.get(key)
        mark = await asyncio.to_thread(self._cache.mark, source.url)
        if mark is None or (known is not None and known.mark == mark):
            return known
        copy = await asyncio.to_thread(self._cache.load, source.url)
        if copy is None or not _may_be_of(source, copy.url):
            return known
        return await self._learn(source, copy, mark) or known

    async def _learn(self, source: GallerySource, copy: Copy, mark: CopyMark | None) -> _Known | None:
        try:
            gallery = await asyncio.to_thread(read_copy, copy.content, source)
        except CorralError:
            return None
        return self._remember(source, _Known(copy=copy, gallery=gallery, mark=mark))

    def _remember(self, source: GallerySource, known: _Known) -> _Known:
        key = _key_of(source)
        self._known.pop(key, None)
        self._known[key] = known
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return known

    async def _from_places(
        self, source: GallerySource, places: Sequence[IndexLocation], known: _Known | None, *, force: bool
    ) -> GalleryReading:
        problems: list[str] = []
        for place in self._worth_trying(places, is_spare=known is not None, force=force):
            if known is not None and not force and not place.is_local and self._is_fresh(known):
                return replace(_reading(known), problem="; ".join(problems))
            try:
                reading = await self._from_place(source, place, known)
            except CorralError as error:
                problems.append(f"{place.shown} {error.message}")
                self._paused[place.url] = self._clock.monotonic() + self._config.pause.total_seconds()
            else:
                self._paused.pop(place.url, None)
                return self._told_of(replace(reading, problem="; ".join(problems)))
        problem = "; ".join(problems) or self._told.get(_key_of(source), "its places failed a moment ago")
        if known is None:
            return self._nothing(source, problem)
        return self._told_of(replace(_reading(known), is_stale=True, problem=problem))

    def _worth_trying(self, places: Sequence[IndexLocation], *, is_spare: bool, force: bool) -> Sequence[IndexLocation]:
        """Without those that failed a moment ago, unless nothing else is left."""
        now = self._clock.monotonic()
        rested = [one for one in places if force or one.is_local or self._paused.get(one.url, now) <= now]
        return rested if rested or is_spare else places

    async def _from_place(self, source: GallerySource, place: IndexLocation, known: _Known | None) -> GalleryReading:
        if place.is_local:
            gallery = await asyncio.to_thread(self._local.read, place, source)
            return GalleryReading(gallery=gallery, url=place.url)
        now = self._clock.now().timestamp()
        copy = await self._fetcher.fetch(place, None if known is None else known.copy, now=now)
        if known is not None and copy.content == known.copy.content:
            return _reading(await self._keep(source, copy, known.gallery))
        gallery = await asyncio.to_thread(read_copy, copy.content, source)
        return replace(_reading(await self._keep(source, copy, gallery)), is_new=True)

    async def _keep(self, source: GallerySource, copy: Copy, gallery: GalleryContent) -> _Known:
        await asyncio.to_thread(self._cache.store, source.url, copy)
        mark = await asyncio.to_thread(self._cache.mark, source.url)
        return self._remember(source, _Known(copy=copy, gallery=gallery, mark=mark))

    def _nothing(self, source: GallerySource, problem: str) -> GalleryReading:
        return self._told_of(GalleryReading(gallery=GalleryContent(source=source), problem=problem))

    def _told_of(self, reading: GalleryReading) -> GalleryReading:
        """One line for each change: a source that stays away is not news."""
        key, shown = _key_of(reading.source), {"gallery": reading.source.name}
        if reading.is_new:
            entries = len(reading.gallery.entries)
            log.info("gallery read", extra={"event": "gallery.read", "entries": entries, **shown})
        if reading.problem and self._told.get(key) != reading.problem:
            log.warning("gallery is away: %s", reading.problem, extra={"event": "gallery.away", **shown})
        if reading.problem:
            self._told[key] = reading.problem
        else:
            self._told.pop(key, None)
        return reading


def _key_of(source: GallerySource) -> _SourceKey:
    return source.name, source.url, source.mirrors


def _may_be_of(source: GallerySource, url: str) -> bool:
    """Two galleries may share a url but not their mirrors: a copy from somebody else's mirror is not ours."""
    places = [read_place(own) for own in source.urls]
    return any(place.is_reference or place.url == url for place in places)


def _reading(known: _Known) -> GalleryReading:
    return GalleryReading(
        gallery=known.gallery,
        url=known.copy.url,
        fetched_at=datetime.fromtimestamp(known.copy.fetched_at, UTC),
        checked_at=datetime.fromtimestamp(known.copy.checked_at, UTC),
    )


@asynccontextmanager
async def open_galleries(
    config: GalleriesConfig, *, registry: ArtefactReader, clock: Clock
) -> AsyncIterator[Galleries]:
    """Galleries with a session of their own, which ends with them."""
    async with open_session(timeout=config.timeout, connect_timeout=config.connect_timeout, trust_env=True) as session:
        fetcher = IndexFetcher(session, registry=registry, timeout=config.timeout, most_bytes=config.max_bytes)
        galleries = Galleries(config, fetcher=fetcher, clock=clock)
        try:
            yield galleries
        finally:
            await galleries.close()
