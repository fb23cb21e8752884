"""Where a model goes, and why not elsewhere."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import ModelNeeds, needs_by_size
from corral.frontend.nodes.decide.node import Capacity, GpuCard, Node, NodeStatus, NodeType, Peer, SeenNode
from corral.frontend.serving.decide.machine import room_of
from corral.frontend.serving.decide.placement import (
    CURABLE,
    CandidateNode,
    Placement,
    PlacementRefusal,
    PlacementRequest,
    VerdictCode,
    free_index,
    judge,
    place,
)
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from tests.kit.samples import a_node, a_replica, after

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
    failed = a_candidate("failed")
    request = PlacementRequest(model="m", needs=needs_by_size(2 * GIB), exclude={failed.node.id: ""})
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


# Memory, disks and cards.


def test_room_on_a_disk_is_given_away_once() -> None:
    node = a_node(name="a", capacity=Capacity(total_disk=40 * GIB, available_disk=20 * GIB))
    request = PlacementRequest(model="m", needs=ModelNeeds(disk=10 * GIB))
    coming = a_replica(node_id=node.id, model="other", index=0, state=ReplicaState.STAGING)
    candidate = CandidateNode(node=node, status=NodeStatus.HEALTHY, replicas=(coming,), disks={"other": 12 * GIB})

    verdict = judge(request, candidate)
    assert verdict.code is VerdictCode.NO_DISK
    assert verdict.why == "has 20.0 GiB free on its disk, with 12.0 GiB more on their way there, and needs 11.0 GiB"
    heard = node.facts.last_heartbeat
    for state in (ReplicaState.LOADING, ReplicaState.LOADED):
        just_there, there = (replace(coming, state=state, changed_at=heard + timedelta(seconds=age)) for age in (1, -1))
        assert judge(request, replace(candidate, replicas=(just_there,))).code is VerdictCode.NO_DISK
        assert judge(request, replace(candidate, replicas=(there,))).fits  # the disk has told since
    for fitting in (
        replace(candidate, staged=frozenset({"other"})),
        replace(candidate, replicas=(replace(coming, model="m"),), disks={"m": 12 * GIB}, node=_two_places(node)),
    ):
        assert judge(request, fitting).fits


def _two_places(node: Node) -> Node:
    return replace(node, reported_max_replicas=2)


def test_a_node_whose_disk_is_too_full_is_left_out_unless_it_has_the_files_or_can_make_room() -> None:
    small = Capacity(total_disk=20 * GIB, available_disk=4 * GIB)
    request = PlacementRequest(model="m", needs=needs_by_size(4 * GIB))

    verdict = judge(request, a_candidate("a", capacity=small))
    assert (verdict.code, verdict.why) == (VerdictCode.NO_DISK, "has 4.0 GiB free on its disk and needs 5.0 GiB")
    assert verdict.numbers == {"free": 4 * GIB, "needed": 5 * GIB}
    assert judge(request, replace(a_candidate("a", capacity=small), has_files=True)).fits
    assert judge(request, replace(a_candidate("a", capacity=small), reclaimable=GIB)).fits


def test_what_loads_under_way_will_take_is_not_free() -> None:
    node = a_node(name="a", capacity=Capacity(total_ram=8 * GIB, available_ram=8 * GIB))
    loading = a_replica(node_id=node.id, model="x", state=ReplicaState.LOADING, ram=5 * GIB)
    request = PlacementRequest(model="m", needs=ModelNeeds(ram=4 * GIB))

    verdict = judge(request, CandidateNode(node=node, status=NodeStatus.HEALTHY, replicas=(loading,)))
    assert (verdict.code, verdict.why) == (VerdictCode.NO_RAM, "has 3.0 GiB free and needs 4.0 GiB")


def test_a_node_that_promises_more_than_it_has_is_not_believed() -> None:
    node = a_node(name="a", capacity=Capacity(total_ram=8 * GIB, available_ram=80 * GIB))
    loaded = a_replica(node_id=node.id, model="x", ram=6 * GIB, changed_at=after(-60))

    assert room_of(node, [loaded]).ram == 2 * GIB


def test_a_model_goes_onto_cards_where_there_are_some() -> None:
    cards = tuple(GpuCard(id=f"GPU-{n}", total=12 * GIB, free=12 * GIB) for n in (1, 2))
    candidate = a_candidate("a", cards=cards, capacity=Capacity(total_ram=64 * GIB, available_ram=64 * GIB))
    needs = ModelNeeds(ram=20 * GIB, vram=20 * GIB, ram_beside_gpu=GIB)

    refused = judge(PlacementRequest(model="m", needs=needs), candidate)
    assert refused.code is VerdictCode.NO_VRAM
    spread = judge(PlacementRequest(model="m", needs=replace(needs, splits=True)), candidate)
    assert (spread.code, set(spread.cards), spread.vram, spread.ram) == (
        VerdictCode.FITS,
        {"GPU-1", "GPU-2"},
        20 * GIB,
        GIB,
    )
    one_out = replace(cards[1], is_out=True)
    only_one = replace(candidate, node=replace(candidate.node, cards=(cards[0], one_out)))
    assert not judge(PlacementRequest(model="m", needs=replace(needs, splits=True)), only_one).fits


def test_what_replicas_have_on_a_card_is_not_free_there() -> None:
    cards = tuple(GpuCard(id=f"GPU-{n}", total=12 * GIB, free=12 * GIB) for n in (1, 2))
    node = a_node(name="a", cards=cards)
    both = a_replica(node_id=node.id, model="x", state=ReplicaState.RESERVED, vram=8 * GIB, cards=("GPU-1", "GPU-2"))
    one = a_replica(node_id=node.id, model="y", state=ReplicaState.STAGING, vram=2 * GIB, cards=("GPU-2",))

    assert [card.free for card in room_of(node, [both, one]).cards] == [4 * GIB, 2 * GIB], "spread nobody knows how"
    loaded = replace(both, state=ReplicaState.LOADED, changed_at=node.facts.last_heartbeat - timedelta(seconds=1))
    assert [card.free for card in room_of(node, [loaded, one]).cards] == [8 * GIB, 6 * GIB]


def test_an_engine_that_was_told_a_number_of_cards_gets_so_many() -> None:
    """With fewer it would not start, however much room there is on one."""
    cards = tuple(GpuCard(id=f"GPU-{n}", total=24 * GIB, free=24 * GIB) for n in (1, 2))
    needs = ModelNeeds(vram=10 * GIB, splits=True, card_count=2)
    request, one = PlacementRequest(model="m", needs=needs), a_candidate("a", cards=cards[:1])

    assert judge(request, a_candidate("b", cards=cards)).cards == ("GPU-1", "GPU-2")
    assert judge(request, one).why == "has 1 of 2 GPUs in service that its engine was told to use"
    sums = a_candidate("c", capacity=Capacity(total_vram=48 * GIB, available_vram=48 * GIB))
    assert judge(request, sums).fits, "a machine that tells only sums gets the benefit of the doubt"


def test_what_uses_no_gpu_needs_none_in_service() -> None:
    out = GpuCard(id="GPU-1", total=24 * GIB, free=24 * GIB, is_out=True)
    candidate = a_candidate("a", cards=(out,), capacity=Capacity(total_ram=64 * GIB, available_ram=64 * GIB))
    by_processor = judge(PlacementRequest(model="m", needs=ModelNeeds(ram_beside_gpu=4 * GIB)), candidate)

    assert (by_processor.fits, by_processor.ram, by_processor.cards) == (True, 4 * GIB, ())
    assert judge(PlacementRequest(model="m", needs=ModelNeeds(vram=GIB)), candidate).why == "has no GPU in service"


def test_gpus_for_which_a_machine_gets_no_builds_do_not_count() -> None:
    """As those of laptops with 2 GiB: models run beside them, in the machine's memory."""
    small = GpuCard(id="GPU-1", total=2 * GIB, free=2 * GIB)
    capacity = Capacity(total_ram=64 * GIB, available_ram=64 * GIB, total_vram=2 * GIB, available_vram=2 * GIB)
    request = PlacementRequest(model="m", needs=ModelNeeds(ram=8 * GIB, vram=8 * GIB))

    for cards in ((small,), ()):
        assert judge(request, a_candidate("a", cards=cards, capacity=capacity, capability="default")).ram == 8 * GIB
        assert not judge(request, a_candidate("b", cards=cards, capacity=capacity, capability="nvidia")).fits


