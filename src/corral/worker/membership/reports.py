"""Reports to the frontend as soon as something changes: a process that ended by itself, the backends on disk."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from corral.base.errors import CorralError
from corral.wire import go_json, subjects
from corral.wire.backends import InstalledBackend, InventoryReport, fingerprint
from corral.wire.keys import hash_secret
from corral.wire.registration import Feature
from corral.wire.replicas import ReplicaExited
from corral.worker.installing.progress import Publisher
from corral.worker.membership.registration import Presence
from corral.worker.processes.process import Ending, Launch

log = logging.getLogger(__name__)


class ExitReports:
    """Publishes one message for each process that ended by itself."""

    def __init__(self, bus: Publisher, presence: Presence) -> None:
        self._bus = bus
        self._presence = presence

    async def tell(self, launch: Launch, ending: Ending) -> None:
        member = self._presence.member
        if member is None or Feature.REPLICA_EXITS not in member.features:
            return
        report = ReplicaExited(
            model_id=launch.key.model_id,
            replica_index=launch.key.replica_index,
            address=launch.address,
            key_hash=hash_secret(launch.http_key),
            reason=ending.reason,
            tail=list(ending.tail),
        )
        try:
            await self._bus.publish(subjects.replica_exited(member.node_id), msgspec.json.encode(report))
        except CorralError as error:
            log.info("an exit was not reported: %s", error, extra={"event": "backend.exit_unsaid"})


class InventoryReports:
    def __init__(
        self, listing: Callable[[], Awaitable[list[InstalledBackend]]], bus: Publisher, presence: Presence
    ) -> None:
        self._listing = listing
        self._bus = bus
        self._presence = presence
        self._reported: tuple[str, str] | None = None
        """The node id and the fingerprint of the last report."""
        self.fingerprint = ""
        """Fingerprint of the last inventory; empty while nothing is known or the disk cannot be read."""
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Ask for another look at the disk soon."""
        self._rung.set()

    def tell(self) -> str:
        """Return the fingerprint of the last inventory for a heartbeat, and ask for another look at the disk."""
        self.ring()
        return self.fingerprint

    async def run(self) -> None:
        """Send reports of the backends on disk until cancelled."""
        while True:
            await self._rung.wait()
            self._rung.clear()
            try:
                await self.look()
            except Exception:
                log.exception("the inventory was not looked at", extra={"event": "inventory.failed"})

    async def look(self) -> None:
        """List the backends on the disk, and report them if they are others than in the last report."""
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
        if self._reported == (member.node_id, self.fingerprint):
            return
        try:
            report = go_json.encode(InventoryReport(backends=backends))
            await self._bus.publish(subjects.inventory(member.node_id), report)
        except CorralError as error:
            log.debug("the inventory could not be reported: %s", error, extra={"event": "inventory.unsaid"})
            return
        self._reported = (member.node_id, self.fingerprint)
