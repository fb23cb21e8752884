"""Objects of single requests that are left in the storage: whoever stored one may have died before it was fetched.

LocalAI's frontends do the same, after the same time. One of Corral's is enough for all.
"""

import logging
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.files.storage import SharedStorage, StorageUnavailable
from corral.frontend.store.leases import Leader

log = logging.getLogger(__name__)

LEFT_PERIOD: Final = timedelta(minutes=15)
_OLD: Final = timedelta(hours=1)
_PREFIX: Final = "ephemeral/"


class LeftObjects:
    def __init__(self, storage: SharedStorage, leader: Leader, clock: Clock) -> None:
        self._storage = storage
        self._leader = leader
        self._clock = clock

    async def sweep(self) -> None:
        """Remove what is older than any request. A storage that is away is for the next time."""
        if not await self._leader.holds("left objects", lasts=LEFT_PERIOD * 2, left=LEFT_PERIOD / 2):
            return
        count = 0
        try:
            async for keys in self._storage.older_than(_PREFIX, self._clock.now() - _OLD):
                await self._storage.delete(keys)
                count += len(keys)
        except StorageUnavailable as error:
            log.info("the object storage was not swept: %s", error, extra={"event": "objects.not_swept"})
        if count:
            log.info("removed %d objects of requests", count, extra={"event": "objects.swept", "count": count})
