"""Where a model goes: a pure choice over a snapshot of the fleet, which keeps its reasons.

Nodes that cannot serve are left out, then those without room; a score orders the others: where the model was before,
has its files and its backend, where there is room, and where little else runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from corral.base.ids import NodeId, ReplicaId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import UNKNOWN_NEEDS, ModelNeeds
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType
from corral.frontend.serving.decide.cards import CardShortage, fit_cards
from corral.frontend.serving.decide.load_job import LoadWhy
from corral.frontend.serving.decide.machine import ALL_CARDS, KnownRoom, MachineRoom, room_of
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState
from corral.wire.labels import has_labels

_GIB: Final = 1024**3
_MIB: Final = 1024**2
_DISK_SHARE: Final = 0.05
_LEAST_DISK: Final = _GIB
"""What stays free on a disk beside the files that are brought there: this, or this share of them."""


_MOST_TOLD: Final = 20
"""Nodes that a sentence names; `corral why` shows all."""


class VerdictCode(StrEnum):
    """The first reason that speaks against a node."""

    FITS = "fits"
    RUNS_NO_BACKENDS = "runs_no_backends"
    NOT_HEALTHY = "not_healthy"
    FAILED_BEFORE = "failed_before"
    NOT_PINNED = "not_pinned"
    NOT_SELECTED = "not_selected"
    UNFIT = "unfit"
    NO_SLOT = "no_slot"
    RIVAL = "rival"
    NO_DISK = "no_disk"
    NO_VRAM = "no_vram"
    NO_RAM = "no_ram"


_BRINGING: Final = frozenset({ReplicaState.RESERVED, ReplicaState.STAGING})
_BROUGHT: Final = frozenset({ReplicaState.LOADING, ReplicaState.LOADED})

CURABLE: Final = frozenset({VerdictCode.NO_SLOT, VerdictCode.RIVAL, VerdictCode.NO_VRAM, VerdictCode.NO_RAM})
"""What may be otherwise when replicas on the node end."""


class CandidateNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as placement sees it."""

    node: Node
    status: NodeStatus
    replicas: tuple[Replica, ...] = ()
    """The living replicas on the node, of any model."""
    has_files: bool = False
    has_backend: bool = False
    unfit: str = ""
    """Why the backend cannot run there; empty when it can, as far as is known."""
    reclaimable: int = 0
    """Bytes on its disk that files take which were brought there, and which nobody needs now."""
    disks: Mapping[str, int] = msgspec.field(default_factory=dict)
    """What the files of models take, of all models."""
    staged: frozenset[str] = frozenset()
    """Models with replicas there whose files its disk counts as taken already."""
    mates: frozenset[NodeId] = frozenset()
    """Other nodes on the same machine, which report the same memory."""
    beside: tuple[Replica, ...] = ()
    """The living replicas of those."""
    known_room: KnownRoom | None = None
    """What is free there, where that was worked out before; it holds for exactly that node and these replicas."""

    def of_model(self, model: str) -> list[Replica]:
        return [replica for replica in self.replicas if replica.model == model] if self.replicas else []

    def incoming(self, model: str) -> int:
        """Bytes of files of other models that are being brought there: its disk still reports their room as free."""
        if self.has_files or not self.replicas:
            return 0
        other_models = (
            {replica.model for replica in self.replicas if self._is_bringing(replica)} - self.staged - {model}
        )
        return sum(self.disks.get(other, 0) for other in other_models)

    def _is_bringing(self, replica: Replica) -> bool:
        """Whether a replica's files are arriving, or arrived after the node last reported how full its disk is."""
        is_new = replica.state in _BROUGHT and replica.changed_at >= self.node.facts.last_heartbeat
        return replica.state in _BRINGING or is_new

    @property
    def room(self) -> MachineRoom:
        room_here = self.known_room
        if room_here is None or room_here.node is not self.node:
            return room_of(self.node, self.replicas, self.beside)
        if room_here.replicas is not self.replicas or room_here.beside is not self.beside:
            return room_of(self.node, self.replicas, self.beside)
        return room_here.room


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be placed."""

    model: str
    needs: ModelNeeds = UNKNOWN_NEEDS
    selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Labels that the node must have."""
    pinned: frozenset[NodeId] = frozenset()
    """Only these; none mean any."""
    rivals: frozenset[str] = frozenset()
    """Models that may not run on the same machine."""
    exclude: Mapping[NodeId, str] = msgspec.field(default_factory=dict)
    """Nodes that it must not go to now, and why."""
    prefer: NodeId | None = None
    """Where it was before; taken if it fits."""


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks for and against one node. Made for every node at every decision, so it must be quick to make."""

    node_id: NodeId
    name: str
    code: VerdictCode
    why: str = ""
    """The rest of a sentence that begins with the name of the node; empty when nothing speaks against it."""
    cards: tuple[str, ...] = ()
    """The GPUs that it would get."""
    vram: int = 0
    ram: int = 0
    """What it would take there."""
    numbers: Mapping[str, int] = {}
    """What was compared, in bytes or counts."""
    score: Mapping[str, float] = {}
    """Points by what they are for."""
    free: int = 0
    """Memory that is free there: it decides between nodes with the same points."""

    @property
    def fits(self) -> bool:
        return self.code is VerdictCode.FITS

    @property
    def points(self) -> float:
        return sum(self.score.values())


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    node: Node
    index: int
    """The replica index that is free there."""
    verdict: NodeVerdict
    verdicts: tuple[NodeVerdict, ...] = ()
    """The verdicts on all nodes, the chosen one first."""
    left_to_others: tuple[Replica, ...] = ()
    """Places on the node that loads which wait longer will take."""

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why other nodes were not chosen, by name."""
        rejected = [verdict for verdict in self.verdicts if verdict.node_id != self.node.id]
        return {verdict.name: verdict.why or f"comes after {self.node.name}" for verdict in rejected}


