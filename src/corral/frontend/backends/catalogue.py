"""The galleries as a frontend sees them: good enough to resolve names, and never waited for by people."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from corral.base.errors import CorralError
from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.galleries import Galleries
from corral.galleries.readings import Readings

log = logging.getLogger(__name__)

_PATIENCE: Final = timedelta(seconds=3)
"""How long an operation waits for galleries that are away, before only the nodes can tell."""
_PATIENCE_BESIDE: Final = timedelta(minutes=2)
"""The same for what nobody waits for."""
_PATIENCE_ASKED: Final = timedelta(seconds=20)
"""How long a person waits who asked for the newest version: less than clients wait for an answer."""


class GalleryCatalogue:
    """Reads on in the background when it takes too long, so that the next one finds it."""

    def __init__(self, galleries: Galleries) -> None:
        self._galleries = galleries

    async def catalogue(self) -> BackendCatalogue | None:
        """None when nothing is known: names are then stored as they were given, and nothing is judged."""
        return await self._within(_PATIENCE, self._galleries.read)

    async def newest(self) -> BackendCatalogue | None:
        """The same, after asking every gallery whether there is something new."""
        return await self._within(_PATIENCE_BESIDE, self._galleries.refresh)

    async def readings(self, *, newest: bool = False) -> Readings | None:
        """Each gallery with its age and its problem; None when they are not read in time."""
        if newest:
            return await self._read(_PATIENCE_ASKED, self._galleries.refresh)
        return await self._read(_PATIENCE, self._galleries.read)

    async def _within(self, patience: timedelta, read: Callable[[], Awaitable[Readings]]) -> BackendCatalogue | None:
        readings = await self._read(patience, read)
        if readings is None or not any(one.is_known for one in readings.readings):
            return None
        return readings.catalogue

    async def _read(self, patience: timedelta, read: Callable[[], Awaitable[Readings]]) -> Readings | None:
        try:
            async with asyncio.timeout(patience.total_seconds()):
                return await read()
        except (TimeoutError, CorralError) as error:
            log.info("galleries are not read: %s", error, extra={"event": "operation.without_galleries"})
            return None
