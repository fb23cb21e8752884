"""Looks for newer versions of what the fleet has. One frontend at a time asks galleries and registries, and all share
what it found; it is compared with the nodes' reports whenever somebody asks."""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.tasks import Poke
from corral.frontend.backends.catalogue import Lookups, facts_of
from corral.frontend.backends.decide.backend import Holding, Inventory, holdings_by_backend
from corral.frontend.backends.decide.upgrades import Check, Comparison, Offer, UpgradePolicy, compare
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


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """How the fleet stands now against what was offered when it was last looked."""

    check: Check | None
    backends: tuple[Comparison, ...]


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
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

    async def findings(self) -> Findings:
        """From what is stored: no node, gallery or registry is asked."""
        check = await self._checks.last()
        return Findings(check=check, backends=tuple(compare(await self._held(await self._nodes()), check)))

    async def findings_of(self, nodes: Sequence[SeenNode], inventories: Mapping[NodeId, Inventory]) -> Findings:
        """What `findings` tells, of nodes and reports that somebody has read already."""
        check, listed = await self._checks.last(), [seen for seen in nodes if may_have_backends(seen)]
        return Findings(check=check, backends=tuple(compare(holdings_by_backend(listed, inventories), check)))

    def ask(self) -> None:
        """Look soon, whenever it was last done."""
        self._is_asked_for = True
        self.poke.ring()

    async def tick(self) -> None:
        """Look if it is time, or if somebody asked for it; while another frontend looks, later."""
        is_requested, self._is_asked_for = (
            self._is_asked_for,
            False,
        )  # at once: a request during a look wants another one
        has_looked = False
        try:
            is_due = is_requested
            if not is_requested and self._policy.period:
                last = await self._checks.last()
                is_due = last is None or self._clock.now() - last.at >= self._policy.period
            has_looked = is_due and await self.look()
        finally:
            self._is_asked_for |= is_requested and not has_looked

    async def look(self) -> bool:
        """Ask nodes, galleries and registries now. False: another frontend is at it."""
        async with self._leader.turn("upgrade-check", duration=_LEASE_TIME) as is_ours:
            if is_ours:
                await self._look()
                if self._policy.is_automatic:
                    await self._upgrade()
            return is_ours

    async def _look(self) -> None:
        at, last = self._clock.now(), await self._checks.last()
        nodes = await self._nodes()
        await self._inventory.refresh([seen.node.id for seen in nodes if is_listed(seen)], within=_FRESH_WITHIN)
        held = await self._held(nodes)
        is_needed = any(_is_from_gallery(holding) for holdings in held.values() for holding in holdings)
        catalogue = await self._lookups.galleries.newest() if is_needed else BackendCatalogue()
        candidates = list(_wanted(held, catalogue or BackendCatalogue()))
        images = await facts_of([candidate.build for candidate in candidates], self._lookups.images)
        before = () if last is None else last.offers
        offers = [
            _offer(wanted_build, images.get(wanted_build.build.artefact), before, at) for wanted_build in candidates
        ]
        if catalogue is None:
            offers += [offer for offer in before if not offer.is_external]
        problem = _UNREAD if catalogue is None else ""
        await self._checks.put(Check(at=at, offers=tuple(offers), problem=problem))
        fields = {"event": "upgrades.looked_for", "backends": len(offers), "images": len(images)}
        log.info("looked for newer versions of backends", extra=fields)

    async def _upgrade(self) -> None:
        """What is outdated is asked for once: the same nodes and the same offer are the same operation."""
        for compared in (await self.findings()).backends:
            nodes = sorted(node.holding.seen.node.id for node in compared.outdated)
            if not nodes or compared.offer is None:
                continue
            offered = compared.offer.digest or compared.offer.version
            key = hashlib.sha256("\0".join((compared.backend, offered, *nodes)).encode()).hexdigest()
            ask = Ask(
                verb=Verb.UPGRADE,
                ref=BackendRef(backend=compared.backend),
                nodes=tuple(nodes),
                by=_AUTOMATIC,
                idempotency_key=f"{_AUTOMATIC}/{key}",
            )
            try:
                await self._operations.start(ask)
            except CorralError as error:
                fields = {"event": "upgrades.refused", "backend": compared.backend}
                log.warning("%s is not upgraded: %s", compared.backend, error, extra=fields)

    async def _nodes(self) -> list[SeenNode]:
        return [seen for seen in await self._fleet.all() if may_have_backends(seen)]

    async def _held(self, nodes: Sequence[SeenNode]) -> dict[str, list[Holding]]:
        return holdings_by_backend(nodes, await self._inventory.known([seen.node.id for seen in nodes]))


def _is_from_gallery(holding: Holding) -> bool:
    """Whether it came from a gallery that we can read: what ships with Corral, each node has itself."""
    url = holding.entry.gallery_url
    return bool(url) and url != BUILT_IN_URL and not holding.entry.is_system


def _wanted(held: Mapping[str, Sequence[Holding]], catalogue: BackendCatalogue) -> Iterator[_Wanted]:
    """Builds to look at: those at the uris that nodes have backends from, then those of galleries."""
    for backend, holdings in held.items():
        uris = {holding.entry.uri for holding in holdings if holding.entry.uri and not holding.entry.gallery_url}
        for uri in sorted(filter(is_pulled, uris)):
            yield _Wanted(build=GalleryEntry(name=backend, uri=uri), is_external=True)
    for backend, holdings in held.items():
        entry = catalogue.entry(backend) if any(map(_is_from_gallery, holdings)) else None
        if entry is not None and not entry.is_meta and is_pulled(entry.artefact):
            yield _Wanted(build=replace(entry, name=backend))


def _offer(listed_build: _Wanted, image: ImageFacts | None, before: Sequence[Offer], at: datetime) -> Offer:
    """What could not be looked at now is as it was the last time."""
    build = listed_build.build
    offer = Offer(backend=build.name, uri=build.artefact, is_external=listed_build.is_external, version=build.version)
    if image is not None:
        members = frozenset(member.digest for member in image.members)
        return replace(offer, digest=image.digest, member_digests=members, looked_at=at)
    same = (earlier for earlier in before if (earlier.backend, earlier.uri) == (offer.backend, offer.uri))
    earlier_offer = next(same, None)
    if earlier_offer is None:
        return offer
    return replace(
        offer,
        digest=earlier_offer.digest,
        member_digests=earlier_offer.member_digests,
        looked_at=earlier_offer.looked_at,
    )