def reservation(
    spec: ModelSpec, verdict: NodeVerdict, index: int, *, id: ReplicaId, at: datetime, why: LoadWhy = LoadWhy.ASKED
) -> Replica:
    """The replica of a model that takes what the verdict found for it, at this index on the verdict's node."""
    return Replica(
        id=id,
        node_id=verdict.node_id,
        model=spec.name,
        index=index,
        revision=spec.revision,
        backend=spec.backend,
        state=ReplicaState.RESERVED,
        vram=verdict.vram,
        ram=verdict.ram,
        cards=verdict.cards,
        why=why,
        created_at=at,
        changed_at=at,
    )


class PlacementRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """No node can take it now."""

    verdicts: tuple[NodeVerdict, ...] = ()

    @property
    def reasons(self) -> Mapping[str, str]:
        """By the name of the node."""
        return {verdict.name: verdict.why for verdict in self.verdicts}

    @property
    def message(self) -> str:
        if not self.verdicts:
            return "no node has joined yet"
        reasons = [f"{name} {why}" for name, why in sorted(self.reasons.items())]
        more = [f"and {len(reasons) - _MOST_TOLD} more nodes"] if len(reasons) > _MOST_TOLD else []
        return "; ".join([*reasons[:_MOST_TOLD], *more])

    @property
    def is_curable(self) -> bool:
        """Whether it could be placed if something else ended."""
        return any(verdict.code in CURABLE for verdict in self.verdicts)


def place(request: PlacementRequest, candidates: Iterable[CandidateNode]) -> Placement | PlacementRefusal:
    """The best node, or every node's reason why not."""
    nodes = candidates if isinstance(candidates, list | tuple) else tuple(candidates)
    all_verdicts = [judge(request, candidate) for candidate in nodes]
    fitting = [verdict for verdict in all_verdicts if verdict.code is _FITS]
    fitting.sort(key=_order)
    verdicts = (*fitting, *[verdict for verdict in all_verdicts if verdict.code is not _FITS])
    if not fitting:
        return PlacementRefusal(verdicts=verdicts)
    best = next(candidate for candidate in nodes if candidate.node.id == fitting[0].node_id)
    index = free_index(best.of_model(request.model))
    return Placement(node=best.node, index=index, verdict=fitting[0], verdicts=verdicts)


