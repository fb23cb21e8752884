"""What must hold after every step, whatever was broken. Each check raises AssertionError with what it found."""

from collections.abc import Mapping, Sequence

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.liveness import status_of
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import EventKind
from corral.wire.nodes import EventView, NodeDetail
from tests.kit.members import ClusterFrontend


def record_is_sound(record: Sequence[EventView]) -> None:
    """No gap, and each announcement of a status starts where the last one of that node ended."""
    assert [event.sequence for event in record] == list(range(1, len(record) + 1)), "the record of events has a gap"
    announced: dict[str | None, object] = {}
    for event in record:
        if event.kind == EventKind.NODE_STATUS:
            before = event.data["before"]
            assert before == announced.get(event.node_id), f"{event.data} contradicts {announced.get(event.node_id)}"
            announced[event.node_id] = event.data["after"]


def approval_was_given(nodes: Mapping[NodeId, NodeDetail], record: Sequence[EventView]) -> None:
    """No node is approved, or anything but pending, without an approval by a person."""
    approved = {event.node_id for event in record if event.kind == EventKind.NODE_APPROVED}
    for node in nodes.values():
        if node.id not in approved:
            assert not node.approved, f"{node.name} is approved by {node.approved_by!r}, but nobody did that"
            assert node.status == "pending", f"{node.name} is {node.status} without approval"


def ids_are_kept(
    before: Mapping[str, NodeId], nodes: Mapping[NodeId, NodeDetail], record: Sequence[EventView]
) -> dict[str, NodeId]:
    """Each worker is one node, with the id that it had unless a person removed that node. Returns ids by name."""
    ids = {node.name: node_id for node_id, node in nodes.items()}
    assert len(ids) == len(nodes), f"one worker is several nodes: {sorted(node.name for node in nodes.values())}"
    removed = {event.node_id for event in record if event.kind == EventKind.NODE_REMOVED}
    for name, node_id in before.items():
        assert ids.get(name) == node_id or node_id in removed, f"{name} was {node_id} and is now {ids.get(name)}"
    return ids


def labels_are_kept(given: Mapping[NodeId, Mapping[str, str]], nodes: Mapping[NodeId, NodeDetail]) -> None:
    """What people wrote on a node is there for as long as the node is."""
    for node_id, labels in given.items():
        if node_id in nodes:
            missing = labels.items() - nodes[node_id].labels.items()
            assert not missing, f"{nodes[node_id].name} lost {missing}"


async def statuses_follow_from_facts(frontend: ClusterFrontend, seen: Mapping[NodeId, NodeDetail]) -> None:
    """What a frontend answers is the pure function of what is stored, by its own clock."""
    context = frontend.control.context
    stored = {node.id: node for node in await Nodes(context.database).all()}
    assert stored.keys() == seen.keys(), f"{frontend.name} does not list what is stored"
    for node_id, node in stored.items():
        expected = status_of(
            node.facts, frontend.clock.now(), context.nodes.fleet.policy, context.nodes.hearing.current
        )
        assert seen[node_id].status == expected, f"{frontend.name} says {seen[node_id].status} instead of {expected}"
