"""What is deleted when fleet rules are changed, if that is wanted: never what came with a machine."""

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from corral.base.ids import NodeId
from corral.frontend.backends.decide.backend import Artefact, traits_of
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.rules.decide import FleetRule, bare
from corral.frontend.rules.places import RulePlace, RulePlaces
from corral.galleries.build_uris import BackendRef

Spot = tuple[NodeId, str]


class Prune(StrEnum):
    """What a change of the rules deletes."""

    NOTHING = ""
    DEMANDED = "demanded"
    """What the rules demanded before, and do not any more."""
    ALL = "all"
    """Whatever no rule demands."""


class RulePruning:
    def __init__(self, places: RulePlaces) -> None:
        self._places = places

    async def asks(
        self, before: Sequence[FleetRule], after: Iterable[RulePlace], prune: Prune, *, by: str
    ) -> list[Ask]:
        """One for each backend: `before` is what was demanded until now, `after` where something is from now on."""
        if prune is Prune.NOTHING:
            return []
        kept = {one.spot for one in after}
        found = await self._no_longer_demanded(before, kept)
        if prune is Prune.ALL:
            found |= await self._never_demanded(kept | found.keys())
        backends: dict[str, list[NodeId]] = {}
        for (node_id, _), backend in found.items():
            backends.setdefault(backend, []).append(node_id)
        return [
            Ask(verb=Verb.DELETE, ref=BackendRef(backend=backend), nodes=tuple(nodes), by=by)
            for backend, nodes in sorted(backends.items())
        ]

    async def _no_longer_demanded(self, before: Sequence[FleetRule], kept: Collection[Spot]) -> dict[Spot, str]:
        places = await self._places.of(before) if before else []
        return {one.spot: bare(one.rule.backend) for one in places if one.spot not in kept and one.may_have}

    async def _never_demanded(self, known: Collection[Spot]) -> dict[Spot, str]:
        nodes, names = await self._places.nodes(), await self._places.names()
        reports = await self._places.inventories(nodes)
        found: dict[Spot, str] = {}
        for seen in nodes:
            id, capability = seen.node.id, traits_of(seen.node).effective_capability
            entries = reports[id].entries if id in reports else ()
            # A meta backend comes first: it goes together with the build that it points to.
            for entry in sorted(entries, key=lambda one: not one.is_meta):
                key = names.key(Artefact(backend=entry.name), capability) or entry.name
                if not entry.is_system and not {(id, key), (id, entry.name)} & {*known, *found}:
                    found[id, key] = entry.name
        return found
