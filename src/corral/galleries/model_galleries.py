"""Reads galleries of models, and the base definitions that their entries name.

Definitions are fetched and cached as indexes are. A file beside the index stands in for one that is away, so that a
mirror of a whole directory is enough.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput
from corral.base.own_network import is_own_network
from corral.base.private_files import read_bounded
from corral.base.tasks import task_group
from corral.base.words import format_size
from corral.base.yaml_values import as_value
from corral.galleries.cache import Copy, IndexCache
from corral.galleries.config import GalleriesConfig
from corral.galleries.fetching import ArtefactReader, IndexFetcher
from corral.galleries.galleries import GalleryIndexReader, open_fetcher
from corral.galleries.gallery import GallerySource
from corral.galleries.index_document import BUILT_IN_FILES, IndexKind
from corral.galleries.model_catalogue import ModelCatalogue
from corral.galleries.model_check import Definitions
from corral.galleries.model_entries import NO_BASE, BaseDefinition, GalleryModel, read_definition, read_model_entry
from corral.galleries.places import IndexLocation, read_place
from corral.galleries.readings import IndexReading, failures_of

log = logging.getLogger(__name__)

LARGEST_DEFINITION: Final = 1024 * 1024
_AT_ONCE: Final = 8
_MOST_KNOWN: Final = 1024
_FETCHED_FOR: Final = ContextVar("the index whose definition is being fetched", default="")

ModelGalleryReading = IndexReading[GalleryModel]
"""One gallery of models as last read."""

MODELS: Final = IndexKind(
    thing="model",
    builtin=BUILT_IN_FILES / "models.yaml",
    scalar=as_value,
    read=read_model_entry,
    settle=lambda entry, index: replace(entry, index_path=str(index)),
)


class ModelReadings(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Several galleries of models, in order of precedence."""

    readings: tuple[ModelGalleryReading, ...] = msgspec.field(default=())

    @cached_property
    def catalogue(self) -> ModelCatalogue:
        return ModelCatalogue(reading.gallery for reading in self.readings)

    @property
    def failures(self) -> tuple[str, ...]:
        """One sentence per gallery that could not be read: a name may be missing for that reason."""
        return failures_of(self.readings)

    def url_of(self, entry: GalleryModel) -> str:
        """Return where the gallery of an entry was read from; empty if the entry is of no known gallery."""
        return next((reading.url for reading in self.readings if reading.source.name == entry.gallery), "")


class _KnownDefinition(msgspec.Struct, frozen=True, kw_only=True):
    definition: BaseDefinition
    checked_at: float