def free_index(replicas: Iterable[Replica]) -> int:
    """The lowest index that no living replica of the model has on the node."""
    used = {replica.index for replica in replicas if replica.state in LIVE}
    return next(index for index in range(len(used) + 1) if index not in used)


class _Refused(NamedTuple):
    """What speaks against a node."""

    code: VerdictCode
    why: str
    numbers: Mapping[str, int] = {}


_Taken = tuple[tuple[str, ...], int, int]
"""What the model takes of a machine: cards, video memory and memory. A bare tuple, since one is made for every node."""
_ALL: Final = (ALL_CARDS,)
_FITS, _HEALTHY, _BACKEND_NODE = VerdictCode.FITS, NodeStatus.HEALTHY, NodeType.BACKEND
"""Looking a member up in its enum costs more than comparing it, and this is done for every node."""


def judge(request: PlacementRequest, candidate: CandidateNode) -> NodeVerdict:
    """Whether a node can take the model, and how well."""
    node = candidate.node
    same = len(candidate.of_model(request.model))
    refused = _by_status(request, candidate) or _by_rules(request, candidate) or _by_slots(request, candidate, same)
    if refused is not None:
        return NodeVerdict(node_id=node.id, name=node.name, code=refused.code, why=refused.why)
    room = candidate.room
    fitted = _fitted(request, candidate, room)
    if isinstance(fitted, _Refused):
        code, why, numbers = fitted
        return NodeVerdict(node_id=node.id, name=node.name, code=code, why=why, numbers=numbers)
    cards, vram, ram = fitted
    return NodeVerdict(
        node_id=node.id,
        name=node.name,
        code=_FITS,
        cards=cards,
        vram=vram,
        ram=ram,
        score=_score(request, candidate, room, same),
        free=room.free,
    )


def _by_status(request: PlacementRequest, candidate: CandidateNode) -> _Refused | None:
    if candidate.node.type is not _BACKEND_NODE:
        return _Refused(VerdictCode.RUNS_NO_BACKENDS, "runs no backends")
    if candidate.status is not _HEALTHY:
        return _Refused(VerdictCode.NOT_HEALTHY, f"is {candidate.status}")
    if request.exclude and (why := request.exclude.get(candidate.node.id)) is not None:
        return _Refused(VerdictCode.FAILED_BEFORE, why or "failed just now")
    return None


def _by_rules(request: PlacementRequest, candidate: CandidateNode) -> _Refused | None:
    node = candidate.node
    if request.pinned and node.id not in request.pinned:
        return _Refused(VerdictCode.NOT_PINNED, "is not one of the nodes that the model is pinned to")
    if request.selector and not has_labels(node.labels.effective, request.selector):
        labels = ", ".join(f"{key}={value}" for key, value in sorted(request.selector.items()))
        return _Refused(VerdictCode.NOT_SELECTED, f"does not have the labels {labels}")
    if candidate.unfit:
        return _Refused(VerdictCode.UNFIT, f"cannot run the backend: {candidate.unfit}")
    return None


def _by_slots(request: PlacementRequest, candidate: CandidateNode, same: int) -> _Refused | None:
    if same and same >= (most := max(candidate.node.max_replicas_per_model, 1)):
        return _Refused(VerdictCode.NO_SLOT, f"already has {same} of {most} replicas of it")
    if request.rivals and (rivals := sorted({replica.model for replica in candidate.replicas} & request.rivals)):
        return _Refused(VerdictCode.RIVAL, f"runs {rivals[0]}, which shares a concurrency group with it")
    return None


def disk_needed(needs: ModelNeeds) -> int:
    """What must be free before its files are brought to a machine."""
    return needs.disk + max(int(needs.disk * _DISK_SHARE), _LEAST_DISK) if needs.disk else 0


