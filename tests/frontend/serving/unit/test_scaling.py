"""How many replicas models get: by rules, by load, by time; and that plans come to an end."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import Capacity, NodeStatus, Peer
from corral.frontend.serving.decide.load_job import LoadState, LoadWhy
from corral.frontend.serving.decide.replica import ReplicaState
from corral.frontend.serving.decide.rollout import ROLLING_PATIENCE
from corral.frontend.serving.decide.scaling import ABOVE_MAXIMUM, IDLE, LoadMore, TakeBack, UnloadOne
from corral.frontend.serving.decide.scaling_state import OLD_REVISION, WRONG_PLACE
from corral.frontend.serving.decide.scheduling import SchedulingWish
from tests.kit.samples import a_load_job
from tests.kit.scaled_fleet import ScaledFleet

GIB = 1024**3


def a_fleet(*nodes: str, **rule: Any) -> ScaledFleet:
    fleet = ScaledFleet()
    for node in nodes:
        fleet.add_node(node)
    fleet.add_model("m", **rule)
    return fleet


def acts(fleet: ScaledFleet) -> list[tuple[str, str]]:
    """What is planned: `load` with its reason, `unload` with the node, `take back` with the reason of the load."""
    words: list[tuple[str, str]] = []
    for action in fleet.planned().actions:
        match action:
            case LoadMore(why=why):
                words.append(("load", why.value))
            case UnloadOne(replica=replica):
                words.append(("unload", replica.node_id))
            case TakeBack(job=job):
                words.append(("take back", job.why.value))
    return words


class TestCounts:
    def test_nothing_is_done_for_a_model_without_a_rule_that_nobody_asks(self) -> None:
        assert acts(a_fleet("a", "b")) == []

    def test_the_minimum_is_loaded_at_once_and_only_once(self) -> None:
        fleet = a_fleet("a", "b", "c", min_replicas=2)
        assert acts(fleet) == [("load", "minimum"), ("load", "minimum")]
        fleet.settle()
        assert len(fleet.places("m")) == 2

    def test_what_comes_already_counts(self) -> None:
        fleet = a_fleet("a", "b", min_replicas=2)
        fleet.open_job("m")
        assert acts(fleet) == [("load", "minimum")]

    def test_a_node_that_dies_is_replaced(self) -> None:
        fleet = a_fleet("a", "b", "c", min_replicas=2)
        fleet.settle()
        fleet.lose(fleet.places("m")[0])
        assert acts(fleet) == [("load", "minimum")]

    def test_a_silent_node_is_not_given_up_yet(self) -> None:
        fleet = a_fleet("a", "b", min_replicas=1)
        fleet.settle()
        fleet.set_status(fleet.places("m")[0], NodeStatus.UNHEALTHY)
        assert acts(fleet) == []

    def test_a_drained_node_counts_no_more_and_is_left_to_the_drain(self) -> None:
        fleet = a_fleet("a", "b", min_replicas=1)
        fleet.load("m", "a")
        fleet.set_status("a", NodeStatus.DRAINING)
        assert acts(fleet) == [("load", "minimum")]

    def test_what_is_above_the_maximum_ends_at_once_the_idle_first(self) -> None:
        fleet = a_fleet("a", "b", "c", min_replicas=1, max_replicas=1)
        used = fleet.load("m", "a"), fleet.load("m", "b"), fleet.load("m", "c")
        fleet.pass_time(seconds=60)
        fleet.used_at[used[1].id] = fleet.now
        assert acts(fleet) == [("unload", "c"), ("unload", "a")] or acts(fleet) == [("unload", "a"), ("unload", "c")]
        assert {action.why for action in fleet.planned().actions if isinstance(action, UnloadOne)} == {ABOVE_MAXIMUM}

    def test_more_than_there_is_room_for_is_told_with_every_reason(self) -> None:
        fleet = a_fleet("a", "b", min_replicas=3)
        fleet.settle()
        assert len(fleet.places("m")) == 2
        problem = fleet.planned().counts["m"].problem
        assert problem == (
            "one more fits nowhere: a already has 1 of 1 replicas of it; b already has 1 of 1 replicas of it"
        )

    def test_one_plan_gives_the_memory_of_a_machine_with_two_nodes_away_once(self) -> None:
        fleet, memory = ScaledFleet(), Capacity(total_ram=8 * GIB, available_ram=8 * GIB)
        for node in ("a", "b"):
            fleet.add_node(node, capacity=memory, peer=Peer(version="1", memory_pool="p"))
        fleet.needs["m"] = 5 * GIB
        fleet.add_model("m", spread_all=True)
        assert acts(fleet) == [("load", "spread")]

    def test_after_a_failure_nothing_is_loaded_until_the_cooldown_is_over(self) -> None:
        fleet = a_fleet("a", min_replicas=1)
        later = fleet.now + timedelta(seconds=30)
        fleet.jobs.append(a_load_job(model="m", state=LoadState.FAILED, message="no such file", retry_at=later))
        assert acts(fleet) == []
        assert fleet.planned().counts["m"].problem == "a load failed: no such file"
        fleet.pass_time(seconds=30)
        assert acts(fleet) == [("load", "minimum")]

    @pytest.mark.parametrize("why", [LoadWhy.BUSY, LoadWhy.SPREAD, LoadWhy.DRAIN, LoadWhy.MOVED])
    def test_the_minimum_does_not_wait_for_a_failed_load_that_was_only_nice_to_have(self, why: LoadWhy) -> None:
        fleet = a_fleet("a", min_replicas=1)
        later = fleet.now + timedelta(minutes=5)
        extra = a_load_job(model="m", why=why, state=LoadState.FAILED, retry_at=later)
        fleet.jobs.append(extra)
        assert acts(fleet) == [("load", "minimum")]
        fleet.jobs.append(replace(extra, ordinal=1, why=LoadWhy.MINIMUM))
        assert acts(fleet) == []

    def test_nothing_is_done_while_the_brake_holds(self) -> None:
        fleet = a_fleet("a", "b", min_replicas=2, max_replicas=2)
        fleet.is_braked = True
        assert acts(fleet) == []

    def test_two_models_are_not_promised_the_same_room(self) -> None:
        fleet = a_fleet("a", min_replicas=1)
        fleet.add_model("n", min_replicas=1)
        fleet.add_node("a", capacity=Capacity(total_ram=3 * GIB))
        fleet.needs = {name: 2 * GIB for name in ("m", "n")}
        loads = [action for action in fleet.planned().actions if isinstance(action, LoadMore)]
        assert [load.model for load in loads][:1] == ["m"]
        assert "one more fits nowhere" in fleet.planned().counts["n"].problem


class TestPlaces:
    def test_only_where_the_rule_allows(self) -> None:
        fleet = a_fleet("a", min_replicas=2, node_selector={"zone": "x"})
        fleet.add_node("b", labels={"zone": "x"})
        fleet.settle()
        assert fleet.places("m") == ["b"]
        assert "a does not have the labels zone=x" in fleet.planned().counts["m"].problem

    def test_a_pin_moves_what_is_elsewhere_the_new_one_first(self) -> None:
        fleet = a_fleet("a", "b")
        fleet.load("m", "a")
        fleet.rules["m"] = SchedulingWish(model="m", pinned_nodes=(NodeId("b"),))
        fleet.kept.add("m")
        assert acts(fleet) == [("load", "moved")]
        fleet.round()
        planned = fleet.planned().actions
        assert [(action.replica.node_id, action.why) for action in planned if isinstance(action, UnloadOne)] == [
            ("a", WRONG_PLACE)
        ]
        fleet.settle()
        assert fleet.places("m") == ["b"]

    def test_what_cannot_move_stays_and_the_reason_is_told(self) -> None:
        fleet = a_fleet("a")
        fleet.load("m", "a")
        fleet.rules["m"] = SchedulingWish(model="m", node_selector={"zone": "nowhere"})
        fleet.settle()
        assert fleet.places("m") == ["a"]
        assert "does not have the labels zone=nowhere" in fleet.planned().counts["m"].problem

    def test_spread_has_one_on_every_allowed_node(self) -> None:
        fleet = a_fleet("a", "b", "c", spread_all=True)
        fleet.settle()
        assert fleet.places("m") == ["a", "b", "c"]
        fleet.add_node("d")
        fleet.settle()
        assert fleet.places("m") == ["a", "b", "c", "d"]

    def test_spread_never_has_two_on_one_node(self) -> None:
        fleet = a_fleet(spread_all=True)
        fleet.add_node("a", slots=3)
        fleet.add_node("b", slots=3)
        fleet.load("m", "a"), fleet.load("m", "a")
        fleet.settle()
        assert fleet.places("m") == ["a", "b"]

    def test_spread_takes_back_what_waits_for_a_node_that_is_gone(self) -> None:
        fleet = a_fleet("a", "b", spread_all=True)
        fleet.load("m", "a")
        fleet.open_job("m", LoadWhy.SPREAD, NodeId("b"))
        fleet.set_status("b", NodeStatus.OFFLINE)
        assert acts(fleet) == [("take back", "spread")]


class TestLoad:
    def busy(self, **fields: Any) -> ScaledFleet:
        fleet = a_fleet("a", "b", "c", **fields)
        fleet.load("m", "a")
        fleet.demand["m"] = 2
        return fleet

    def test_grows_by_one_after_all_were_busy_for_a_while(self) -> None:
        fleet = self.busy(max_replicas=3)
        assert acts(fleet) == []
        fleet.pass_time(seconds=29)
        assert acts(fleet) == []
        fleet.pass_time(seconds=1)
        assert acts(fleet) == [("load", "busy")]

    def test_grows_also_after_the_clock_was_set_back(self) -> None:
        fleet = self.busy(max_replicas=3)
        assert acts(fleet) == []
        fleet.pass_time(hours=-1)
        assert acts(fleet) == []
        fleet.pass_time(seconds=30)
        assert acts(fleet) == [("load", "busy")]

    def test_waits_again_after_each(self) -> None:
        fleet = self.busy(max_replicas=3)
        fleet.planned()
        fleet.pass_time(seconds=30)
        fleet.round()
        assert len(fleet.places("m")) == 2
        assert acts(fleet) == []
        fleet.pass_time(seconds=30)
        assert acts(fleet) == [("load", "busy")]

    def test_a_moment_of_rest_begins_the_while_again(self) -> None:
        fleet = self.busy(max_replicas=3)
        fleet.planned()
        fleet.pass_time(seconds=20)
        fleet.demand["m"] = 0
        fleet.planned()
        fleet.demand["m"] = 2
        fleet.pass_time(seconds=20)
        assert acts(fleet) == []

    def test_stops_at_the_maximum(self) -> None:
        fleet = self.busy(max_replicas=2)
        fleet.settle()
        assert len(fleet.places("m")) == 2

    def test_a_model_without_counts_does_not_grow(self) -> None:
        fleet = self.busy()
        fleet.settle()
        assert len(fleet.places("m")) == 1

    @pytest.mark.parametrize(("limit", "grows"), [(2, True), (3, False)])
    def test_busy_is_as_many_requests_as_one_replica_takes(self, limit: int, grows: bool) -> None:
        fleet = a_fleet("a", "b", max_replicas=2, limit=limit)
        fleet.load("m", "a")
        fleet.demand["m"] = 2
        fleet.planned()
        fleet.pass_time(seconds=30)
        assert bool(acts(fleet)) is grows

    def test_requests_that_wait_are_a_rush_too(self) -> None:
        fleet = a_fleet("a", "b", max_replicas=2, limit=100)
        fleet.load("m", "a")
        fleet.waiting["m"] = 1
        fleet.planned()
        fleet.pass_time(seconds=30)
        assert acts(fleet) == [("load", "busy")]

    def test_a_load_that_waits_is_taken_back_when_the_rush_is_over(self) -> None:
        fleet = self.busy(max_replicas=3)
        fleet.open_job("m", LoadWhy.BUSY)
        assert acts(fleet) == []
        fleet.demand["m"] = 0
        assert acts(fleet) == [("take back", "busy")]

    def test_shrinks_to_the_minimum_one_at_a_time_the_least_recently_used_first(self) -> None:
        fleet = a_fleet("a", "b", "c", min_replicas=1, max_replicas=3)
        first, *_ = [fleet.load("m", node) for node in "abc"]
        fleet.pass_time(minutes=4)
        fleet.used_at[first.id] = fleet.now
        fleet.pass_time(minutes=1)
        assert acts(fleet) == [("unload", "b")] or acts(fleet) == [("unload", "c")]
        fleet.settle()
        assert len(fleet.places("m")) == 1

    def test_the_last_one_goes_only_by_its_own_time(self) -> None:
        fleet = a_fleet("a")
        fleet.load("m", "a")
        fleet.pass_time(minutes=14, seconds=59)
        assert acts(fleet) == []
        fleet.pass_time(seconds=1)
        assert [action.why for action in fleet.planned().actions if isinstance(action, UnloadOne)] == [IDLE]

    @pytest.mark.parametrize(("idle", "minutes", "unloads"), [(60, 1, True), (0, 600, False), (3600, 59, False)])
    def test_a_rule_says_how_long_idle_is(self, idle: int, minutes: int, unloads: bool) -> None:
        fleet = a_fleet("a", idle_seconds=idle)
        fleet.load("m", "a")
        fleet.pass_time(minutes=minutes)
        assert bool(acts(fleet)) is unloads

    def test_a_kept_model_keeps_its_last_replica(self) -> None:
        fleet = a_fleet("a", "b", idle_seconds=60)
        fleet.kept.add("m")
        fleet.load("m", "a"), fleet.load("m", "b")
        fleet.settle()
        assert len(fleet.places("m")) == 1

    def test_what_a_silent_gateway_has_under_way_is_not_called_idle_or_busy(self) -> None:
        fleet = self.busy(max_replicas=3)
        fleet.is_load_known = False
        fleet.planned()
        fleet.pass_time(minutes=60)
        fleet.demand["m"] = 0
        assert acts(fleet) == []


class TestChanges:
    def test_the_new_one_comes_first_where_there_is_room(self) -> None:
        fleet = a_fleet("a", "b")
        fleet.load("m", "a")
        fleet.kept.add("m")
        fleet.change("m")
        assert acts(fleet) == []
        fleet.pass_time(seconds=5)
        assert acts(fleet) == [("load", "changed")]
        fleet.round()
        assert acts(fleet) == [("unload", "a")]
        fleet.settle()
        assert [(each.node_id, each.revision) for each in fleet.loaded("m")] == [("b", "r2")]

    def test_a_change_is_carried_out_also_after_the_clock_was_set_back(self) -> None:
        fleet = a_fleet("a", "b")
        fleet.load("m", "a")
        fleet.change("m")
        assert acts(fleet) == []
        fleet.pass_time(hours=-1)
        assert acts(fleet) == []
        fleet.pass_time(seconds=5)
        assert acts(fleet) == [("load", "changed")]

    def test_without_room_the_old_one_ends_and_the_new_one_waits_for_its_place(self) -> None:
        fleet = a_fleet("a")
        fleet.load("m", "a")
        fleet.kept.add("m")
        fleet.change("m")
        fleet.planned()
        fleet.pass_time(seconds=5)
        assert acts(fleet) == [("unload", "a"), ("load", "changed")]
        fleet.settle()
        assert [(each.node_id, each.revision) for each in fleet.loaded("m")] == [("a", "r2")]

    @pytest.mark.parametrize("rule", [{}, {"min_replicas": 1}, {"spread_all": True}])
    def test_the_memory_of_the_old_one_counts_as_room_for_the_new_one(self, rule: dict[str, Any]) -> None:
        fleet = a_fleet(**rule)
        fleet.add_node("a", slots=2, capacity=Capacity(total_ram=24 * GIB))
        fleet.needs = {"m": 20 * GIB}
        fleet.load("m", "a")
        fleet.kept.add("m")
        fleet.change("m")
        fleet.planned()
        fleet.pass_time(seconds=5)
        assert acts(fleet) == [("unload", "a"), ("load", "changed")]
        fleet.settle()
        assert [(each.node_id, each.revision) for each in fleet.loaded("m")] == [("a", "r2")]

    def test_several_are_exchanged_one_after_the_other(self) -> None:
        fleet = a_fleet("a", "b", "c", "d", min_replicas=3, max_replicas=3)
        fleet.settle()
        fleet.change("m")
        fleet.planned()
        fleet.pass_time(seconds=5)
        for _ in range(20):
            assert len(fleet.places("m")) in (3, 4)
            fleet.round()
        assert [each.revision for each in fleet.loaded("m")] == ["r2"] * 3
        assert len(fleet.places("m")) == 3

    def test_spread_models_are_exchanged_node_by_node(self) -> None:
        fleet = a_fleet("a", "b", "c", spread_all=True)
        fleet.settle()
        fleet.change("m")
        fleet.planned()
        fleet.pass_time(seconds=5)
        while len(fleet.loaded("m")) < 3:
            assert len(fleet.places("m")) >= 2
            assert fleet.round().actions
        fleet.settle()
        assert fleet.places("m") == ["a", "b", "c"]

    def test_the_reason_is_told(self) -> None:
        fleet = a_fleet("a")
        fleet.load("m", "a", revision="r0")
        fleet.planned()
        fleet.pass_time(seconds=5)
        assert [action.why for action in fleet.planned().actions if isinstance(action, UnloadOne)] == [OLD_REVISION]


class TestUpgrades:
    """What an upgrade of a backend ended is loaded again by those who note it, and not before the upgrade is done."""

    RULES = pytest.mark.parametrize("rule", [{"spread_all": True}, {"min_replicas": 2}])

    def upgraded(self, **rule: Any) -> ScaledFleet:
        fleet = a_fleet("a", "b", **rule)
        _, ending = fleet.load("m", "a"), fleet.load("m", "b")
        fleet.begin_upgrade(ending)
        return fleet

    @RULES
    def test_what_makes_way_is_not_loaded_again_by_scaling(self, rule: dict[str, Any]) -> None:
        fleet = self.upgraded(**rule)
        assert acts(fleet) == []
        fleet.work()
        assert acts(fleet) == []
        assert fleet.planned().counts["m"].loading == 1

    @RULES
    def test_the_load_that_restores_it_is_not_counted_twice(self, rule: dict[str, Any]) -> None:
        fleet = self.upgraded(**rule)
        fleet.work()
        fleet.open_job("m", LoadWhy.RESTORED, NodeId("b"))
        assert fleet.planned().counts["m"].loading == 1
        fleet.work()
        assert (acts(fleet), fleet.places("m")) == ([], ["a", "b"])
        assert fleet.planned().counts["m"].loading == 0

    def test_one_that_is_restored_elsewhere_is_not_counted_twice(self) -> None:
        fleet = self.upgraded(min_replicas=2)
        fleet.work()
        fleet.add_node("c")
        coming = fleet.load("m", "c", state=ReplicaState.LOADING)
        fleet.open_job("m", LoadWhy.RESTORED, NodeId("b"))
        fleet.jobs = [replace(fleet.jobs[0], state=LoadState.LOADING, node_id=NodeId("c"), replica_id=coming.id)]
        assert fleet.planned().counts["m"].loading == 1

    @RULES
    def test_one_that_serves_until_its_node_ends_it_serves(self, rule: dict[str, Any]) -> None:
        fleet = a_fleet("a", "b", **rule)
        _, noted = fleet.load("m", "a"), fleet.load("m", "b")
        fleet.begin_upgrade(noted)
        fleet.replicas[noted.id] = noted
        assert acts(fleet) == []
        assert fleet.planned().counts["m"].loading == 0

    def test_a_node_that_is_away_is_not_waited_for(self) -> None:
        fleet = self.upgraded(min_replicas=2)
        fleet.work()
        fleet.add_node("c")
        fleet.set_status("b", NodeStatus.OFFLINE)
        assert acts(fleet) == [("load", "minimum")]

    def test_an_upgrade_that_does_not_end_is_not_waited_for(self) -> None:
        fleet = self.upgraded(min_replicas=2)
        fleet.work()
        fleet.now += ROLLING_PATIENCE
        assert acts(fleet) == [("load", "minimum")]


NODES, MODELS = ("a", "b", "c", "d"), ("m", "n")
RULES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.just({"spread_all": True}),
    st.integers(0, 4).flatmap(
        lambda low: st.fixed_dictionaries(
            {"min_replicas": st.just(low), "max_replicas": st.one_of(st.just(0), st.integers(max(low, 1), 5))}
        )
    ),
)
WHERE: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.just({"node_selector": {"zone": "x"}}),
    st.lists(st.sampled_from(NODES), min_size=1, max_size=2, unique=True).map(
        lambda names: {"pinned_nodes": tuple(NodeId(name) for name in names)}
    ),
)


class ScalingStories(RuleBasedStateMachine):
    """Nodes come and go, rules, configurations and load change; after each, the world may come to rest."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = ScaledFleet()
        for model in MODELS:
            self.fleet.add_model(model)
        self.fleet.needs = {"m": 2 * GIB, "n": GIB}

    @rule(
        name=st.sampled_from(NODES),
        slots=st.integers(1, 2),
        zone=st.sampled_from("xy"),
        memory=st.sampled_from([0, 1, 2, 3, 6]),
    )
    def joins(self, name: str, slots: int, zone: str, memory: int) -> None:
        if name not in self.fleet.nodes:
            capacity = Capacity(total_ram=memory * GIB)
            self.fleet.add_node(name, slots=slots, labels={"zone": zone}, capacity=capacity)

    @precondition(lambda self: self.fleet.nodes)
    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        self.fleet.lose(data.draw(st.sampled_from(sorted(self.fleet.nodes))))

    @precondition(lambda self: self.fleet.nodes)
    @rule(data=st.data(), status=st.sampled_from([NodeStatus.HEALTHY, NodeStatus.UNHEALTHY, NodeStatus.DRAINING]))
    def changes_its_status(self, data: st.DataObject, status: NodeStatus) -> None:
        self.fleet.set_status(data.draw(st.sampled_from(sorted(self.fleet.nodes))), status)

    @rule(model=st.sampled_from(MODELS), counts=RULES, where=WHERE)
    def gets_a_rule(self, model: str, counts: dict[str, Any], where: dict[str, Any]) -> None:
        self.fleet.rules[model] = SchedulingWish(model=model, **counts, **where)

    @rule(model=st.sampled_from(MODELS))
    def is_changed(self, model: str) -> None:
        self.fleet.change(model)

    @rule(model=st.sampled_from(MODELS), requests=st.integers(0, 2))
    def has_load(self, model: str, requests: int) -> None:
        self.fleet.demand[model] = requests

    @rule(model=st.sampled_from(MODELS))
    def is_asked(self, model: str) -> None:
        self.fleet.ask(model)

    @rule(seconds=st.sampled_from([1, 10, 60, 600]))
    def time_passes(self, seconds: int) -> None:
        self.fleet.pass_time(seconds=seconds)

    @rule(times=st.integers(1, 3))
    def the_loop_runs(self, times: int) -> None:
        for _ in range(times):
            self.fleet.round()

    @rule()
    def the_frontend_is_replaced(self) -> None:
        self.fleet.memory = type(self.fleet.memory)()

    @invariant()
    def no_plan_asks_for_more_than_the_maximum(self) -> None:
        fleet = self.fleet
        planned = fleet.planned().actions
        for model, wish in fleet.rules.items():
            asked = sum(isinstance(action, LoadMore) and action.model == model for action in planned)
            coming = sum(job.model == model for job in fleet.jobs)
            serving = [each for each in fleet.loaded(model) if fleet.nodes[each.node_id][1] is not NodeStatus.DRAINING]
            allowed = [each for each in serving if wish.allows(fleet.nodes[each.node_id][0])]
            if asked and wish.max_replicas:
                assert len(allowed) + coming + asked <= wish.max_replicas

    @rule()
    def comes_to_rest(self) -> None:
        fleet = self.fleet
        fleet.settle()
        counts = fleet.planned().counts
        for model, wish in fleet.rules.items():
            at_rest = [each for each in fleet.loaded(model) if fleet.nodes[each.node_id][1] is not NodeStatus.DRAINING]
            if wish.max_replicas and not any(job.model == model for job in fleet.jobs):
                allowed = [each for each in at_rest if wish.allows(fleet.nodes[each.node_id][0])]
                assert len(allowed) <= wish.max_replicas
            if len(at_rest) < wish.min_replicas:
                assert counts[model].problem
            if wish.spread_all:
                self._check_spread(model, wish, counts[model].problem)
        self._check_exchanged()

    def _check_exchanged(self) -> None:
        """Whatever ran on a healthy node can run there again in its new configuration."""
        fleet = self.fleet
        for replica in fleet.replicas.values():
            node, status = fleet.nodes[replica.node_id]
            wish = fleet.rules.get(replica.model, SchedulingWish(model=replica.model))
            is_waiting = any(job.model == replica.model for job in fleet.jobs)
            if status is NodeStatus.HEALTHY and wish.allows(node) and not is_waiting:
                assert replica.revision == fleet.models[replica.model].revision

    def _check_spread(self, model: str, wish: SchedulingWish, problem: str) -> None:
        for node, status in self.fleet.nodes.values():
            here = [
                each for each in self.fleet.on(node.id) if each.model == model and each.state is ReplicaState.LOADED
            ]
            if status is NodeStatus.HEALTHY and wish.allows(node):
                assert len(here) == 1 or problem


ScalingStories.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestScalingStories = ScalingStories.TestCase
