"""Telling the frontend which backends are on the disk, whenever that changed, where it wants to be told.

The fingerprint of what was found last goes with each heartbeat: so a report that got lost costs one interval, and the
frontend need not ask. The disk is looked at beside the heartbeats, since it may be slow: after every change, and once
for each of them, since people may change something by hand.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from corral.base.errors import CorralError
from corral.wire import go_json, subjects
from corral.wire.inventory import InstalledBackend, InventoryReport, fingerprint
from corral.wire.registration import Feature
from corral.worker.membership.presence import Presence

log = logging.getLogger(__name__)


class InventoryPublisher(Protocol):
    async def publish(self, subject: str, data: bytes) -> None: ...


class InventoryReports:
    def __init__(
        self, listing: Callable[[], Awaitable[list[InstalledBackend]]], bus: InventoryPublisher, presence: Presence
    ) -> None:
        self._listing = listing
        self._bus = bus
        self._presence = presence
        self._told: tuple[str, str] | None = None
        """To whom it was said, and what."""
        self.fingerprint = ""
        """Fingerprint of the last inventory; empty while nothing is known or the disk cannot be read."""
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """The disk shall be looked at."""
        self._rung.set()

    def tell(self) -> str:
        """For a heartbeat: the fingerprint of what was found last, before another look."""
        self.ring()
        return self.fingerprint

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._rung.wait()
            self._rung.clear()
            try:
                await self.look()
            except Exception:
                log.exception("the inventory was not looked at", extra={"event": "inventory.failed"})

    async def look(self) -> None:
        """See what is on the disk, and say so if it is something else than was said last."""
        try:
            backends = await self._listing()
        except (CorralError, OSError) as error:
            self.fingerprint = ""
            log.info("the backends could not be listed: %s", error, extra={"event": "inventory.unread"})
            return
        self.fingerprint = fingerprint(backends)
        member = self._presence.member
        if member is None or Feature.INVENTORY not in member.features:
            return
        if self._told == (member.node_id, self.fingerprint):
            return
        try:
            report = go_json.encode(InventoryReport(backends=backends))
            await self._bus.publish(subjects.inventory(member.node_id), report)
        except CorralError as error:
            log.debug("the inventory was not told: %s", error, extra={"event": "inventory.unsaid"})
            return
        self._told = (member.node_id, self.fingerprint)
