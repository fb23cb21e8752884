"""Reads galleries: from memory, from disk, or over the network, depending on age.

An unreadable gallery does not affect the others. While its places are unavailable the last good copy is used, and
its age is reported. A version that another process fetched is noticed at the next reading.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Generic

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.http_client import open_session, stranger_connector
from corral.base.tasks import end_tasks, start_task, task_group
from corral.galleries.cache import Copy, CopyMark, IndexCache
from corral.galleries.config import GalleriesConfig
from corral.galleries.fetching import ArtefactReader, IndexFetcher
from corral.galleries.gallery import E, GalleryEntry, GallerySource, IndexContent
from corral.galleries.index_document import BACKENDS, IndexKind, LocalIndexes
from corral.galleries.places import IndexLocation, read_place
from corral.galleries.readings import IndexReading, Readings

log = logging.getLogger(__name__)

_MOST_KNOWN: Final = 64
"""Maximum number of sources kept in memory. Requests may name their own."""

_SourceKey = tuple[str, str, tuple[str, ...]]


class _Known(msgspec.Struct, Generic[E], frozen=True, kw_only=True):
    """The last good copy of a source, parsed."""

    copy: Copy
    gallery: IndexContent[E]
    mark: CopyMark | None
    is_checked_here: bool = False
    """Whether this process compared it with its place."""


class GalleryIndexReader(Generic[E]):
    """Reads and caches galleries of a kind. Safe for concurrent tasks: readers of the same gallery share one fetch."""

    def __init__(
        self,
        kind: IndexKind[E],
        config: GalleriesConfig,
        *,
        fetcher: IndexFetcher,
        clock: Clock,
        builtin: Path | None = None,
    ) -> None:
        self._kind = kind
        self._config = config
        self._fetcher = fetcher
        self._clock = clock
        self._opened_at = clock.now().timestamp()
        self._cache = IndexCache(config.cache)
        self._local = LocalIndexes(kind, config.max_bytes, builtin)
        self._copies: dict[_SourceKey, _Known[E]] = {}
        self._paused: dict[str, float] = {}
        self._flights: dict[tuple[_SourceKey, bool, timedelta], asyncio.Task[IndexReading[E]]] = {}
        self._last_problems: dict[_SourceKey, str] = {}

    async def read_all(
        self, sources: Sequence[GallerySource], *, force: bool, max_age: timedelta | None = None
    ) -> tuple[IndexReading[E], ...]:
        """Read these galleries. With `force` every place is asked for a newer version; otherwise a copy that was
        checked within `max_age`, by default that of the configuration, is not fetched again."""
        max_age = self._config.max_age if max_age is None else max_age
        async with task_group() as group:
            tasks = [
                group.create_task(self._join(source, force, max_age), name=f"gallery {source.name}")
                for source in sources
            ]
        return tuple(task.result() for task in tasks)

    async def last_copy(self, source: GallerySource, problem: str) -> IndexReading[E]:
        """Return what is known of a gallery without asking its places; `problem` says why they are not waited for."""
        cached = await self._newest_known(source)
        if cached is None:
            return IndexReading(gallery=IndexContent(source=source), problem=problem)
        reading = _reading(cached)
        return replace(reading, gallery=replace(reading.gallery, source=source), is_stale=True, problem=problem)

    async def close(self) -> None:
        """Cancel the fetches in progress."""
        await end_tasks(*self._flights.values())

    async def _join(self, source: GallerySource, force: bool, max_age: timedelta) -> IndexReading[E]:
        """Start a reading, or join one in progress."""
        flight = (_key_of(source), force, max_age)
        task = self._flights.get(flight)
        if task is None:
            task = start_task(self._look(source, force=force, max_age=max_age), name=f"read gallery {source.name}")
            self._flights[flight] = task
            task.add_done_callback(lambda _: self._flights.pop(flight, None))
        # Shielded: a cancelled reader must not cancel the fetch for the others. `close` cancels it.
        reading = await asyncio.shield(task)
        return replace(reading, gallery=replace(reading.gallery, source=source))

    async def _look(self, source: GallerySource, *, force: bool, max_age: timedelta) -> IndexReading[E]:
        """Read a gallery: from the first place that answers, or the last good copy if it is fresh or none does."""
        try:
            places = [read_place(url) for url in source.urls]
        except CorralError as error:
            return self._nothing(source, error.message)
        if not places:
            return self._nothing(source, "it has no url")
        cached = await self._newest_known(source)
        problems: list[str] = []
        now = self._clock.monotonic()
        # Places that failed recently are skipped, unless there is no alternative.
        rested = [place for place in places if force or place.is_local or self._paused.get(place.url, now) <= now]
        for place in rested if rested or cached is not None else places:
            if cached is not None and not force and not place.is_local and self._is_fresh(cached, max_age):
                return replace(_reading(cached), problem="; ".join(problems))
            try:
                reading = await self._from_place(source, place, cached)
            except CorralError as error:
                problems.append(f"{place.shown} {error.message}")
                self._paused[place.url] = self._clock.monotonic() + self._config.pause.total_seconds()
            else:
                self._paused.pop(place.url, None)
                return self._logged(replace(reading, problem="; ".join(problems)))
        problem = "; ".join(problems) or self._last_problems.get(_key_of(source), "its places failed a moment ago")
        if cached is None:
            return self._nothing(source, problem)
        return self._logged(replace(_reading(cached), is_stale=True, problem=problem))

    async def _newest_known(self, source: GallerySource) -> _Known[E] | None:
        """Return the copy in memory, unless another process stored a newer one on disk."""
        cached = self._copies.get(_key_of(source))
        mark = await asyncio.to_thread(self._cache.mark, source.url)
        if mark is None or (cached is not None and cached.mark == mark):
            return cached
        copy = await asyncio.to_thread(self._cache.load, source.url)
        places = [read_place(url) for url in source.urls]
        # Galleries may share a URL but have different mirrors: a copy from another's mirror is not ours.
        if copy is None or not any(place.is_reference or place.url == copy.url for place in places):
            return cached
        try:
            gallery = await asyncio.to_thread(self._kind.content, copy.content, source)
        except CorralError:
            return cached
        return self._remember(source, _Known(copy=copy, gallery=gallery, mark=mark))

    def _remember(self, source: GallerySource, cached: _Known[E]) -> _Known[E]:
        key = _key_of(source)
        self._copies.pop(key, None)
        self._copies[key] = cached
        while len(self._copies) > _MOST_KNOWN:
            del self._copies[next(iter(self._copies))]
        return cached

    def _is_fresh(self, cached: _Known[E], max_age: timedelta) -> bool:
        """Whether a copy is young enough. A time in the future means a wrong clock, and is not fresh; nor is what was
        checked before this process started, unless earlier checks are trusted."""
        age = self._clock.now().timestamp() - cached.copy.checked_at
        is_ours = cached.is_checked_here or cached.copy.checked_at >= self._opened_at
        return (is_ours or self._config.trusts_earlier_checks) and 0 <= age < max_age.total_seconds()

    async def _from_place(
        self, source: GallerySource, place: IndexLocation, cached: _Known[E] | None
    ) -> IndexReading[E]:
        if place.is_local:
            gallery = await asyncio.to_thread(self._local.read, place, source)
            return IndexReading(gallery=gallery, url=place.url)
        now = self._clock.now().timestamp()
        copy = await self._fetcher.fetch(place, None if cached is None else cached.copy, now=now)
        if cached is not None and copy.content == cached.copy.content:
            return _reading(await self._keep(source, copy, cached.gallery))
        gallery = await asyncio.to_thread(self._kind.content, copy.content, source)
        return replace(_reading(await self._keep(source, copy, gallery)), is_new=True)

    async def _keep(self, source: GallerySource, copy: Copy, gallery: IndexContent[E]) -> _Known[E]:
        await asyncio.to_thread(self._cache.store, source.url, copy)
        mark = await asyncio.to_thread(self._cache.mark, source.url)
        return self._remember(source, _Known(copy=copy, gallery=gallery, mark=mark, is_checked_here=True))

    def _nothing(self, source: GallerySource, problem: str) -> IndexReading[E]:
        return self._logged(IndexReading(gallery=IndexContent(source=source), problem=problem))

    def _logged(self, reading: IndexReading[E]) -> IndexReading[E]:
        """Log a reading's state when it changed: a source that stays unavailable is logged once."""
        key, fields = _key_of(reading.source), {"gallery": reading.source.name}
        if reading.is_new:
            entries = len(reading.gallery.entries)
            log.info("gallery read", extra={"event": "gallery.read", "entries": entries, **fields})
        if reading.problem and self._last_problems.get(key) != reading.problem:
            log.warning("gallery is away: %s", reading.problem, extra={"event": "gallery.away", **fields})
        if reading.problem:
            self._last_problems[key] = reading.problem
        else:
            self._last_problems.pop(key, None)
        return reading


