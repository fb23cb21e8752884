"""What a drain moves, what it ends, and what it must leave."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import ModelNeeds
from corral.frontend.nodes.decide.node import Capacity, NodeStatus, SeenNode
from corral.frontend.serving.decide.draining import (
    NOT_READ,
    SETTLED_AFTER,
    DrainStep,
    as_drained,
    left_over,
    plan_drain,
)
from corral.frontend.serving.decide.load_job import LoadState, LoadWhy
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.wire.models import LoadReason
from tests.kit.samples import a_load_job, a_node, a_replica, after

GIB = 1024**3
HERE = NodeId("here")
ELSEWHERE = NodeId("elsewhere")


def a_fleet(*replicas: Replica, room: int = 8, least: int = 0, **fields: object) -> FleetSnapshot:
    """A node that is drained, and one that has this much memory."""
    nodes = [
        (HERE, NodeStatus.DRAINING, 64),
        (ELSEWHERE, NodeStatus.HEALTHY, room),
    ]
    seen = tuple(
        SeenNode(
            node=a_node(id=id, name=id, capacity=Capacity(total_ram=gib * GIB, available_ram=gib * GIB)),
            status=status,
            silent_seconds=0,
            heard_seconds_ago=0,
        )
        for id, status, gib in nodes
    )
    return FleetSnapshot(
        **{  # type: ignore[arg-type]
            "at": after(100),
            "nodes": seen,
            "replicas": replicas,
            "models": {"m": ModelSpec(name="m", backend="echo", revision="r1")},
            "needs": {"m": ModelNeeds(ram=4 * GIB)},
            "rules": {"m": SchedulingWish(model="m", min_replicas=least)},
            **fields,
        }
    )


def on(node_id: NodeId, **fields: object) -> Replica:
    return a_replica(node_id=node_id, model="m", **fields)


def steps(snapshot: FleetSnapshot) -> list[DrainStep]:
    return [each.step for each in plan_drain(snapshot, HERE).replicas]


def test_a_node_without_replicas_is_drained() -> None:
    plan = plan_drain(a_fleet(on(ELSEWHERE)), HERE)

    assert (plan.is_done, plan.loads, plan.unload, plan.requests_left) == (True, (), (), 0)


def test_the_only_replica_is_loaded_elsewhere_first() -> None:
    plan = plan_drain(a_fleet(on(HERE)), HERE)

    assert [(wanted.spec.name, wanted.loads) for wanted in plan.loads] == [("m", 1)]
    assert plan.unload == ()
    assert [(each.step, each.why) for each in plan.replicas] == [
        (DrainStep.MOVES, "another one is to be loaded, on elsewhere or elsewhere")
    ]


def test_it_waits_for_a_load_that_is_under_way() -> None:
    job = a_load_job(model="m", state=LoadState.LOADING, node_id=ELSEWHERE)
    plan = plan_drain(a_fleet(on(HERE), jobs=(job,)), HERE)

    assert (plan.loads, plan.unload, plan.replicas[0].step) == ((), (), DrainStep.MOVES)


def test_a_load_on_the_very_node_is_not_counted_on() -> None:
    job = a_load_job(model="m", state=LoadState.LOADING, node_id=HERE)
    coming = on(HERE, state=ReplicaState.LOADING, index=1)
    plan = plan_drain(a_fleet(on(HERE), coming, jobs=(job,)), HERE)

    assert len(plan.loads) == 1
    assert [each.step for each in plan.replicas] == [DrainStep.MOVES, DrainStep.LOADS]


def test_it_ends_when_another_one_has_served_for_a_moment() -> None:
    mine = on(HERE)
    young = on(ELSEWHERE, changed_at=after(100) - SETTLED_AFTER / 2)
    old = replace(young, changed_at=after(100) - SETTLED_AFTER)

    assert plan_drain(a_fleet(mine, young), HERE).unload == ()
    assert steps(a_fleet(mine, young)) == [DrainStep.MOVES]
    assert plan_drain(a_fleet(mine, old), HERE).unload == (mine,)
    assert steps(a_fleet(mine, old)) == [DrainStep.ENDS]
    before_the_clock_was_set_back = replace(young, changed_at=after(3700))
    assert steps(a_fleet(mine, before_the_clock_was_set_back)) == [DrainStep.ENDS]


def test_as_many_must_serve_elsewhere_as_the_rule_wants() -> None:
    plan = plan_drain(a_fleet(on(HERE), on(ELSEWHERE, ram=4 * GIB), least=2, room=16), HERE)

    assert plan.unload == ()
    assert plan.replicas[0].step is DrainStep.STAYS, "one replica of a model per node"
    assert plan.replicas[0].reasons["elsewhere"] == "already has 1 of 1 replicas of it"


def test_what_fits_nowhere_stays_with_every_nodes_reason() -> None:
    plan = plan_drain(a_fleet(on(HERE), room=2), HERE)

    assert (plan.loads, plan.unload) == ((), ())
    [left] = plan.replicas
    assert (left.step, left.why) == (DrainStep.STAYS, "no other node can take its model")
    assert left.reasons == {"here": "is draining", "elsewhere": "has 2.0 GiB free and needs 4.0 GiB"}
    assert plan.staying == (left.replica,)


def test_of_several_that_cannot_move_one_stays() -> None:
    busy, idle = on(HERE), on(HERE, index=1)
    plan = plan_drain(a_fleet(busy, idle, room=2, in_flight={busy.id: 1}), HERE)

    assert plan.unload == (idle,)
    assert plan.staying == (busy,)
    assert plan.requests_left == 1


def test_a_load_that_failed_elsewhere_is_told() -> None:
    failed = a_load_job(model="m", state=LoadState.FAILED, message="elsewhere: no such file", retry_at=after(105))
    plan = plan_drain(a_fleet(on(HERE), jobs=(failed,)), HERE)

    assert plan.loads == ()
    assert plan.replicas[0].why == "it could not be loaded elsewhere: elsewhere: no such file"
    assert plan_drain(a_fleet(on(HERE), jobs=(replace(failed, retry_at=after(99)),)), HERE).loads


def test_a_load_that_waits_for_room_is_told_as_what_stays() -> None:
    waits = a_load_job(model="m", why=LoadWhy.DRAIN, reason=LoadReason.NO_PLACE)
    plan = plan_drain(a_fleet(on(HERE), jobs=(waits,), room=2), HERE)

    assert plan.replicas[0].step is DrainStep.STAYS


def test_what_gateways_have_under_way_is_not_known_while_one_is_silent() -> None:
    assert plan_drain(a_fleet(on(HERE), is_load_known=False), HERE).requests_left is None


def test_the_drain_of_a_node_can_be_planned_before_it_begins() -> None:
    snapshot = as_drained(a_fleet(on(HERE), on(ELSEWHERE)), ELSEWHERE)

    assert plan_drain(snapshot, ELSEWHERE).replicas[0].step is DrainStep.STAYS


def test_loads_for_a_drain_that_was_ended_are_not_wanted_any_more() -> None:
    waits, works = a_load_job(model="m", why=LoadWhy.DRAIN), a_load_job(model="m", state=LoadState.LOADING)
    asked = a_load_job(model="m")
    resumed = a_fleet(on(ELSEWHERE), jobs=(waits, works, asked))

    assert left_over(resumed) == [waits]
    assert left_over(replace(resumed, replicas=(on(HERE),))) == []


@given(
    here=st.integers(0, 3),
    elsewhere=st.integers(0, 2),
    least=st.integers(0, 3),
    room=st.integers(0, 20),
    jobs=st.integers(0, 2),
)
def test_a_model_is_never_left_with_fewer_than_it_should_have(
    here: int, elsewhere: int, least: int, room: int, jobs: int
) -> None:
    mine = [on(HERE, index=index) for index in range(here)]
    others = [on(ELSEWHERE, index=index) for index in range(elsewhere)]
    opened = tuple(a_load_job(model="m", ordinal=number) for number in range(jobs))
    plan = plan_drain(a_fleet(*mine, *others, least=least, room=room, jobs=opened), HERE)

    left = here + elsewhere - len(plan.unload)
    assert len(plan.replicas) == here
    assert left >= min(max(least, 1), here + elsewhere)
    if elsewhere >= max(least, 1):
        assert len(plan.unload) == here
    assert not (plan.loads and plan.unload)


def test_a_model_whose_configuration_cannot_be_read_stays() -> None:
    mine = on(HERE)
    plan = plan_drain(a_fleet(mine, models={}), HERE)

    assert [(each.step, each.why) for each in plan.replicas] == [(DrainStep.STAYS, NOT_READ)]
    assert (plan.loads, plan.unload, plan.staying) == ((), (), (mine,))
