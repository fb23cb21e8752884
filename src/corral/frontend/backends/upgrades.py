"""Looks for newer versions of what the fleet has. One frontend at a time asks galleries and registries, and all share
what it found; comparing that with what nodes report is done anew for whoever wants to know."""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.tasks import Poke
from corral.frontend.backends.catalogue import Lookups, facts_of
from corral.frontend.backends.decide.backend import Inventory
from corral.frontend.backends.decide.upgrades import Check, Comparison, Holding, Offer, UpgradePolicy, compare
from corral.frontend.backends.inventory import InventoryKeeper, is_listed, may_have_backends
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import Ask
from corral.frontend.backends.store import UpgradeChecks
from corral.frontend.nodes.decide.node import SeenNode
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.store.leases import Leader
from corral.galleries.build_uris import BackendRef, is_pulled
from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.gallery import BUILT_IN_URL, GalleryEntry
from corral.oci.manifests import ImageFacts

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(minutes=1)
"""Between looks whether it is time to look."""
_LEASE_TIME: Final = timedelta(minutes=15)
_FRESH_WITHIN: Final = timedelta(seconds=5)
_AUTOMATIC: Final = "automatic upgrade"
_UNREAD: Final = "the galleries could not be read"

HoldingsByBackend = Mapping[str, Sequence[Holding]]
"""What nodes have, by the name of the backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """How the fleet stands now against what was offered when it was last looked."""

    check: Check | None
    backends: tuple[Comparison, ...]
    nodes: Mapping[NodeId, SeenNode]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A build to look for."""

    build: GalleryEntry
    is_external: bool = False
    """No gallery has it: nodes have it from a uri."""


class Upgrades:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        checks: UpgradeChecks,
        leader: Leader,
        fleet: Fleet,
        inventory: InventoryKeeper,
        lookups: Lookups,
        operations: BackendOperations,
        clock: Clock,
        *,
        policy: UpgradePolicy,
    ) -> None:
        self._checks = checks
        self._leader = leader
        self._fleet = fleet
        self._inventory = inventory
        self._lookups = lookups
        self._operations = operations
        self._clock = clock
        self._policy = policy
        self._is_asked_for = False
        self.poke = Poke()

    async def found(self) -> Findings:
        """From what is stored: no node, gallery or registry is asked."""
        nodes = await self._nodes()
        check = await self._checks.last()
        held = _held(nodes, await self._inventory.known([one.node.id for one in nodes]))
        return Findings(check=check, backends=tuple(compare(held, check)), nodes={one.node.id: one for one in nodes})

    def ask(self) -> None:
        """Look soon, whenever it was last done."""
        self._is_asked_for = True
        self.poke.ring()

    async def tick(self) -> None:
        """Look if it is time, or if somebody asked for it; while another frontend looks, later."""
        asked, self._is_asked_for = self._is_asked_for, False  # at once: whoever asks during a look wants another one
        has_looked = False
        try:
            is_due = asked
            if not asked and self._policy.period:
                last = await self._checks.last()
                is_due = last is None or self._clock.now() - last.at >= self._policy.period
            has_looked = is_due and await self.look()
        finally:
            self._is_asked_for |= asked and not has_looked

    async def look(self) -> bool:
        """Ask nodes, galleries and registries now. False: another frontend is at it."""
        async with self._leader.turn("upgrade-check", lasts=_LEASE_TIME) as is_ours:
            if is_ours:
                await self._look()
                if self._policy.is_automatic:
                    await self._upgrade()
            return is_ours

    async def _look(self) -> None:
        at, last = self._clock.now(), await self._checks.last()
        nodes = await self._nodes()
        await self._inventory.refresh([one.node.id for one in nodes if is_listed(one)], within=_FRESH_WITHIN)
        held = _held(nodes, await self._inventory.known([one.node.id for one in nodes]))
        is_needed = any(_is_from_gallery(one) for holdings in held.values() for one in holdings)
        catalogue = await self._lookups.galleries.newest() if is_needed else BackendCatalogue()
        wanted = list(_wanted(held, catalogue or BackendCatalogue()))
        images = await facts_of([one.build for one in wanted], self._lookups.images)
        before = () if last is None else last.offers
        offers = [_offer(one, images.get(one.build.artefact), before, at) for one in wanted]
        if catalogue is None:
            offers += [one for one in before if not one.is_external]
        problem = _UNREAD if catalogue is None else ""
        await self._checks.put(Check(at=at, offers=tuple(offers), problem=problem))
        told = {"event": "upgrades.looked_for", "backends": len(offers), "images": len(images)}
        log.info("looked for newer versions of backends", extra=told)

    async def _upgrade(self) -> None:
        """What is outdated is asked for once: the same nodes and the same offer are the same operation."""
        for one in (await self.found()).backends:
            nodes = sorted(judged.holding.node_id for judged in one.outdated)
            if not nodes or one.offer is None:
                continue
            offered = one.offer.digest or one.offer.version
            key = hashlib.sha256("\0".join((one.backend, offered, *nodes)).encode()).hexdigest()
            ask = Ask(
                verb=Verb.UPGRADE,
                ref=BackendRef(backend=one.backend),
                nodes=tuple(nodes),
                by=_AUTOMATIC,
                idempotency_key=f"{_AUTOMATIC}/{key}",
            )
            try:
                await self._operations.start(ask)
            except CorralError as error:
                shown = {"event": "upgrades.refused", "backend": one.backend}
                log.warning("%s is not upgraded: %s", one.backend, error, extra=shown)

    async def _nodes(self) -> list[SeenNode]:
        return [one for one in await self._fleet.all() if may_have_backends(one)]


