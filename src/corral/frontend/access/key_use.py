"""When keys were used last: noted in memory with every request, and written for all of them together once a minute.

Requests to models are told by the gateways, whose reports name the keys. What a frontend noted since its last write is
lost if it is killed; who stops it loses nothing.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import KeyId
from corral.base.tasks import Poke
from corral.frontend.access.store.keys import Keys
from corral.frontend.record.room import Loop, RecordRoom
from corral.wire.view import GatewayReport

log = logging.getLogger(__name__)

_PERIOD: Final = timedelta(minutes=1)


class KeyUse:
    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._unwritten: dict[KeyId, datetime] = {}

    def note(self, key_ids: Iterable[KeyId]) -> None:
        """These are used now."""
        self._unwritten.update(dict.fromkeys(key_ids, self._clock.now()))

    def hear_report(self, report: GatewayReport) -> None:
        self.note({KeyId(finished.key) for finished in report.finished if finished.key})

    async def last(self) -> dict[KeyId, datetime]:
        """When each key was used last, as far as it is written or was noted here; without those that never were."""
        written = await self._keys.uses()
        newer = {id: at for id, at in self._unwritten.items() if id not in written or written[id] < at}
        return written | newer

    async def write(self) -> None:
        """Have written what was noted so far. What cannot be written now is kept."""
        batch, self._unwritten = self._unwritten, {}
        if not batch:
            return
        try:
            await self._keys.note_uses(batch)
        except BaseException:
            self._unwritten = batch | self._unwritten
            raise

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        write = record.every(_PERIOD, Poke(), self.write, "uses of keys")

        async def run() -> None:
            try:
                await write()
            finally:
                try:
                    await self.write()
                except CorralError as error:
                    log.warning("uses of keys are lost: %s", error, extra={"event": "keys.uses_lost"})

        return {"uses of keys": run}