def test_a_machine_that_tells_only_sums_has_one_large_card() -> None:
    node = a_node(name="a", capacity=Capacity(total_vram=24 * GIB, available_vram=20 * GIB), admin_vram_budget="50%")
    verdict = judge(
        PlacementRequest(model="m", needs=ModelNeeds(vram=13 * GIB)),
        CandidateNode(node=node, status=NodeStatus.HEALTHY),
    )

    assert (verdict.code, verdict.numbers["free"]) == (VerdictCode.NO_VRAM, 12 * GIB)


def test_memory_that_card_and_machine_share_counts_once() -> None:
    card = GpuCard(id="GPU-1", total=16 * GIB, free=10 * GIB, shares_ram=True)
    node = a_node(name="a", cards=(card,), capacity=Capacity(total_ram=16 * GIB, available_ram=10 * GIB))
    verdict = judge(
        PlacementRequest(model="m", needs=ModelNeeds(vram=9 * GIB, ram_beside_gpu=2 * GIB)),
        CandidateNode(node=node, status=NodeStatus.HEALTHY),
    )

    assert (verdict.code, verdict.why) == (VerdictCode.NO_RAM, "has 10.0 GiB free and needs 11.0 GiB")


def test_rules_are_told_before_room() -> None:
    candidate = a_candidate("a", "rival")
    told = {
        "pinned": judge(PlacementRequest(model="m", pinned=frozenset({NodeId("other")})), candidate),
        "selected": judge(PlacementRequest(model="m", selector={"gpu": "yes"}), candidate),
        "unfit": judge(PlacementRequest(model="m"), replace(candidate, unfit="no build for arm64")),
        "rival": judge(PlacementRequest(model="m", rivals=frozenset({"rival"})), candidate),
    }

    assert {name: verdict.why for name, verdict in told.items()} == {
        "pinned": "is not one of the nodes that the model is pinned to",
        "selected": "does not have the labels gpu=yes",
        "unfit": "cannot run the backend: no build for arm64",
        "rival": "runs rival, which shares a concurrency group with it",
    }
    assert {name for name, verdict in told.items() if verdict.code in CURABLE} == {"rival"}


