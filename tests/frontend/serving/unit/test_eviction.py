"""Who makes room for whom, and whose turn it is."""

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from corral.frontend.serving.decide.eviction import AwaitEnd, AwaitTurn, EndReplicas, RoomPolicy
from corral.frontend.serving.decide.load_job import LoadWhy
from corral.frontend.serving.decide.replica import ReplicaState
from corral.wire.models import LoadReason
from tests.kit.room_model import RoomModel

STAY = RoomPolicy().stay


def a_full_node(*models: str, gib: int = 2, room: int = 2) -> RoomModel:
    """Room for two models of 2 GiB by default; these are loaded, long ago, the first one longest."""
    fleet = RoomModel()
    fleet.add_node(room * gib)
    for model in models:
        fleet.add_model(model, gib)
        load(fleet, model)
        fleet.now += timedelta(seconds=1)
    fleet.now += STAY
    for id in fleet.nodes:
        fleet.hear(id)
    return fleet


def load(fleet: RoomModel, model: str) -> None:
    fleet.ask(model)
    fleet.look(model)
    fleet.complete()
    assert fleet.loaded(model)


def want(fleet: RoomModel, model: str, gib: int = 2) -> object:
    """What a load is told that looks for a place."""
    fleet.add_model(model, gib)
    fleet.ask(model)
    before = len(fleet.plans)
    fleet.look(model)
    return fleet.plans[-1][1] if len(fleet.plans) > before else "placed"


def ended_by(plan: object) -> list[str]:
    assert isinstance(plan, EndReplicas)
    return [victim.model for victim in plan.victims]


def test_the_least_recently_used_makes_room() -> None:
    fleet = a_full_node("a", "b")
    fleet.ask("a")
    fleet.finish()

    plan = want(fleet, "c")

    assert ended_by(plan) == ["b"]
    assert isinstance(plan, EndReplicas)
    assert (plan.message, plan.reason) == ("room is made on n0: b ends there", LoadReason.ROOM_IS_MADE)


def test_who_waits_is_told_what_ends_and_gets_the_place_before_the_machine_reports_again() -> None:
    fleet = a_full_node("a", "b")
    want(fleet, "c")
    fleet.look("c")
    plan = fleet.plans[-1][1]
    fleet.end()
    fleet.look("c")

    assert isinstance(plan, AwaitEnd)
    assert plan.message == "waits until a has ended on n0"
    assert fleet.loads == ["a", "b", "c"]
    fleet.check()


def test_one_large_enough_goes_rather_than_two_small_ones() -> None:
    fleet = RoomModel()
    fleet.add_node(4)
    for name, gib in (("s1", 1), ("s2", 1), ("large", 2)):
        fleet.add_model(name, gib)
        load(fleet, name)
    fleet.now += STAY

    assert ended_by(want(fleet, "c")) == ["large"]


def test_no_more_go_than_it_takes() -> None:
    fleet = RoomModel()
    fleet.add_node(6)
    for name, gib in (("tiny", 1), ("m1", 2), ("m2", 2), ("last", 1)):
        fleet.add_model(name, gib)
        load(fleet, name)
        fleet.now += timedelta(seconds=1)
    fleet.now += STAY

    assert sorted(ended_by(want(fleet, "c", 4))) == ["m1", "m2"]


def test_nothing_is_ended_for_a_model_that_would_not_fit_all_the_same() -> None:
    fleet = a_full_node("a", "b")

    assert want(fleet, "c", 5) is None


def test_who_is_busy_is_waited_for() -> None:
    fleet = a_full_node("a", room=1)
    fleet.ask("a")

    plan = want(fleet, "c")

    assert isinstance(plan, AwaitTurn)
    assert (plan.message, plan.reason) == ("waits for its turn: a is busy on n0", LoadReason.WAITS_FOR_TURN)
    fleet.finish()
    assert ended_by(want(fleet, "c")) == ["a"]