def _fitted(request: PlacementRequest, candidate: CandidateNode, room: MachineRoom) -> _Taken | _Refused:
    """What the model takes of the machine, or what there is too little of."""
    needs = request.needs
    if room.disk is not None and not candidate.has_files:
        free, disk = room.disk - (incoming := candidate.incoming(request.model)), disk_needed(needs)
        if disk > free + candidate.reclaimable:
            expected = f", with {_size(incoming)} more on their way there," if incoming else ""
            why = f"has {_size(room.disk)} free on its disk{expected} and needs {_size(disk)}"
            return _Refused(VerdictCode.NO_DISK, why, {"free": max(free, 0), "needed": disk})
    if not room.cards:
        return _in_memory(room, (), 0, needs.ram)
    if not needs.vram and needs.ram_beside_gpu:  # its configuration uses no GPU
        return _in_memory(room, (), 0, needs.ram_beside_gpu)
    count = 0 if room.cards[0].id == ALL_CARDS else needs.card_count
    if count < 2 and (card := room.tightest_card(needs.vram)) is not None:
        return _on_cards(room, needs, (card,))
    cards = fit_cards(
        needs.vram,
        per_card=needs.per_card,
        splits=needs.splits,
        cards=room.cards,
        budget_left=room.vram_budget,
        count=count,
    )
    if isinstance(cards, CardShortage):
        return _Refused(VerdictCode.NO_VRAM, cards.message, {"free": cards.free, "needed": needs.vram})
    return _on_cards(room, needs, cards)


def _on_cards(room: MachineRoom, needs: ModelNeeds, cards: tuple[str, ...]) -> _Taken | _Refused:
    vram = needs.vram + needs.per_card * (len(cards) - 1) if len(cards) > 1 else needs.vram
    ram = needs.ram_beside_gpu + vram if room.shares_ram else needs.ram_beside_gpu
    return _in_memory(room, () if cards == _ALL else cards, vram, ram)


def _in_memory(room: MachineRoom, cards: tuple[str, ...], vram: int, ram: int) -> _Taken | _Refused:
    if room.ram is not None and ram > room.ram:
        why = f"has {_size(room.ram)} free and needs {_size(ram)}"
        return _Refused(VerdictCode.NO_RAM, why, {"free": room.ram, "needed": ram})
    return cards, vram, ram


_BEFORE: Final = 100.0
_FILES: Final = 40.0
_BACKEND: Final = 20.0
_SAME_MODEL: Final = -50.0
_OTHER_MODEL: Final = -10.0
_ROOM: Final = 10.0


def _score(request: PlacementRequest, candidate: CandidateNode, room: MachineRoom, same: int) -> Mapping[str, float]:
    points: dict[str, float] = {}
    if candidate.node.id == request.prefer:
        points["was there before"] = _BEFORE
    if candidate.has_files:
        points["has the files"] = _FILES
    if candidate.has_backend:
        points["has the backend"] = _BACKEND
    if same:
        points["replicas of the model"] = _SAME_MODEL * same
    if other_replicas := len(candidate.replicas) - same:
        points["other replicas"] = _OTHER_MODEL * other_replicas
    if share := round(_ROOM * room.free_share, 2):
        points["free memory"] = share
    return points


def _order(verdict: NodeVerdict) -> tuple[float, int, str, str]:
    """The best first; ends with the id, so that every frontend decides alike."""
    return (-verdict.points, -verdict.free, verdict.name, verdict.node_id)


@lru_cache(maxsize=4096)
def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB // 10 else f"{count / _MIB:.0f} MiB"


def still_fits(request: PlacementRequest, candidate: CandidateNode, replicas: Sequence[Replica]) -> NodeVerdict:
    """The verdict on a candidate, when these replicas are on its machine by now."""
    own = tuple(replica for replica in replicas if replica.node_id == candidate.node.id)
    beside = tuple(replica for replica in replicas if replica.node_id != candidate.node.id)
    return judge(request, replace(candidate, replicas=own, beside=beside))
