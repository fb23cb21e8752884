"""Plans acts that concern replicas, from what is so now. Reads only; the acts themselves are done elsewhere."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from corral.base.errors import NotFound
from corral.base.ids import NodeId
from corral.frontend.models.catalogue import Models
from corral.frontend.models.removal import ModelRemoval
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.operations.store.intents import Intents
from corral.frontend.serving.decide.act_plan import ActPlan
from corral.frontend.serving.decide.removal_plans import RemovedFiles, drain_plan, model_removal_plan, node_removal_plan
from corral.frontend.serving.decide.scaling_state import ScalingPolicy
from corral.frontend.serving.decide.scheduling import rules_in_force
from corral.frontend.serving.decide.scheduling_plans import RulesPreview, scheduling_plan
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.scheduling import RulesChange, Scheduling
from corral.frontend.serving.snapshots import Snapshots

T = TypeVar("T")


class ActPlanner:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        snapshots: Snapshots,
        fleet: Fleet,
        intents: Intents,
        models: Models,
        removals: ModelRemoval,
        scheduling: Scheduling,
        *,
        policy: ScalingPolicy,
    ) -> None:
        self._snapshots = snapshots
        self._fleet = fleet
        self._intents = intents
        self._models = models
        self._removals = removals
        self._scheduling = scheduling
        self._policy = policy

    async def drain(self, node_id: NodeId, *, is_forced: bool) -> ActPlan:
        """What draining a node would do. NotFound for an unknown node."""
        node, snapshot = await self._seen(node_id)
        return await _thought(lambda: drain_plan(snapshot, node, is_forced=is_forced))

    async def node_removal(self, node_id: NodeId) -> ActPlan:
        """What removing a node would do. NotFound for an unknown node."""
        intents = await self._intents.of_node(node_id)
        node, snapshot = await self._seen(node_id)
        return await _thought(lambda: node_removal_plan(snapshot, node, intents))

    async def model_removal(self, name: str) -> ActPlan:
        """What removing a model would do. Fails as the removal does."""
        preview = await self._removals.preview(name)
        snapshot = await self._snapshots.take()
        files = RemovedFiles(
            deleted=preview.deleted,
            kept=preview.kept,
            nodes=tuple(target.node_id for target in preview.targets if target.hindrance is None),
            spared=tuple(target.node_id for target in preview.targets if target.hindrance is not None),
        )
        return model_removal_plan(snapshot, preview.model, files, preview.aliases, mark=str(preview.number))

    async def scheduling(self, change: RulesChange, *, by: str, unload: frozenset[str] = frozenset()) -> ActPlan:
        """What a change of the rules of scheduling would do, and unloading these models. InvalidInput for rules that
        cannot be."""
        changed, after, mark = await self._scheduling.preview(change, by=by)
        in_force = rules_in_force(after, self._models.catalogue)
        preview = RulesPreview(
            update=changed,
            in_force={model: rule.wish for model, rule in in_force.items()},
            unload=unload,
            mark=mark,
        )
        snapshot = await self._snapshots.take()
        return await _thought(lambda: scheduling_plan(snapshot, preview, self._policy))

    async def _seen(self, node_id: NodeId) -> tuple[Node, FleetSnapshot]:
        """The node is read last: of one that is removed meanwhile nothing is planned with half of what it had."""
        snapshot = await self._snapshots.take()
        node = (await self._fleet.get(node_id)).node
        if node_id not in snapshot.nodes_by_id:
            raise NotFound(f"no node has the id {node_id}")
        return node, snapshot


async def _thought(plan: Callable[[], T]) -> T:
    """Placing models takes seconds in a fleet of thousands: others are served meanwhile."""
    return await asyncio.to_thread(plan)