def test_nothing_is_idle_while_a_gateway_is_silent() -> None:
    fleet = a_full_node("a", room=1)
    snapshot = fleet.snapshot
    fleet.snapshot = lambda: replace(snapshot(), is_load_known=False)  # type: ignore[method-assign]

    plan = want(fleet, "c")

    assert isinstance(plan, AwaitTurn)
    assert plan.until is None


def test_who_was_just_loaded_stays_for_a_while_and_it_is_told_until_when() -> None:
    fleet = RoomModel()
    fleet.add_node(2)
    fleet.add_model("a", 2)
    load(fleet, "a")
    fleet.now += timedelta(seconds=3)

    plan = want(fleet, "c")

    assert isinstance(plan, AwaitTurn)
    assert plan.message == "waits for its turn: a stays on n0 until 00:00:05 UTC"
    fleet.now += timedelta(seconds=2)
    assert ended_by(want(fleet, "c")) == ["a"]


def test_who_was_loaded_before_the_clock_was_set_back_does_not_stay_until_that_hour_comes_again() -> None:
    fleet = RoomModel()
    fleet.add_node(2)
    fleet.add_model("a", 2)
    load(fleet, "a")
    fleet.now -= timedelta(hours=1)

    assert ended_by(want(fleet, "c")) == ["a"]


@pytest.mark.parametrize(("load_seconds", "stay_seconds"), [(0, 5), (4, 8), (14, 28), (600, 30)])
def test_what_took_long_to_load_stays_longer(load_seconds: int, stay_seconds: int) -> None:
    fleet = RoomModel()
    fleet.add_node(2)
    fleet.add_model("a", 2)
    fleet.ask("a")
    fleet.look("a")
    fleet.now += timedelta(seconds=load_seconds)
    fleet.complete()

    plan = want(fleet, "c")

    assert isinstance(plan, AwaitTurn)
    assert plan.until == fleet.now + timedelta(seconds=stay_seconds)


def test_pinned_models_and_minimums_stay() -> None:
    fleet = a_full_node("a", "b")
    fleet.kept.add("a")
    fleet.least["b"] = 1

    assert want(fleet, "c") is None
    fleet.least["b"] = 0
    assert ended_by(want(fleet, "c")) == ["b"]


def test_what_is_only_nice_to_have_ends_nothing() -> None:
    fleet = a_full_node("a", room=1)
    fleet.add_model("c", 2)
    fleet.ask("c")
    fleet.jobs["c"] = replace(fleet.jobs["c"], why=LoadWhy.BUSY)
    fleet.add_model("d", 2)
    fleet.now += timedelta(seconds=1)
    fleet.ask("d")

    fleet.look("d")

    assert ended_by(fleet.plans[-1][1]) == ["a"]
    fleet.end()
    fleet.look("c")
    fleet.look("d")
    assert fleet.loads[-1] == "d"


def test_whoever_waits_longest_gets_the_place_that_another_one_made() -> None:
    fleet = a_full_node("a", "b")
    fleet.ask("a")
    fleet.ask("b")
    want(fleet, "first")
    fleet.now += timedelta(seconds=1)
    want(fleet, "second")
    fleet.finish()

    fleet.look("second")
    behind = fleet.plans[-1][1]
    fleet.look("first")
    fleet.end()
    fleet.look("second")

    assert isinstance(behind, AwaitTurn)
    assert behind.message == "waits for its turn on n0: first waits longer"
    assert fleet.loads == ["a", "b"], "the room is kept for the first, and more is made for the second"
    fleet.look("first")
    fleet.end()
    fleet.look("second")
    assert fleet.loads == ["a", "b", "first", "second"]


def test_nobody_ends_a_second_model_while_the_first_is_on_its_way_out() -> None:
    fleet = a_full_node("a", "b")
    want(fleet, "c")
    for _ in range(5):
        fleet.now += timedelta(seconds=2)
        fleet.look("c")

    ended = [plan for _, plan in fleet.plans if isinstance(plan, EndReplicas)]
    assert len(ended) == 1


def test_a_large_model_gets_its_turn_between_small_ones() -> None:
    fleet = a_full_node("s1", "s2")
    fleet.now += timedelta(seconds=1)
    fleet.ask("s2")
    fleet.finish()
    want(fleet, "large", 4)
    fleet.now += timedelta(seconds=1)
    want(fleet, "s3")
    fleet.end()
    fleet.look("s3")
    fleet.look("large")

    assert fleet.loads[-1] == "large"