def _held(nodes: Sequence[SeenNode], known: Mapping[NodeId, Inventory]) -> HoldingsByBackend:
    held: dict[str, list[Holding]] = {}
    for seen in nodes:
        for entry in known[seen.node.id].entries if seen.node.id in known else ():
            holding = Holding(node_id=seen.node.id, node_name=seen.node.name, entry=entry)
            held.setdefault(entry.name, []).append(holding)
    return held


def _is_from_gallery(holding: Holding) -> bool:
    """What ships with Corral is each node's own: no gallery of ours tells what that should be."""
    url = holding.entry.gallery_url
    return bool(url) and url != BUILT_IN_URL and not holding.entry.is_system


def _wanted(held: HoldingsByBackend, catalogue: BackendCatalogue) -> Iterator[_Wanted]:
    """Builds to look at: those at the uris that nodes have backends from, then those of galleries."""
    for backend, holdings in held.items():
        uris = {one.entry.uri for one in holdings if one.entry.uri and not one.entry.gallery_url}
        for uri in sorted(filter(is_pulled, uris)):
            yield _Wanted(build=GalleryEntry(name=backend, uri=uri), is_external=True)
    for backend, holdings in held.items():
        entry = catalogue.entry(backend) if any(map(_is_from_gallery, holdings)) else None
        if entry is not None and not entry.is_meta and is_pulled(entry.artefact):
            yield _Wanted(build=replace(entry, name=backend))


def _offer(wanted: _Wanted, image: ImageFacts | None, before: Sequence[Offer], at: datetime) -> Offer:
    """What could not be looked at now is as it was the last time."""
    build = wanted.build
    offer = Offer(backend=build.name, uri=build.artefact, is_external=wanted.is_external, version=build.version)
    if image is not None:
        members = frozenset(one.digest for one in image.members)
        return replace(offer, digest=image.digest, member_digests=members, looked_at=at)
    known = next((one for one in before if (one.backend, one.uri) == (offer.backend, offer.uri)), None)
    if known is None:
        return offer
    return replace(offer, digest=known.digest, member_digests=known.member_digests, looked_at=known.looked_at)
