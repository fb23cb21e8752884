"""What control lacks at the moment, for readiness probes and for its gateways."""

import asyncio
from contextlib import suppress

from corral.base.errors import CorralError
from corral.base.tasks import Poke, SharedThread
from corral.bus.port import Bus
from corral.frontend.diagnosis.disk import FULL, LOW, PERIOD, SILENT, UNREADABLE, DataDisk
from corral.frontend.record.room import Loop, RecordRoom
from corral.frontend.store.db import Database


class ControlReadiness:
    """The words are for everybody: no address and no reason that a stranger should not read."""

    def __init__(self, database: Database, bus: Bus, disk: DataDisk) -> None:
        self._database = database
        self._bus = bus
        self.disk = disk
        self.deep_check = asyncio.Lock()
        """Held while somebody has the whole database read."""
        self.deep_thread = SharedThread("deep check")

    async def problems(self) -> list[str]:
        """Nothing when the database answers and has room, NATS is connected, and the disk is not full."""
        with suppress(CorralError):
            await self._database.check()
        await self.disk.look()
        return self.known()

    def known(self) -> list[str]:
        """Return the problems as of the last looks, some seconds ago while control runs."""
        reasons = {
            "NATS is not connected": not self._bus.connected,
            "the database does not answer": not self._database.is_answering,
            "the database has no room to write": not self._database.has_room,
            FULL: self.disk.is_full,
            SILENT: self.disk.is_silent,
            UNREADABLE: bool(self.disk.unreadable) and not self.disk.is_silent,
        }
        return [reason for reason, holds in reasons.items() if holds]

    def warnings(self) -> list[str]:
        """What will become a problem if nobody does anything about it."""
        return [LOW] if self.disk.is_low and not self.disk.is_full else []

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        return {"disk": record.every(PERIOD, Poke(), self._look, "disk")}

    async def _look(self) -> None:
        await self.disk.look()