def a_shared_machine(*models: tuple[str, int]) -> RoomModel:
    """A machine of 8 GiB with two nodes, on which these models were loaded long ago, on the nodes in turn."""
    fleet = RoomModel()
    for _ in range(2):
        fleet.add_node(8, pool="machine")
    for name, gib in models:
        fleet.add_model(name, gib)
        load(fleet, name)
    fleet.now += STAY
    for id in fleet.nodes:
        fleet.hear(id)
    return fleet


def evict_for_large(fleet: RoomModel) -> None:
    """A load of 6 GiB has the first model of the first node ended, which still answers a request."""
    assert ended_by(want(fleet, "large", 6)) == ["y"]
    fleet.now += timedelta(seconds=1)


def test_room_made_on_one_node_of_a_machine_is_not_taken_by_a_younger_load_on_another() -> None:
    fleet = a_shared_machine(("y", 4))
    evict_for_large(fleet)

    plan = want(fleet, "small", 3)

    assert isinstance(plan, AwaitTurn), fleet.loads
    assert plan.behind == "large"
    fleet.end()
    first, second = fleet.nodes
    for heard_first in (second, first):
        fleet.hear(heard_first)
        fleet.look("small")
        assert fleet.loads == ["y"], "another node of the machine has room, which is kept for the first"
    fleet.look("large")
    assert fleet.loads == ["y", "large"]
    fleet.check()


def test_room_that_becomes_free_on_a_machine_is_kept_for_the_longest_waiting_load_on_each_of_its_nodes() -> None:
    """Here nothing is ended for the large one: somebody unloads what is in its way."""
    fleet = a_shared_machine(("y", 4))
    y = fleet.loaded("y")
    assert y is not None
    fleet.in_flight[y.id] = 1
    want(fleet, "large", 6)
    fleet.replicas[y.id] = replace(y, state=ReplicaState.UNLOADING, changed_at=fleet.now)
    fleet.now += timedelta(seconds=1)

    assert isinstance(want(fleet, "small", 3), AwaitTurn)
    assert fleet.loads == ["y"]


def test_nothing_is_ended_for_a_place_that_is_kept_on_another_node_of_the_machine() -> None:
    fleet = a_shared_machine(("y", 4), ("w", 1))
    assert fleet.loaded("w") is not None
    evict_for_large(fleet)
    plan = want(fleet, "small", 4)

    assert not isinstance(plan, EndReplicas), "it would take a place that is promised"
    fleet.check()


def test_a_load_waits_behind_one_that_will_get_its_place_on_another_node_of_the_machine() -> None:
    fleet = a_shared_machine(("y", 4), ("w", 1))
    y = fleet.loaded("y")
    assert y is not None
    fleet.replicas[y.id] = replace(y, created_at=fleet.now - STAY, changed_at=fleet.now)
    fleet.now += timedelta(seconds=1)
    for id in fleet.nodes:
        fleet.hear(id)
    assert isinstance(want(fleet, "large", 6), AwaitTurn)
    fleet.now += timedelta(seconds=1)

    plan = want(fleet, "small", 4)

    assert isinstance(plan, AwaitTurn)
    assert plan.behind == "large"


def test_a_place_on_a_machine_is_kept_once_though_it_is_free_on_each_of_its_nodes() -> None:
    fleet = a_shared_machine(("y", 5))
    y = fleet.loaded("y")
    assert y is not None
    fleet.in_flight[y.id] = 1
    want(fleet, "large", 4)
    fleet.replicas[y.id] = replace(y, state=ReplicaState.IDLE, changed_at=fleet.now)
    fleet.now += timedelta(seconds=1)
    for id in fleet.nodes:
        fleet.hear(id)

    assert want(fleet, "small", 4) == "placed"
    fleet.look("large")
    fleet.check()
    assert fleet.loads == ["y", "small", "large"]