def _key_of(source: GallerySource) -> _SourceKey:
    return source.name, source.url, source.mirrors


def _reading(cached: _Known[E]) -> IndexReading[E]:
    return IndexReading(
        gallery=cached.gallery,
        url=cached.copy.url,
        fetched_at=datetime.fromtimestamp(cached.copy.fetched_at, UTC),
        checked_at=datetime.fromtimestamp(cached.copy.checked_at, UTC),
    )


class Galleries(GalleryIndexReader[GalleryEntry]):
    """Reads and caches the indexes of all galleries of backends."""

    def __init__(self, config: GalleriesConfig, *, fetcher: IndexFetcher, clock: Clock) -> None:
        super().__init__(BACKENDS, config, fetcher=fetcher, clock=clock, builtin=config.builtin)
        self.sources: Sequence[GallerySource] = config.sources
        """The configured galleries, in order of precedence."""

    async def read(self, sources: Sequence[GallerySource] | None = None) -> Readings:
        """Read these galleries, or the configured ones. A copy that is fresh enough is not fetched again."""
        return Readings(readings=await self.read_all(self.sources if sources is None else sources, force=False))

    async def refresh(self, sources: Sequence[GallerySource] | None = None) -> Readings:
        """Read these galleries, or the configured ones, and ask every place for a newer version."""
        return Readings(readings=await self.read_all(self.sources if sources is None else sources, force=True))

    async def recheck(self, readings: Readings) -> Readings:
        """Return these readings again, and ask the places of copies that were not checked a moment ago: a name that
        none of them has may be new. Copies whose places are away are not asked about again."""
        now, least = self._clock.now(), self._config.recheck_after
        is_old = [
            reading.checked_at is not None and not reading.is_stale and reading.age(now) >= least
            for reading in readings.readings
        ]
        if not any(is_old):
            return readings
        old = [reading.source for reading, old in zip(readings.readings, is_old, strict=True) if old]
        again = iter(await self.read_all(old, force=False, max_age=least))
        return Readings(
            readings=tuple(
                next(again) if old else reading for reading, old in zip(readings.readings, is_old, strict=True)
            )
        )


@asynccontextmanager
async def open_fetcher(
    config: GalleriesConfig,
    registry: ArtefactReader,
    check_redirect: Callable[[str], Awaitable[None]] | None = None,
) -> AsyncIterator[IndexFetcher]:
    """Open a fetcher with an HTTP session of its own."""
    async with open_session(
        timeout=config.timeout,
        connect_timeout=config.connect_timeout,
        trust_env=True,
        check_redirect=check_redirect,
        connector=stranger_connector(),
    ) as session:
        yield IndexFetcher(session, registry=registry, timeout=config.timeout, most_bytes=config.max_bytes)


@asynccontextmanager
async def open_galleries(
    config: GalleriesConfig, *, registry: ArtefactReader, clock: Clock
) -> AsyncIterator[Galleries]:
    """Open galleries of backends with an HTTP session of their own."""
    async with open_fetcher(config, registry) as fetcher:
        galleries = Galleries(config, fetcher=fetcher, clock=clock)
        try:
            yield galleries
        finally:
            await galleries.close()
