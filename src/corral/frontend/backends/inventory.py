"""What nodes have on their disks: reported by them or asked for, and stored. Silent nodes delay nobody."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import convert
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput
from corral.base.ids import NodeId
from corral.base.queues import Lane
from corral.base.tasks import Poke, task_group
from corral.bus.port import Message
from corral.frontend.backends.decide.backend import Artefact, BackendEntry, Inventory, artefact_of, evidence_of
from corral.frontend.backends.store import Inventories
from corral.frontend.nodes.client import LIST_WITHIN, NodeClient
from corral.frontend.nodes.decide.node import NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.report_intake import ReportIntake, ReportLimits
from corral.frontend.operations.decide.intent import IntentKind, Proven, Verb
from corral.frontend.operations.store.intents import Intents
from corral.frontend.record.feed import Feed
from corral.wire import go_json, subjects
from corral.wire.backends import InstalledBackend, InventoryReport, fingerprint

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=30)
LISTED: Final = frozenset({NodeStatus.HEALTHY, NodeStatus.UNHEALTHY})
"""Whose backends are asked for: not of those that are gone, nor of those that people are about to take away."""
_SLOTS: Final = 256
_SOON: Final = timedelta(milliseconds=500)
_SPACING: Final = 0.2
"""Seconds in which what many nodes say is stored together."""


INVENTORY_LIMITS: Final = ReportLimits(reports_per_node=10, reports_in_all=None)
"""Ten changes of a disk in ten seconds: more than installs can do. What is dropped is asked for: the fingerprint of the
next heartbeat differs. A thousand nodes that start together, with a hundred backends each, stay below the bytes."""


class InventoryKeeper:
    """Keeps the last report of every node. Corral's workers say when it changed, and a fingerprint of it with each
    heartbeat: they are asked only when that is another one than ours. All others are asked once in a period.
    """

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        inventories: Inventories,
        intents: Intents,
        fleet: Fleet,
        client: NodeClient,
        clock: Clock,
        *,
        dispatcher: Poke,
        feed: Feed,
    ) -> None:
        self._inventories = inventories
        self._intents = intents
        self._fleet = fleet
        self._client = client
        self._clock = clock
        self._dispatcher = dispatcher
        self._feed = feed
        self._lane = Lane(_SLOTS, patience=_SOON)
        self._intake = ReportIntake(clock, INVENTORY_LIMITS, _warn_dropped)
        self.reported = Poke()
        """Rung when reports came in: what rules demand may be missing."""
        self._stored_hashes: dict[NodeId, str] = {}
        """Fingerprints of what is stored."""
        self._reported_hashes: dict[NodeId, str] = {}
        """Fingerprints from the last heartbeats that came here."""
        self._differing: set[NodeId] = set()
        self._reports: dict[NodeId, Inventory] = {}
        """What nodes said by themselves, and is not stored yet."""
        self._swept_at: datetime | None = None
        self.poke = Poke()
        self.news = Poke()

    async def ask(self, node_id: NodeId) -> Inventory:
        """What a node has now; the caller stores it. Fails as calls to nodes do."""
        asked_at = self._clock.now()
        return _inventory(await self._client.backends(node_id), asked_at)

    async def known(self, ids: Sequence[NodeId]) -> dict[NodeId, Inventory]:
        """The last reports, however old."""
        return await self._inventories.of(ids) if ids else {}

    async def aliased(self, alias: str) -> dict[NodeId, str]:
        """The backends that were installed under this alias, by node: reports have no aliases."""
        aliased = await self._intents.with_text(IntentKind.BACKEND, "alias", alias)
        return {intent.node_id: intent.subject for intent in aliased if not intent.verb.deletes}

    async def asked_for(self, backend: str) -> dict[NodeId, Artefact]:
        """What operations last asked for as this backend, unless it was deleted, by node."""
        intents = await self._intents.of_subject(IntentKind.BACKEND, backend)
        return {intent.node_id: artefact_of(intent.payload) for intent in intents if not intent.verb.deletes}

    # What nodes say by themselves.

    def hear(self, node_id: NodeId, reported: str) -> None:
        """A heartbeat came with this fingerprint; empty when the worker sends none."""
        if not reported:
            self._reported_hashes.pop(node_id, None)
            return
        self._reported_hashes[node_id] = reported
        if self._stored_hashes.get(node_id) != reported:
            self._differing.add(node_id)
            self.news.ring()

    async def on_message(self, message: Message) -> None:
        """A node reports by itself what it has. That is no proof: for proof it is asked."""
        node_id = subjects.node_of(message.subject)
        if not self._intake.takes(node_id, message.data):
            return
        try:
            report = go_json.decode(message.data, InventoryReport)
        except InvalidInput as error:
            log.warning("ignoring an inventory: %s", error, extra={"event": "inventory.unread", "node": node_id})
            return
        self._reports[node_id] = _inventory(report.backends, self._clock.now())
        self.news.ring()

    async def take_news(self) -> None:
        """Store what came within a moment, together."""
        await self._clock.sleep(_SPACING)
        await self.settle()

    async def settle(self) -> None:
        """Store what nodes said by themselves, and ask those whose fingerprint is still another one than ours."""
        reports, self._reports = self._reports, {}
        differing, self._differing = self._differing, set()
        strange = [id for id in reports if id not in self._stored_hashes]
        await self._read([*strange, *(id for id in differing if id not in self._stored_hashes)])
        new = {
            id: report for id, report in reports.items() if fingerprint(report.entries) != self._stored_hashes.get(id)
        }
        nodes = {id: seen.status for id, seen in (await self._fleet.some({*new, *differing})).items()}
        await self._store({id: new[id] for id in new if nodes.get(id, NodeStatus.PENDING) is not NodeStatus.PENDING})
        await self._read([id for id in differing if self._differs(id)])  # another frontend may have it already
        await self.refresh([id for id in differing if self._differs(id) and nodes.get(id) in LISTED])

    def _differs(self, node_id: NodeId) -> bool:
        return node_id in self._reported_hashes and self._reported_hashes[node_id] != self._stored_hashes.get(node_id)

    async def _read(self, ids: Sequence[NodeId]) -> None:
        self._stored_hashes |= {id: fingerprint(report.entries) for id, report in (await self.known(ids)).items()}

    # What they are asked.

    async def sweep(self) -> None:
        """Ask every node that does not report by itself. Intents that a report may prove become due."""
        nodes = [seen for seen in await self._fleet.all() if is_listed(seen)]
        stored = await self.known([seen.node.id for seen in nodes])
        self._stored_hashes = {id: fingerprint(report.entries) for id, report in stored.items()}
        self._reported_hashes = {
            seen.node.id: self._reported_hashes[seen.node.id] for seen in nodes if seen.node.id in self._reported_hashes
        }
        confirmed = [seen.node.id for seen in nodes if self._is_confirmed(seen)]
        await self._inventories.confirm(confirmed, at=self._clock.now())
        unconfirmed = [seen.node.id for seen in nodes if seen.node.id not in confirmed]
        await self.refresh([id for id in unconfirmed if not self._is_kept_elsewhere(id, stored.get(id))])
        self._swept_at = self._clock.now()

    def _is_confirmed(self, seen: SeenNode) -> bool:
        """Whether its last heartbeat has the fingerprint of what is stored."""
        id = seen.node.id
        return seen.status is NodeStatus.HEALTHY and id in self._reported_hashes and not self._differs(id)

    def _is_kept_elsewhere(self, id: NodeId, stored: Inventory | None) -> bool:
        """Whether its heartbeats go to another frontend, which has stored something since our last sweep."""
        if stored is None or self._swept_at is None:
            return False
        return id not in self._reported_hashes and stored.seen_at > self._swept_at

    async def refresh(self, ids: Sequence[NodeId], *, within: timedelta = LIST_WITHIN) -> dict[NodeId, Inventory]:
        """Ask these nodes at once, and store what they say; those that say nothing in time are left out."""
        reports: dict[NodeId, Inventory] = {}

        async def look(node_id: NodeId) -> None:
            try:
                async with self._lane.slot():
                    asked_at = self._clock.now()
                    entries = await self._client.glimpse_backends(node_id, within=within)
                reports[node_id] = _inventory(entries, asked_at)
            except CorralError as error:
                log.debug("no inventory: %s", error, extra={"event": "inventory.missing", "node": node_id})

        async with task_group() as group:
            for node_id in ids:
                group.create_task(look(node_id), name=f"inventory of {node_id}")
        await self._store(reports)
        return reports

    async def _store(self, reports: Mapping[NodeId, Inventory]) -> None:
        if not reports:
            return
        await self._inventories.put(reports)
        fingerprints = {id: fingerprint(report.entries) for id, report in reports.items()}
        has_news = any(self._stored_hashes.get(id) != text for id, text in fingerprints.items())
        self._stored_hashes |= fingerprints
        now = self._clock.now()
        looked_at = await self._intents.look_at(list(reports), at=now)
        # An install that a report shows to be there need not wait for its next try, as with LocalAI, nor for its first.
        postponed = await self._intents.postponed(Verb.INSTALL, list(reports), now=now)
        installed = [
            intent for intent in postponed if isinstance(evidence_of(intent, reports[intent.node_id]).proof, Proven)
        ]
        if installed:
            await self._intents.hurry(installed, at=now)
        if installed or looked_at:
            self._dispatcher.ring()
        self.reported.ring()
        if has_news:  # it is in no event, and yet all frontends show what nodes lack
            await self._feed.announce()


def _warn_dropped(node_id: NodeId, why: str) -> None:
    log.warning("an inventory is dropped: %s", why, extra={"event": "inventory.dropped", "node": node_id})


def is_listed(seen: SeenNode) -> bool:
    return seen.node.type is NodeType.BACKEND and seen.status in LISTED


def may_have_backends(seen: SeenNode) -> bool:
    return seen.node.type is NodeType.BACKEND and seen.status is not NodeStatus.PENDING


def _inventory(installed: Sequence[InstalledBackend], seen_at: datetime) -> Inventory:
    entries = []
    for backend in installed:
        entry = convert(backend, BackendEntry, from_attributes=True)
        if (corral := backend.corral) is not None:
            entry = replace(entry, platform_digest=corral.platform_digest, source_digest=corral.source_digest)
        entries.append(entry)
    return Inventory(entries=tuple(entries), seen_at=seen_at)
