"""A gallery that is always at hand: for frontends that shall know backends without reading any index."""

from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.gallery import GalleryContent, GalleryEntry, GallerySource
from corral.galleries.readings import GalleryReading, Readings


class Shelf:
    """Gives the same entries to whoever looks."""

    def __init__(self, source: GallerySource, *entries: GalleryEntry) -> None:
        self._gallery = GalleryContent(source=source, entries=entries)
        self.closed = False
        """Whether nothing can be read."""

    async def catalogue(self) -> BackendCatalogue | None:
        return None if self.closed else BackendCatalogue([self._gallery])

    async def newest(self) -> BackendCatalogue | None:
        return await self.catalogue()

    async def readings(self, *, newest: bool = False) -> Readings | None:
        if self.closed:
            return None
        return Readings(readings=(GalleryReading(gallery=self._gallery, url=self._gallery.source.url),))