def test_two_hundred_alternating_requests_for_three_models_with_room_for_two() -> None:
    fleet = RoomModel()
    fleet.add_node(4)
    for name in "abc":
        fleet.add_model(name, 2)
    answered = Counter[str]()
    for number in range(200):
        model = "abc"[number % 3]
        for _ in range(60):
            if fleet.ask(model):
                break
            pass_time(fleet)
        else:
            raise AssertionError(f"{model} is not answered")
        fleet.finish()
        answered[model] += 1
        fleet.check()

    assert answered == {"a": 67, "b": 67, "c": 66}
    assert max(fleet.waits) <= STAY + timedelta(seconds=10)
    assert fleet.loads[:9] == list("abcabcabc"), "each in its turn"


def pass_time(fleet: RoomModel) -> None:
    """Two seconds in which everyone does what is to be done."""
    fleet.now += timedelta(seconds=2)
    for model in fleet.waiting:
        fleet.look(model)
    fleet.end()
    fleet.complete()
    for id in fleet.nodes:
        fleet.hear(id)


class Turns(RuleBasedStateMachine):
    """Requests for models that fight for too little room, in any order, with reports that come when they come."""

    @initialize(
        rooms=st.lists(st.integers(2, 4), min_size=1, max_size=2),
        sizes=st.lists(st.integers(1, 2), min_size=3, max_size=5),
        kept=st.booleans(),
        is_shared=st.booleans(),
    )
    def begin(self, rooms: list[int], sizes: list[int], kept: bool, is_shared: bool) -> None:
        self.fleet = RoomModel(policy=RoomPolicy(stay=timedelta(seconds=10)))
        self.is_shared = is_shared
        if is_shared:  # two nodes on the first machine
            rooms = rooms[:1]
            self.fleet.add_node(rooms[0], pool="machine")
        for gib in rooms:
            self.fleet.add_node(gib, pool="machine" if is_shared else "")
        for number, gib in enumerate(sizes):
            self.fleet.add_model(f"m{number}", gib)
        if kept and sum(rooms) > 2:
            self.fleet.add_model("pinned", 1)
            self.fleet.kept.add("pinned")
            load(self.fleet, "pinned")
            if sum(rooms) - 1 < max(sizes) or max(rooms) < max(sizes) + 1:
                self.fleet.kept.clear()

    @rule(number=st.integers(0, 4))
    def ask(self, number: int) -> None:
        if (name := f"m{number}") in self.fleet.sizes:
            self.fleet.ask(name)

    @rule()
    def finish(self) -> None:
        self.fleet.finish()

    @precondition(lambda self: self.fleet.waiting)
    @rule(choose=st.randoms(use_true_random=False))
    def look(self, choose: "st.RandomGenerator") -> None:  # type: ignore[name-defined]
        self.fleet.look(choose.choice(sorted(self.fleet.waiting)))

    @rule()
    def end(self) -> None:
        self.fleet.end()

    @rule()
    def complete(self) -> None:
        self.fleet.complete()

    @rule(number=st.integers(0, 1))
    def hear(self, number: int) -> None:
        ids = list(self.fleet.nodes)
        self.fleet.hear(ids[number % len(ids)])

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        self.fleet.now += timedelta(seconds=seconds)

    @invariant()
    def no_machine_is_overfull(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.check()

    def teardown(self) -> None:
        """Whoever waits gets a place in a bounded number of turns once requests end.

        On a shared machine those may wait for whom replicas of several nodes would have to end: room is made on one.
        """
        if not hasattr(self, "fleet"):
            return
        fleet, waiting = self.fleet, len(self.fleet.jobs)
        fleet.finish()
        for _ in range((waiting + 1) * 12):
            pass_time(fleet)
        last_plans = dict(fleet.plans)
        waiting_models = [model for model in fleet.jobs if not self.is_shared or last_plans[model] is not None]
        assert not waiting_models, f"{sorted(fleet.jobs)} never got a place: {fleet.plans[-3:]}"
        assert not any(each.state is ReplicaState.UNLOADING for each in fleet.replicas.values())


Turns.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTurns = Turns.TestCase
