"""The fleet in numbers, from a picture of it and what needs attention."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from corral.frontend.live.decide.picture import FleetPicture
from corral.frontend.nodes.decide.node import NodeStatus, SeenNode, ram_per_machine, vram_per_machine
from corral.frontend.operations.decide.operation import OperationState
from corral.frontend.serving.decide.replica import ReplicaState
from corral.wire.live import AttentionItem, FirstSteps, FleetSummary, MemoryUse

_THERE = frozenset({NodeStatus.HEALTHY, NodeStatus.DRAINING, NodeStatus.UNHEALTHY})
"""Nodes whose memory the fleet can count on, or could a moment ago."""
_OPEN = (OperationState.RUNNING, OperationState.WAITING, OperationState.FAILED)


def summarise(picture: FleetPicture, attention: Sequence[AttentionItem]) -> FleetSummary:
    statuses = Counter(seen.status for seen in picture.nodes)
    states = Counter(operation.state for operation in picture.operations if operation.dismissed_at is None)
    loaded = {replica.model for replica in picture.replicas if replica.state is ReplicaState.LOADED}
    severities = Counter(item.severity for item in attention)
    present = [seen for seen in picture.nodes if seen.status in _THERE]
    return FleetSummary(
        nodes={status.value: statuses[status] for status in NodeStatus},
        models=picture.models,
        loaded_models=len(loaded),
        replicas=len(picture.replicas),
        in_flight=sum(picture.in_flight.values()) if picture.is_load_known else None,
        waiting=sum(picture.waiting.values()),
        vram=_vram(present, sum(replica.vram for replica in picture.replicas)),
        ram=_ram(present, sum(replica.ram for replica in picture.replicas)),
        operations={state.value: states[state] for state in _OPEN},
        attention={severity: severities[severity] for severity in ("alarm", "warning", "notice")},
        brake=picture.control.brake,
        control="impaired" if picture.control.problems else "up",
        problems=list(picture.control.problems),
        frontends=picture.slow.frontends,
        started=FirstSteps(
            has_node=any(seen.status is not NodeStatus.PENDING for seen in picture.nodes),
            has_backend=picture.slow.has_backend,
            has_model=picture.models > 0,
            has_answer=picture.has_answer,
        ),
    )


def _vram(nodes: Iterable[SeenNode], reserved: int) -> MemoryUse:
    return _memory_use(vram_per_machine(seen.node for seen in nodes), reserved)


def _ram(nodes: Iterable[SeenNode], reserved: int) -> MemoryUse:
    machines = ram_per_machine(seen.node for seen in nodes)
    return _memory_use(machines, reserved) if machines else MemoryUse(reserved=reserved)


def _memory_use(machines: Collection[tuple[int, int]], reserved: int) -> MemoryUse:
    total = sum(total for total, _ in machines)
    return MemoryUse(total=total, used=total - sum(free for _, free in machines), reserved=reserved)
