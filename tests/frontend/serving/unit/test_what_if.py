"""What a change of the fleet would do: found by placing what would end, on a snapshot, without changing anything."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import ModelNeeds
from corral.frontend.nodes.decide.node import Capacity, GpuCard, Node, NodeStatus, SeenNode
from corral.frontend.serving.decide.load_job import LoadState
from corral.frontend.serving.decide.machine import given_back, room_of
from corral.frontend.serving.decide.placement import Placement, place
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.decide.what_if import (
    BackendDeleted,
    Change,
    Consequence,
    Fate,
    ModelScaled,
    NodeDown,
    NodeDrained,
    consequences,
)
from corral.frontend.serving.shapes import change_in_words, what_if_summary
from corral.frontend.serving.staging.decide.staged import StagedSummary
from tests.kit.samples import a_load_job, a_node, a_replica, after

GIB = 1024**3


def a_machine(name: str, ram: int, *, free: int | None = None, **fields: object) -> Node:
    capacity = Capacity(total_ram=ram * GIB, available_ram=(ram if free is None else free) * GIB)
    return a_node(id=NodeId(name), name=name, capacity=capacity, **fields)


def loaded(node: str, model: str, ram: int, *, index: int = 0, **fields: object) -> Replica:
    values = {"node_id": NodeId(node), "model": model, "index": index, "ram": ram * GIB, "changed_at": after(-60)}
    return a_replica(**{**values, **fields})


def a_fleet(nodes: list[Node], replicas: list[Replica], needs: dict[str, int], **fields: object) -> FleetSnapshot:
    seen = [SeenNode(node=node, status=NodeStatus.HEALTHY, silent_seconds=0, heard_seconds_ago=1) for node in nodes]
    values = {
        "at": after(0),
        "nodes": tuple(seen),
        "replicas": tuple(replicas),
        "models": {name: ModelSpec(name=name, backend="echo", revision="r1") for name in needs},
        "needs": {name: ModelNeeds(ram=ram * GIB) for name, ram in needs.items()},
    }
    return FleetSnapshot(**{**values, **fields})  # type: ignore[arg-type]


def told(found: tuple[Consequence, ...]) -> list[tuple[str, str, str | None]]:
    return [(each.model, each.fate.value, each.to) for each in found]


def test_what_a_dead_node_ran_goes_where_there_is_room_and_the_lone_ones_first() -> None:
    fleet = a_fleet(
        [a_machine("a", 16), a_machine("b", 8)],
        [loaded("a", "twin", 5), loaded("b", "twin", 3), loaded("a", "lone", 4), loaded("a", "huge", 7)],
        {"twin": 5, "lone": 4, "huge": 7},
    )
    found = consequences(fleet, NodeDown(node_id=NodeId("a")))

    assert told(found) == [("huge", "service_lost", None), ("lone", "moves", "b"), ("twin", "replica_lost", None)]
    huge, lone, twin = found
    assert (huge.on, huge.why, huge.is_curable) == ("a", "a is offline; b has 5.0 GiB free and needs 7.0 GiB", True)
    assert lone.is_interrupted
    assert (twin.why, twin.is_curable) == ("a is offline; b already has 1 of 1 replicas of it", False)
    assert change_in_words(NodeDown(node_id=NodeId("a")), {NodeId("a"): "gpu-1"}) == "gpu-1 goes down"
    assert what_if_summary(found) == (
        "1 model without any replica; 1 replica lost without a place elsewhere; 1 replica loaded elsewhere; "
        "no answers from lone until loaded again"
    )


def test_a_drained_node_keeps_what_has_no_place_elsewhere() -> None:
    fleet = a_fleet(
        [a_machine("a", 16), a_machine("b", 8)],
        [loaded("a", "small", 2), loaded("a", "huge", 9)],
        {"small": 2, "huge": 9},
    )
    found = consequences(fleet, NodeDrained(node_id=NodeId("a")))

    assert told(found) == [("huge", "stays", None), ("small", "moves", "b")]
    assert "a is draining" in found[0].why
    assert not any(each.is_interrupted for each in found)


def test_more_replicas_take_places_one_after_the_other_until_there_is_none() -> None:
    fleet = a_fleet([a_machine("a", 8), a_machine("b", 8), a_machine("c", 2)], [loaded("a", "m", 4)], {"m": 4})
    found = consequences(fleet, ModelScaled(model="m", count=4))

    assert told(found) == [("m", "added", "b"), ("m", "not_added", None)]
    assert found[1].why == (
        "a already has 1 of 1 replicas of it; b already has 1 of 1 replicas of it; c has 2.0 GiB free and needs 4.0 GiB"
    )


def test_fewer_replicas_end_those_that_would_be_missed_least() -> None:
    busy, idle, fresh = loaded("a", "m", 1), loaded("b", "m", 1), loaded("c", "m", 1)
    coming = loaded("d", "m", 1, state=ReplicaState.LOADING)
    fleet = a_fleet(
        [a_machine(name, 8) for name in "abcd"],
        [busy, idle, fresh, coming],
        {"m": 1},
        in_flight={busy.id: 2},
        last_used={idle.id: after(-50), fresh.id: after(-5), busy.id: after(-90)},
    )

    found = consequences(fleet, ModelScaled(model="m", count=1))
    assert [(each.fate, each.on) for each in found] == [(Fate.ENDED, "d"), (Fate.ENDED, "b"), (Fate.ENDED, "c")]


def test_a_deleted_backend_ends_all_that_it_runs_and_comes_back_with_the_next_request() -> None:
    full = a_machine("a", 8, free=2)
    fleet = a_fleet([full], [loaded("a", "m", 5), loaded("a", "other", 1, backend="whisper")], {"m": 5})
    found = consequences(fleet, BackendDeleted(backend="echo"))

    assert told(found) == [("m", "moves", "a")]
    assert found[0].is_interrupted
    assert "installed again as soon as somebody asks" in found[0].why
    assert consequences(fleet, BackendDeleted(backend="vllm")) == ()


def test_a_machine_gets_back_what_it_had_seen_of_a_replica_and_no_more() -> None:
    card = GpuCard(id="GPU-1", total=12 * GIB, free=2 * GIB)
    node = a_node(
        cards=(card,),
        capacity=Capacity(total_ram=8 * GIB, available_ram=7 * GIB, total_vram=12 * GIB, available_vram=2 * GIB),
    )
    seen = a_replica(node_id=node.id, ram=2 * GIB, vram=8 * GIB, cards=("GPU-1",), changed_at=after(-9))
    unseen = a_replica(node_id=node.id, ram=GIB, state=ReplicaState.LOADING)
    after_it = given_back(node, [seen, unseen])

    assert after_it.capacity.available_ram == 8 * GIB
    assert (after_it.capacity.available_vram, after_it.cards[0].free) == (10 * GIB, 10 * GIB)
    assert given_back(node, [unseen]) is node
    assert room_of(after_it, []).cards[0].free == 10 * GIB


# Whatever the fleet is like.

names = st.sampled_from(["a", "b", "c", "d"])
models = st.sampled_from(["m", "n", "o", "p", "q"])


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    nodes = [
        a_machine(
            name, draw(st.integers(0, 16)), free=draw(st.integers(0, 20)), reported_max_replicas=draw(st.integers(1, 3))
        )
        for name in "abcd"[: draw(st.integers(1, 4))]
    ]
    needs = {name: draw(st.integers(0, 9)) for name in "mnopq"}
    replicas: list[Replica] = []
    for node, model in draw(st.lists(st.tuples(st.sampled_from(nodes), models), max_size=8)):
        index = sum(one.node_id == node.id and one.model == model for one in replicas)
        if index < node.max_replicas_per_model:
            state = draw(st.sampled_from([ReplicaState.LOADED, ReplicaState.LOADING, ReplicaState.UNLOADING]))
            replicas.append(loaded(node.id, model, needs[model], index=index, state=state))
    return a_fleet(nodes, replicas, needs)


changes = st.one_of(
    names.map(lambda name: NodeDown(node_id=NodeId(name))),
    names.map(lambda name: NodeDrained(node_id=NodeId(name))),
    st.builds(ModelScaled, model=models, count=st.integers(0, 6)),
    st.sampled_from([BackendDeleted(backend="echo"), BackendDeleted(backend="none")]),
)


@given(fleets(), changes, st.randoms())
def test_the_answer_does_not_depend_on_the_order_of_the_fleet(fleet: FleetSnapshot, change: Change, chance) -> None:  # type: ignore[no-untyped-def]
    nodes, replicas = list(fleet.nodes), list(fleet.replicas)
    chance.shuffle(nodes)
    chance.shuffle(replicas)
    shuffled = replace(fleet, nodes=tuple(nodes), replicas=tuple(replicas))

    assert told(consequences(fleet, change)) == told(consequences(shuffled, change))


@given(fleets(), changes)
def test_nothing_is_promised_twice_and_every_replica_is_accounted_for(fleet: FleetSnapshot, change: Change) -> None:
    found = consequences(fleet, change)
    free = {seen.node.id: room_of(seen.node, fleet.replicas_by_node.get(seen.node.id, ())).ram for seen in fleet.nodes}
    taken: dict[str, int] = {}
    for each in found:
        if each.to is not None:
            taken[each.to] = taken.get(each.to, 0) + fleet.needs_of(each.model).ram

    if not isinstance(change, BackendDeleted):  # that gives memory back first
        for node, count in taken.items():
            room = free[NodeId(node)]
            assert room is None or count <= room
    if isinstance(change, NodeDown | NodeDrained):
        there = [
            one for one in fleet.replicas_by_node.get(change.node_id, ()) if one.state is not ReplicaState.UNLOADING
        ]
        assert len(found) == len(there)
        assert all(each.to != change.node_id for each in found)


@given(fleets(), models)
def test_where_nothing_changes_nothing_moves(fleet: FleetSnapshot, model: str) -> None:
    count = sum(one.state is not ReplicaState.UNLOADING for one in fleet.of_model(model))

    assert consequences(fleet, ModelScaled(model=model, count=count)) == ()
    assert consequences(fleet, NodeDown(node_id=NodeId("nobody"))) == ()
    assert what_if_summary(()) == "nothing would change"


@given(fleets(), models, st.booleans())
def test_what_is_kept_of_a_snapshot_is_what_a_new_look_would_find(
    fleet: FleetSnapshot, model: str, was_asked: bool
) -> None:
    spec = fleet.models[model]
    if was_asked:
        fleet.candidates(spec)
    choice = place(fleet.request(spec), fleet.candidates(spec))
    if not isinstance(choice, Placement):
        return
    ram = {"ram": choice.verdict.ram, "state": ReplicaState.RESERVED, "index": choice.index}
    kept = fleet.with_replica(a_replica(node_id=choice.node.id, model=model, **ram))
    anew = replace(kept)

    assert kept.candidates(spec) == anew.candidates(spec)
    assert kept.rooms == anew.rooms
    assert place(kept.request(spec), kept.candidates(spec)) == place(anew.request(spec), anew.candidates(spec))


def test_files_of_another_revision_or_newer_than_the_last_heartbeat_still_need_their_room() -> None:
    node = a_machine("a", 16)
    heard = node.facts.last_heartbeat
    present = StagedSummary(node_id=NodeId("a"), model="other", revision="r1", deletable_bytes=GIB)
    coming = a_replica(node_id=NodeId("a"), model="other", index=0, state=ReplicaState.STAGING)
    fleet = a_fleet([node], [coming], {"m": 1, "other": 1})

    def measured(staged: StagedSummary) -> frozenset[str]:
        return replace(fleet, staged=(staged,)).candidates(fleet.models["m"])[0].staged

    assert measured(present) == {"other"}
    assert measured(replace(present, brought_at=heard - timedelta(seconds=1))) == {"other"}
    assert not measured(replace(present, brought_at=heard))
    assert not measured(replace(present, revision="r0"))


def test_only_files_that_nobody_needs_make_room() -> None:
    def staged(model: str, revision: str = "r1") -> StagedSummary:
        return StagedSummary(node_id=NodeId("a"), model=model, revision=revision, deletable_bytes=GIB)

    names = ("running", "ruled", "loading", "failed", "idle", "other")
    fleet = a_fleet(
        [a_machine("a", 16)],
        [loaded("a", "running", 1)],
        dict.fromkeys(names, 1),
        rules={"ruled": SchedulingWish(model="ruled", min_replicas=1), "idle": SchedulingWish(model="idle")},
        jobs=(a_load_job(model="loading"), a_load_job(model="failed", state=LoadState.FAILED)),
        staged=tuple(staged(name) for name in names if name != "other"),
    )

    found = {name: fleet.candidates(fleet.models[name])[0] for name in names}

    assert {name: each.reclaimable // GIB for name, each in found.items()} == {
        **dict.fromkeys(("running", "ruled", "loading", "other"), 2),
        **dict.fromkeys(("failed", "idle"), 1),
    }
    assert [name for name in names if not found[name].has_files] == ["other"]
    assert fleet.candidate(NodeId("a"), fleet.models["idle"]) == found["idle"]
    changed = replace(fleet, staged=(staged("idle", "r0"),)).candidates(fleet.models["idle"])[0]
    assert (changed.has_files, changed.reclaimable) == (False, 0)