def test_files_and_backend_outweigh_some_other_replicas_but_not_many() -> None:
    request = PlacementRequest(model="m")
    ready = replace(a_candidate("ready", "x", "y"), has_files=True, has_backend=True)
    chosen = place(request, [a_candidate("empty"), ready])
    assert isinstance(chosen, Placement)
    assert chosen.node.name == "ready"
    assert chosen.verdict.score == {"has the files": 40.0, "has the backend": 20.0, "other replicas": -20.0}

    crowded = replace(ready, replicas=tuple(a_replica(model=f"x{n}", node_id=ready.node.id) for n in range(7)))
    chosen = place(request, [a_candidate("empty"), crowded])
    assert isinstance(chosen, Placement)
    assert chosen.node.name == "empty"


bytes_ = st.integers(0, 40).map(lambda count: count * GIB)


@given(
    st.lists(st.tuples(bytes_, bytes_, st.lists(st.tuples(bytes_, bytes_), max_size=3)), min_size=1, max_size=5),
    st.lists(st.tuples(bytes_, bytes_, st.booleans()), max_size=12),
)
def test_whatever_machines_report_no_more_is_promised_than_they_have(
    machines: list[tuple[int, int, list[tuple[int, int]]]], models: list[tuple[int, int, bool]]
) -> None:
    """Loads begin one after the other, and no machine reports in between; some lie about what is free."""
    nodes = [
        a_node(
            name=f"n{number}",
            reported_max_replicas=5,
            capacity=Capacity(total_ram=total, available_ram=available),
            cards=tuple(
                GpuCard(id=f"n{number}-{card}", total=all, free=free) for card, (all, free) in enumerate(cards)
            ),
        )
        for number, (total, available, cards) in enumerate(machines)
    ]
    taken: list[Replica] = []
    for ram, vram, splits in models:
        needs = ModelNeeds(ram=ram, vram=vram, ram_beside_gpu=ram // 4, splits=splits)
        chosen = place(
            PlacementRequest(model="m", needs=needs),
            [
                CandidateNode(
                    node=node,
                    status=NodeStatus.HEALTHY,
                    replicas=tuple(one for one in taken if one.node_id == node.id),
                )
                for node in nodes
            ],
        )
        if isinstance(chosen, Placement):
            verdict = chosen.verdict
            place_there = {"node_id": chosen.node.id, "index": chosen.index, "model": "m"}
            reserved = {"vram": verdict.vram, "ram": verdict.ram, "cards": verdict.cards}
            taken.append(a_replica(state=ReplicaState.RESERVED, **place_there, **reserved))

    for node in nodes:
        there = [one for one in taken if one.node_id == node.id]
        assert len({one.index for one in there}) == len(there) <= 5
        if node.capacity.total_ram:
            assert sum(one.ram for one in there) <= min(node.capacity.total_ram, node.capacity.available_ram)
        for card in node.cards:
            alone = [one.vram for one in there if one.cards == (card.id,)]
            assert sum(alone) <= min(card.total, card.free)


def pooled(name: str, pool: str, *, total: int = 8 * GIB) -> SeenNode:
    node = a_node(
        id=name,
        name=name,
        capacity=Capacity(total_ram=total, available_ram=total),
        peer=Peer(version="1", memory_pool=pool),
    )
    return SeenNode(node=node, status=NodeStatus.HEALTHY, silent_seconds=0, heard_seconds_ago=0)


def fleet_of(*nodes: SeenNode, replicas: tuple[Replica, ...] = ()) -> FleetSnapshot:
    return FleetSnapshot(at=after(0), nodes=nodes, replicas=replicas)


def test_nodes_of_one_machine_share_its_memory() -> None:
    large = a_replica(node_id="a", model="large", state=ReplicaState.RESERVED, ram=5 * GIB)
    shared = fleet_of(pooled("a", "p"), pooled("b", "p"), replicas=(large,))
    apart = fleet_of(pooled("a", "p"), pooled("b", "q"), replicas=(large,))
    silent = fleet_of(pooled("a", ""), pooled("b", ""), replicas=(large,))

    assert [fleet.rooms[NodeId("b")].room.ram for fleet in (shared, apart, silent)] == [3 * GIB, 8 * GIB, 8 * GIB]
    assert [fleet.rooms[NodeId("a")].room.ram for fleet in (shared, apart, silent)] == [3 * GIB] * 3


def test_a_node_that_names_the_memory_of_another_size_of_machine_does_not_take_part_in_it() -> None:
    large = a_replica(node_id="a", model="large", state=ReplicaState.RESERVED, ram=5 * GIB)
    fleet = fleet_of(pooled("a", "p", total=64 * GIB), pooled("b", "p"), replicas=(large,))

    assert fleet.rooms[NodeId("b")].room.ram == 8 * GIB


def test_a_reservation_takes_its_memory_from_all_nodes_of_the_machine() -> None:
    fleet = fleet_of(pooled("a", "p"), pooled("b", "p"), pooled("c", "q"))
    spec = ModelSpec(name="m", backend="echo", revision="r1")
    before = {candidate.node.id: candidate.room.ram for candidate in fleet.candidates(spec)}
    reserved = a_replica(node_id="a", model="large", state=ReplicaState.RESERVED, ram=5 * GIB)

    after_it = {each.node.id: each.room.ram for each in fleet.with_replica(reserved).candidates(spec)}

    assert before == {"a": 8 * GIB, "b": 8 * GIB, "c": 8 * GIB}
    assert after_it == {"a": 3 * GIB, "b": 3 * GIB, "c": 8 * GIB}
    again = fleet_of(*fleet.nodes, replicas=(reserved,)).candidates(spec)
    assert after_it == {each.node.id: each.room.ram for each in again}
