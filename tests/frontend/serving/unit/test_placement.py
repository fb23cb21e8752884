"""Where a model goes, and why not elsewhere."""

from hypothesis import given
from hypothesis import strategies as st

from corral.frontend.nodes.decide.node import Capacity, NodeStatus, NodeType, Peer
from corral.frontend.serving.decide.placement import (
    CandidateNode,
    Placement,
    PlacementRefusal,
    PlacementRequest,
    free_index,
    place,
)
from corral.frontend.serving.decide.replica import ReplicaState
from tests.kit.samples import a_node, a_replica

GIB = 1024**3


def a_candidate(name: str, *replicas: str, status: NodeStatus = NodeStatus.HEALTHY, **fields: object) -> CandidateNode:
    node = a_node(name=name, **fields)
    there = tuple(a_replica(node_id=node.id, model=model, index=0) for model in replicas)
    return CandidateNode(node=node, status=status, replicas=there)


def test_the_node_with_the_fewest_replicas_is_chosen() -> None:
    chosen = place(PlacementRequest(model="m"), [a_candidate("a", "x"), a_candidate("b"), a_candidate("c", "x", "y")])

    assert isinstance(chosen, Placement)
    assert chosen.node.name == "b"
    assert chosen.reasons == {"a": "comes after b", "c": "comes after b"}


def test_among_equals_the_one_with_more_room_is_chosen() -> None:
    small = a_candidate("a", capacity=Capacity(total_ram=8 * GIB, available_ram=GIB))
    large = a_candidate("b", capacity=Capacity(total_ram=8 * GIB, available_ram=4 * GIB))

    chosen = place(PlacementRequest(model="m"), [small, large])

    assert isinstance(chosen, Placement)
    assert chosen.node.name == "b"


def test_workers_of_localais_are_chosen_by_the_same_merit_as_our_own() -> None:
    ours, theirs = a_candidate("ours", "x", peer=Peer(version="1")), a_candidate("theirs")

    chosen = place(PlacementRequest(model="m"), [ours, theirs])

    assert isinstance(chosen, Placement)
    assert (chosen.node.name, chosen.reasons) == ("theirs", {"ours": "comes after theirs"})


def test_every_node_that_cannot_take_it_says_why() -> None:
    request = PlacementRequest(model="m", size_bytes=2 * GIB, exclude={(failed := a_candidate("failed")).node.id})
    refused = place(
        request,
        [
            failed,
            a_candidate("silent", status=NodeStatus.UNHEALTHY),
            a_candidate("agent", type=NodeType.AGENT),
            a_candidate("full", "m"),
            a_candidate("small", capacity=Capacity(total_ram=2 * GIB, available_ram=GIB)),
        ],
    )

    assert isinstance(refused, PlacementRefusal)
    assert refused.reasons == {
        "failed": "failed just now",
        "silent": "is unhealthy",
        "agent": "runs no backends",
        "full": "already has 1 of 1 replicas of it",
        "small": "has 1.0 GiB free and needs 2.2 GiB",
    }
    assert "silent is unhealthy" in refused.message


def test_a_fleet_without_nodes_is_told_apart() -> None:
    refused = place(PlacementRequest(model="m"), [])

    assert isinstance(refused, PlacementRefusal)
    assert refused.message == "no node has joined yet"


def test_a_node_that_may_have_several_gets_the_next_index() -> None:
    chosen = place(PlacementRequest(model="m"), [a_candidate("a", "m", reported_max_replicas=2)])

    assert isinstance(chosen, Placement)
    assert chosen.index == 1


def test_the_index_of_a_replica_that_is_gone_is_free_again() -> None:
    gone = a_replica(model="m", index=0, state=ReplicaState.LOST)

    assert free_index([gone, a_replica(model="m", index=1)]) == 0


@given(st.lists(st.tuples(st.sampled_from(NodeStatus), st.integers(0, 3)), max_size=8))
def test_a_choice_is_healthy_and_has_room_and_none_is_better(fleet: list[tuple[NodeStatus, int]]) -> None:
    candidates = [
        a_candidate(f"n{number}", *["x"] * count, status=status) for number, (status, count) in enumerate(fleet)
    ]
    chosen = place(PlacementRequest(model="m"), candidates)
    healthy = [candidate for candidate in candidates if candidate.status is NodeStatus.HEALTHY]

    if isinstance(chosen, PlacementRefusal):
        assert not healthy
        assert len(chosen.reasons) == len(candidates)
    else:
        best = next(candidate for candidate in healthy if candidate.node.id == chosen.node.id)
        assert len(best.replicas) == min(len(candidate.replicas) for candidate in healthy)
