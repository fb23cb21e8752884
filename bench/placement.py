"""`placement`: how long it takes to decide where a model goes, in a fleet that is not there.

Pure functions on a made-up snapshot: machines with and without GPUs, some full, some silent, and replicas on most.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from bench.report import Table, figure, percentile
from corral.base.ids import NodeId, ReplicaId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import ModelNeeds
from corral.frontend.nodes.decide.node import Capacity, GpuCard, Node, NodeStatus, SeenNode
from corral.frontend.serving.decide.placement import Placement, place
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.decide.what_if import NodeDown, consequences
from tests.kit.samples import a_node, a_replica, after

T = TypeVar("T")
GIB: Final = 1024**3
DECISION_MILLISECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    nodes: int = 1000
    models: int = 500
    replicas: int = 3000


async def placement(scale: Scale) -> list[Table]:
    fleet = made_up(scale)
    rooms = _timed(lambda: fleet.rooms)[1]
    looks, choices, chosen = list[float](), list[float](), 0
    snapshot = fleet
    for spec in fleet.models.values():
        candidates, look = _timed(partial(snapshot.candidates, spec))
        choice, took = _timed(partial(place, snapshot.request(spec), candidates))
        looks.append(look)
        choices.append(took)
        if isinstance(choice, Placement):
            chosen += 1
            snapshot = snapshot.with_replica(_reserved(spec, choice))
    decisions = [look + took for look, took in zip(looks, choices, strict=True)]
    busiest = max(fleet.replicas_by_node, key=lambda id: len(fleet.replicas_by_node[id]))
    found, supposed = _timed(lambda: consequences(fleet, NodeDown(node_id=busiest)))
    title = (
        f"Placing {scale.models:,} models one after the other on {scale.nodes:,} nodes with {scale.replicas:,} replicas"
    )
    rows = [
        figure("one decision, median", percentile(decisions, 0.5), "ms", at_most=DECISION_MILLISECONDS),
        figure("one decision, p99", percentile(decisions, 0.99), "ms"),
        figure("of it: seeing the nodes as the model does, median", percentile(looks, 0.5), "ms"),
        figure("of it: judging and choosing, median", percentile(choices, 0.5), "ms"),
        figure("once per snapshot: what is free on all nodes", rooms, "ms"),
        figure("models that found a place", chosen, ""),
        figure(f"what if a node with {len(found)} replicas goes down", supposed, "ms"),
    ]
    return [Table(title=title, rows=rows)]


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.thread_time()
    result = work()
    return result, (time.thread_time() - began) * 1000


def made_up(scale: Scale) -> FleetSnapshot:
    """A fleet that is the same every time."""
    chance = random.Random(17)
    nodes = [_node(number, chance) for number in range(scale.nodes)]
    sizes = [chance.choice((1, 2, 4, 8, 16, 40)) * GIB for _ in range(scale.models)]
    specs = [
        ModelSpec(name=f"model-{number}", backend="llama-cpp", model=f"model-{number}.gguf", revision="r1")
        for number in range(scale.models)
    ]
    replicas = []
    for number in range(scale.replicas):
        node, which = chance.choice(nodes), chance.randrange(scale.models)
        memory = min(int(sizes[which] * 1.1), 4 * GIB)
        cards = (chance.choice(node.cards).id,) if node.cards else ()
        replicas.append(
            a_replica(
                id=ReplicaId(f"replica-{number}"),
                node_id=node.id,
                model=f"model-{which}",
                index=number,
                vram=memory if cards else 0,
                ram=0 if cards else memory,
                cards=cards,
                changed_at=after(-60),
            )
        )
    return FleetSnapshot(
        at=after(0),
        nodes=tuple(_seen(node, chance) for node in nodes),
        replicas=tuple(replicas),
        models={spec.name: spec for spec in specs},
        needs={spec.name: _needs(size) for spec, size in zip(specs, sizes, strict=True)},
    )


def _needs(size: int) -> ModelNeeds:
    return ModelNeeds(disk=size, ram=int(size * 1.1), vram=int(size * 1.1), splits=True)


def _node(number: int, chance: random.Random) -> Node:
    memory = chance.choice((32, 64, 128)) * GIB
    count = chance.choice((0, 0, 1, 2, 4, 8))
    cards = tuple(
        GpuCard(id=f"GPU-{number}-{card}", total=24 * GIB, free=chance.randrange(4, 24) * GIB) for card in range(count)
    )
    capacity = Capacity(
        total_ram=memory,
        available_ram=int(memory * chance.uniform(0.1, 0.9)),
        total_vram=sum(card.total for card in cards),
        available_vram=sum(card.free for card in cards),
        total_disk=1000 * GIB,
        available_disk=chance.randrange(10, 900) * GIB,
    )
    return a_node(
        id=NodeId(f"node-{number}"), name=f"node-{number}", cards=cards, capacity=capacity, reported_max_replicas=4
    )


def _seen(node: Node, chance: random.Random) -> SeenNode:
    status = NodeStatus.UNHEALTHY if chance.random() < 0.05 else NodeStatus.HEALTHY
    return SeenNode(node=node, status=status, silent_seconds=0.0, heard_seconds_ago=1.0)


def _reserved(spec: ModelSpec, choice: Placement) -> Replica:
    verdict = choice.verdict
    taken = {"vram": verdict.vram, "ram": verdict.ram, "cards": verdict.cards}
    return a_replica(model=spec.name, node_id=choice.node.id, index=choice.index, state=ReplicaState.RESERVED, **taken)
