"""The fleet at one moment, as far as it decides where models run: what placing, scaling and draining look at. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from corral.base import config_fields as fields
from corral.base.ids import NodeId, ReplicaId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import UNKNOWN_NEEDS, ModelNeeds
from corral.frontend.nodes.decide.node import Node, SeenNode, memory_pool_of
from corral.frontend.serving.decide.load_job import LoadJob, LoadState
from corral.frontend.serving.decide.machine import KnownRoom, given_back, room_of
from corral.frontend.serving.decide.placement import CandidateNode, PlacementRequest
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.rollout import Restoration
from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.staging.decide.staged import StagedSummary


class BackendFit(Protocol):
    """What is known of backends on nodes."""

    def is_there(self, node_id: NodeId, backend: str) -> bool: ...

    def unfit(self, node_id: NodeId, backend: str) -> str:
        """Why the backend cannot run there; empty when it can, as far as is known."""


class AnyBackend:
    """Where nothing is known of backends, nothing speaks against any."""

    def is_there(self, node_id: NodeId, backend: str) -> bool:
        return False

    def unfit(self, node_id: NodeId, backend: str) -> str:
        return ""


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    at: datetime
    nodes: tuple[SeenNode, ...] = ()
    replicas: tuple[Replica, ...] = ()
    """All living replicas of the fleet."""
    ended: tuple[Replica, ...] = ()
    """Replicas that were ended on purpose lately."""
    jobs: tuple[LoadJob, ...] = ()
    restorations: tuple[Restoration, ...] = ()
    """Replicas that an upgrade of their backend ends, and which are loaded again after it."""
    models: Mapping[str, ModelSpec] = msgspec.field(default_factory=dict)
    """All that can be loaded, without aliases."""
    needs: Mapping[str, ModelNeeds] = msgspec.field(default_factory=dict)
    """The needs of each model, by its name."""
    staged: tuple[StagedSummary, ...] = ()
    sharing: frozenset[NodeId] = frozenset()
    """Nodes that have the very models directory of this frontend: the files of every model are there."""
    backends: BackendFit = msgspec.field(default_factory=AnyBackend)
    in_flight: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Requests under way by replica; 0 where there is none."""
    last_used: Mapping[str, datetime] = msgspec.field(default_factory=dict)
    """By replica, as far as it was heard."""
    waiting: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Requests that wait for a replica, by model."""
    is_load_known: bool = True
    """False while a gateway is silent: then anything may be busy."""
    counting_since: datetime | None = None
    """Since when requests are counted here: what was used before is not known."""
    rules: Mapping[str, SchedulingWish] = msgspec.field(default_factory=dict)
    """How many replicas models should have, and where; by model."""
    kept: frozenset[str] = frozenset()
    """Models that stay loaded once they are."""
    is_braked: bool = False
    """Many nodes went silent together: nothing is to be moved or ended for it."""

    @cached_property
    def nodes_by_id(self) -> Mapping[NodeId, SeenNode]:
        return {seen.node.id: seen for seen in self.nodes}

    @cached_property
    def replicas_by_node(self) -> Mapping[NodeId, tuple[Replica, ...]]:
        by_node: dict[NodeId, list[Replica]] = {}
        for replica in self.replicas:
            by_node.setdefault(replica.node_id, []).append(replica)
        return {id: tuple(on_node) for id, on_node in by_node.items()}

    @cached_property
    def staged_by_node(self) -> Mapping[NodeId, Mapping[str, StagedSummary]]:
        by_node: dict[NodeId, dict[str, StagedSummary]] = {}
        for staged in self.staged:
            by_node.setdefault(staged.node_id, {})[staged.model] = staged
        return by_node

    @cached_property
    def _wanted(self) -> frozenset[str]:
        """Models whose files stay wherever they are: a rule wants replicas, or a load is under way."""
        ruled = {model for model, wish in self.rules.items() if wish.min_replicas or wish.spread_all}
        return frozenset(ruled | {job.model for job in self.jobs if job.state is not LoadState.FAILED})

    @cached_property
    def groups(self) -> Mapping[str, frozenset[str]]:
        """The concurrency groups that models are in, of those that are in any."""
        groups_by_model = {name: groups_of(spec) for name, spec in self.models.items()}
        return {name: groups for name, groups in groups_by_model.items() if groups}

    @cached_property
    def ended_by_node(self) -> Mapping[NodeId, tuple[Replica, ...]]:
        by_node: dict[NodeId, list[Replica]] = {}
        for replica in self.ended:
            by_node.setdefault(replica.node_id, []).append(replica)
        return {id: tuple(ended) for id, ended in by_node.items()}

    def of_model(self, model: str) -> list[Replica]:
        return [replica for replica in self.replicas if replica.model == model]

    def loaded_of(self, model: str) -> frozenset[ReplicaId]:
        """The replicas of the model that were loaded at this moment."""
        return frozenset(replica.id for replica in self.of_model(model) if replica.state is ReplicaState.LOADED)

    @cached_property
    def least(self) -> Mapping[str, int]:
        """How many replicas of a model its rule wants at least."""
        return {model: wish.min_replicas for model, wish in self.rules.items()}

    def needs_of(self, model: str) -> ModelNeeds:
        return self.needs.get(model, UNKNOWN_NEEDS)

    def rivals_of(self, model: str) -> frozenset[str]:
        """Models that may not run on the same machine as this one."""
        own_groups = self.groups.get(model)
        if not own_groups:
            return frozenset()
        return frozenset(other for other, groups in self.groups.items() if other != model and groups & own_groups)

    def request(
        self, spec: ModelSpec, *, exclude: Mapping[NodeId, str] | None = None, prefer: NodeId | None = None
    ) -> PlacementRequest:
        """What is to be placed when a replica of the model is, where its rule allows."""
        rule = self.rules.get(spec.name, SchedulingWish(model=spec.name))
        return PlacementRequest(
            model=spec.name,
            needs=self.needs_of(spec.name),
            selector=rule.node_selector,
            pinned=frozenset(rule.pinned_nodes),
            rivals=self.rivals_of(spec.name),
            exclude={**(self._have_one(spec) if rule.spread_all else {}), **(exclude or {})},
            prefer=prefer,
        )

    @cached_property
    def _disks(self) -> Mapping[str, int]:
        """What the files of each model take."""
        return {model: needs.disk for model, needs in self.needs.items() if needs.disk}

    @cached_property
    def rooms(self) -> Mapping[NodeId, KnownRoom]:
        """What is free on each node. Worked out once: every model that is placed asks for it."""
        return {seen.node.id: self._room_now(self._as_of_now(seen.node)) for seen in self.nodes}

    def _room_now(self, node: Node) -> KnownRoom:
        on_node, beside = self.replicas_by_node.get(node.id, ()), self._beside(node.id)
        return KnownRoom(node, on_node, room_of(node, on_node, beside), beside)

    @cached_property
    def mates(self) -> Mapping[NodeId, frozenset[NodeId]]:
        """The other nodes on the machines of those that share theirs."""
        pools: dict[object, set[NodeId]] = {}
        for seen in self.nodes:
            if (pool := memory_pool_of(seen.node)) is not None:
                pools.setdefault(pool, set()).add(seen.node.id)
        return {id: frozenset(ids - {id}) for ids in pools.values() if len(ids) > 1 for id in ids}

    def _beside(self, id: NodeId) -> tuple[Replica, ...]:
        """The replicas of the other nodes on the machine of this one."""
        mates = self.mates.get(id)
        return (
            tuple(replica for mate in sorted(mates) for replica in self.replicas_by_node.get(mate, ())) if mates else ()
        )

    def _as_of_now(self, node: Node) -> Node:
        """The node with the memory of what ended there since it was heard."""
        ended = self.ended_by_node.get(node.id, ())
        return given_back(node, [replica for replica in ended if replica.changed_at >= node.facts.last_heartbeat])

    def with_replica(self, replica: Replica) -> "FleetSnapshot":
        """The fleet after a place was reserved. What is known of all other nodes is kept."""
        after, id = replace(self, replicas=(*self.replicas, replica)), replica.node_id
        room_before = self.rooms.get(id)
        if room_before is None:
            return after
        cached = vars(after)
        cached.update(staged_by_node=self.staged_by_node, groups=self.groups, mates=self.mates)
        cached["_disks"] = self._disks
        cached["replicas_by_node"] = {**self.replicas_by_node, id: (*room_before.replicas, replica)}
        changed = {id, *self.mates.get(id, ())}
        cached["rooms"] = {**self.rooms, **{each: after._room_now(self.rooms[each].node) for each in changed}}
        cached["_usual"] = {
            backend: [
                after._candidate(seen, backend) if seen.node.id in changed else candidate
                for seen, candidate in zip(self.nodes, usual, strict=True)
            ]
            for backend, usual in self._usual.items()
        }
        return after

    def _have_one(self, spec: ModelSpec) -> dict[NodeId, str]:
        """The nodes that a rule for one on every node wants no other on."""
        staying = [replica for replica in self.of_model(spec.name) if replica.state is not ReplicaState.UNLOADING]
        return {each.node_id: "has its replica already" for each in staying if each.revision == spec.revision}

    def candidates(self, spec: ModelSpec) -> list[CandidateNode]:
        """All nodes as this model sees them."""
        usual = self._usual.get(spec.backend)
        if usual is None:
            usual = self._usual[spec.backend] = [self._candidate(seen, spec.backend) for seen in self.nodes]
        staged = self.staged_by_node
        if not staged:
            return usual
        return [
            self._with_files(candidate, spec, summary)
            if (summary := staged.get(candidate.node.id, _NOTHING).get(spec.name)) is not None
            else candidate
            for candidate in usual
        ]

    @cached_property
    def _usual(self) -> dict[str, list[CandidateNode]]:
        """The nodes as models of a backend see them that have no files there."""
        return {}

    def candidate(self, node_id: NodeId, spec: ModelSpec) -> CandidateNode | None:
        """One node as this model sees it."""
        seen = self.nodes_by_id.get(node_id)
        if seen is None:
            return None
        candidate, summary = (
            self._candidate(seen, spec.backend),
            self.staged_by_node.get(node_id, _NOTHING).get(spec.name),
        )
        return candidate if summary is None else self._with_files(candidate, spec, summary)

    def _candidate(self, seen: SeenNode, backend: str) -> CandidateNode:
        room, staged = self.rooms[seen.node.id], self.staged_by_node.get(seen.node.id, _NOTHING)
        return CandidateNode(
            node=room.node,
            status=seen.status,
            replicas=room.replicas,
            has_files=seen.node.id in self.sharing,
            has_backend=self.backends.is_there(seen.node.id, backend),
            unfit=self.backends.unfit(seen.node.id, backend),
            reclaimable=self._reclaimable(staged.values(), room.replicas) if staged else 0,
            disks=self._disks,
            staged=self._measured(staged, room) if staged else frozenset(),
            mates=self.mates.get(seen.node.id, frozenset()),
            beside=room.beside,
            known_room=room,
        )

    def _measured(self, staged: Mapping[str, StagedSummary], room: KnownRoom) -> frozenset[str]:
        """Models with replicas on a node whose files were already counted when the node last reported how full its disk
        is."""
        heard_at = room.node.facts.last_heartbeat

        def is_there(model: str) -> bool:
            summary, spec = staged.get(model), self.models.get(model)
            if summary is None or spec is None or summary.revision != spec.revision:
                return False
            return summary.brought_at is None or summary.brought_at < heard_at

        return frozenset(model for model in {replica.model for replica in room.replicas} if is_there(model))

    def _with_files(self, candidate: CandidateNode, spec: ModelSpec, summary: StagedSummary) -> CandidateNode:
        """A node that has something of this model: that is not what has to go for it."""
        reclaimable_here = self._reclaimable([summary], candidate.replicas)
        has_files = candidate.has_files or summary.revision == spec.revision
        return replace(candidate, has_files=has_files, reclaimable=candidate.reclaimable - reclaimable_here)

    def _reclaimable(self, staged: Iterable[StagedSummary], replicas: Iterable[Replica]) -> int:
        """Bytes of what may be deleted on a node, because nobody needs it there."""
        used = {replica.model for replica in replicas} | self._wanted
        return sum(each.deletable_bytes for each in staged if each.model not in used)


_NOTHING: Final[Mapping[str, StagedSummary]] = {}


def groups_of(spec: ModelSpec) -> frozenset[str]:
    """Models that share one of these words never run on the same machine at the same time."""
    return frozenset(text for entry in fields.listed(spec.config.get("concurrency_groups")) if (text := str(entry)))
