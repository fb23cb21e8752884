"""What nodes have on their disks: asked for, stored, and polled. Silent nodes delay nobody."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.tasks import task_group
from corral.control.fleet import Fleet, SeenNode
from corral.control.lanes import Lane
from corral.control.node_client import LIST_WITHIN, NodeClient
from corral.domain.backend import BackendEntry, Inventory, Proven, prove
from corral.domain.node import NodeStatus, NodeType
from corral.protocol.inventory import InstalledBackend
from corral.state.intents import Intents
from corral.state.inventories import Inventories

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=30)
LISTED: Final = frozenset({NodeStatus.HEALTHY, NodeStatus.UNHEALTHY})
"""Whose backends are asked for: not of those that are gone, nor of those that people are about to take away."""
_SLOTS: Final = 256
_SOON: Final = timedelta(milliseconds=500)


class InventoryKeeper:
    def __init__(
        self, inventories: Inventories, intents: Intents, fleet: Fleet, client: NodeClient, clock: Clock
    ) -> None:
        self._inventories = inventories
        self._intents = intents
        self._fleet = fleet
        self._client = client
        self._clock = clock
        self._lane = Lane(_SLOTS, patience=_SOON)

    async def ask(self, node_id: NodeId) -> Inventory:
        """What a node has now; the caller stores it. Fails as calls to nodes do."""
        asked_at = self._clock.now()
        return _inventory(await self._client.backends(node_id), asked_at)

    async def known(self, ids: Sequence[NodeId]) -> dict[NodeId, Inventory]:
        """The last reports, however old."""
        return await self._inventories.of(ids) if ids else {}

    async def sweep(self) -> None:
        """Ask everybody once. What a report proves of requests that were left running is looked at next."""
        nodes = [one for one in await self._fleet.all() if is_listed(one)]
        await self.refresh([one.node.id for one in nodes])

    async def refresh(self, ids: Sequence[NodeId], *, within: timedelta = LIST_WITHIN) -> dict[NodeId, Inventory]:
        """Ask these nodes at once, and store what they say; those that say nothing in time are left out."""
        found: dict[NodeId, Inventory] = {}

        async def look(node_id: NodeId) -> None:
            try:
                async with self._lane.slot():
                    asked_at = self._clock.now()
                    entries = await self._client.glimpse_backends(node_id, within=within)
                found[node_id] = _inventory(entries, asked_at)
            except CorralError as error:
                log.debug("no inventory: %s", error, extra={"event": "inventory.missing", "node": node_id})

        async with task_group() as group:
            for node_id in ids:
                group.create_task(look(node_id), name=f"inventory of {node_id}")
        await self._inventories.put(found)
        if found:
            await self._intents.look_at(list(found), at=self._clock.now())
            await self._end_failed_installs(found)
        return found

    async def _end_failed_installs(self, found: Mapping[NodeId, Inventory]) -> None:
        """What a report shows to be there need not wait for its next try, as with LocalAI: only installs."""
        failed = await self._intents.failed_installs(list(found))
        there = [one for one in failed if isinstance(prove(one.wish, found[one.node_id], one.before), Proven)]
        if there:
            await self._intents.hurry(there, at=self._clock.now())


def is_listed(seen: SeenNode) -> bool:
    return seen.node.type is NodeType.BACKEND and seen.status in LISTED


def _inventory(entries: Sequence[InstalledBackend], seen_at: datetime) -> Inventory:
    return Inventory(entries=tuple(map(_entry, entries)), seen_at=seen_at)


def _entry(told: InstalledBackend) -> BackendEntry:
    return BackendEntry(
        name=told.name,
        is_system=told.is_system,
        is_meta=told.is_meta,
        installed_at=told.installed_at,
        gallery_url=told.gallery_url,
        version=told.version,
        uri=told.uri,
        digest=told.digest,
    )
