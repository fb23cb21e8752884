"""The galleries as a frontend sees them: good enough to resolve names, and never waited for."""

import asyncio
import logging
from datetime import timedelta
from typing import Final

from corral.base.errors import CorralError
from corral.domain.backend_catalogue import BackendCatalogue
from corral.galleries.galleries import Galleries

log = logging.getLogger(__name__)

_PATIENCE: Final = timedelta(seconds=3)
"""How long an operation waits for galleries that are away, before only the nodes can tell."""


class GalleryCatalogue:
    """Reads on in the background when it takes too long, so that the next one finds it."""

    def __init__(self, galleries: Galleries) -> None:
        self._galleries = galleries

    async def catalogue(self) -> BackendCatalogue | None:
        """None when nothing is known: names are then stored as they were given, and nothing is judged."""
        try:
            async with asyncio.timeout(_PATIENCE.total_seconds()):
                readings = await self._galleries.read()
        except (TimeoutError, CorralError) as error:
            log.info("galleries are not read: %s", error, extra={"event": "operation.without_galleries"})
            return None
        return readings.catalogue if any(one.is_known for one in readings.readings) else None