class ModelGalleries(GalleryIndexReader[GalleryModel]):
    """The galleries of models, and their base definitions."""

    def __init__(self, config: GalleriesConfig, *, fetcher: IndexFetcher, clock: Clock) -> None:
        super().__init__(MODELS, config, fetcher=fetcher, clock=clock)
        self.sources: Sequence[GallerySource] = config.model_sources
        """The configured galleries, in order of precedence."""
        self._definitions: dict[str, _KnownDefinition] = {}
        self._definition_cache = IndexCache(config.cache)
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def read(self, sources: Sequence[GallerySource] | None = None) -> ModelReadings:
        """Read these galleries, or the configured ones. A copy that is fresh enough is not fetched again."""
        return ModelReadings(readings=await self.read_all(self.sources if sources is None else sources, force=False))

    async def refresh(self, sources: Sequence[GallerySource] | None = None) -> ModelReadings:
        """Read these galleries, or the configured ones, and ask every place for a newer version."""
        return ModelReadings(readings=await self.read_all(self.sources if sources is None else sources, force=True))

    async def definition(self, entry: GalleryModel, index_url: str) -> BaseDefinition:
        """Return the base of an entry; NO_BASE if it names none. `index_url` is where its index was read from.

        Raise CorralError with a sentence that continues after the url of the base.
        """
        if not entry.url:
            return NO_BASE
        if entry.index_path:
            beside = Path(entry.index_path).parent / _file_name(entry.url)
            if await asyncio.to_thread(beside.is_file):
                return await asyncio.to_thread(_read_local, beside)
        place = read_place(entry.url)
        if place.is_local:
            if not entry.index_path or place.path is None:
                raise InvalidInput("", "is a file of this machine, which a gallery from elsewhere must not name")
            return await asyncio.to_thread(_read_local, place.path)
        return await self._remote(place, index_url)

    async def definitions(self, reading: ModelGalleryReading) -> Definitions:
        """Return the bases of all entries of a gallery by their urls: a definition, or why there is none."""
        entries = {entry.url: entry for entry in reading.gallery.entries if entry.url}
        results: dict[str, BaseDefinition | str] = {}

        async def look(entry: GalleryModel) -> None:
            try:
                results[entry.url] = await self.definition(entry, reading.url)
            except CorralError as error:
                results[entry.url] = error.message

        async with task_group() as group:
            for url, entry in entries.items():
                group.create_task(look(entry), name=f"definition {url}")
        return results

    async def _remote(self, place: IndexLocation, index_url: str) -> BaseDefinition:
        """Fetch a definition, or the file of its name beside the index where it cannot be had."""
        cached = self._definitions.get(place.url)
        now = self._clock.now().timestamp()
        if cached is not None and 0 <= now - cached.checked_at < self._config.max_age.total_seconds():
            return cached.definition
        try:
            definition = await self._fetched(place, index_url, now)
        except CorralError as error:
            beside = _beside(index_url, place)
            if beside is None:
                return await self._last_good(place, error)
            try:
                definition = await self._fetched(beside, index_url, now)
            except CorralError:
                return await self._last_good(place, error)
        if len(self._definitions) >= _MOST_KNOWN:
            self._definitions.clear()
        self._definitions[place.url] = _KnownDefinition(definition=definition, checked_at=now)
        return definition

    async def _fetched(self, place: IndexLocation, index_url: str, now: float) -> BaseDefinition:
        async with self._slots:
            await check_reachable(place.url, index_url)
            cached = await asyncio.to_thread(self._definition_cache.load, place.url)
            token = _FETCHED_FOR.set(index_url or place.url)
            try:
                copy = await self._fetcher.fetch(place, cached, now=now)
            finally:
                _FETCHED_FOR.reset(token)
            definition = _read(copy)
            if cached is None or copy.content != cached.content:
                await asyncio.to_thread(self._definition_cache.store, place.url, copy)
            return definition

    async def _last_good(self, place: IndexLocation, error: CorralError) -> BaseDefinition:
        """Return the copy that was fetched last. Raise the error if there is none."""
        cached = await asyncio.to_thread(self._definition_cache.load, place.url)
        if cached is None:
            raise error
        log.warning(
            "a base definition is away: %s %s",
            place.shown,
            error.message,
            extra={"event": "gallery.definition_away"},
        )
        return _read(cached)


def _read(copy: Copy) -> BaseDefinition:
    if len(copy.content) > LARGEST_DEFINITION:
        raise InvalidInput("", f"is larger than {format_size(LARGEST_DEFINITION)}, which no definition needs")
    return read_definition(copy.content)


def _read_local(path: Path) -> BaseDefinition:
    try:
        content = read_bounded(path, LARGEST_DEFINITION)
    except OSError as error:
        raise InvalidInput("", f"cannot be read: {error.strerror or error}") from error
    if content is None:
        raise InvalidInput("", f"is larger than {format_size(LARGEST_DEFINITION)}, which no definition needs")
    return read_definition(content)


def _file_name(url: str) -> str:
    """Return the name of the file that a url ends with, without the branch of `github:`."""
    path = url.partition("@")[0] if url.startswith("github:") else urlsplit(url).path
    return PurePosixPath(path).name or "."


def _beside(index_url: str, place: IndexLocation) -> IndexLocation | None:
    """Return the file of the same name beside an index on a web server; None if that is the same place, or none."""
    name = _file_name(place.url)
    if not index_url.startswith(("http://", "https://")) or name == ".":
        return None
    beside = read_place(index_url.partition("?")[0].rpartition("/")[0] + "/" + name)
    return None if beside.url == place.url else beside


async def check_reachable(url: str, index_url: str) -> None:
    """Raise InvalidInput if a gallery from the internet names a place of the own network, where it has no business.

    An index of the own network, or a file, may name whatever it likes. Names are resolved here, unless a proxy does.
    """
    try:
        host, index_host = urlsplit(url).hostname or "", urlsplit(index_url).hostname or ""
    except ValueError as error:
        raise InvalidInput("", f"is no URL: {error}") from None
    if not index_host or host == index_host or await is_own_network(index_host):
        return
    if await is_own_network(host):
        raise InvalidInput("", f"is in the own network ({host}), which a gallery from elsewhere must not name")


async def _check_redirect(url: str) -> None:
    if index_url := _FETCHED_FOR.get():
        await check_reachable(url, index_url)


@asynccontextmanager
async def open_model_galleries(
    config: GalleriesConfig, *, registry: ArtefactReader, clock: Clock
) -> AsyncIterator[ModelGalleries]:
    """Open galleries of models with an HTTP session of their own."""
    async with open_fetcher(config, registry, _check_redirect) as fetcher:
        galleries = ModelGalleries(config, fetcher=fetcher, clock=clock)
        try:
            yield galleries
        finally:
            await galleries.close()
