"""Plans of drains, removals and rules of scheduling: what becomes of what, the hash of it, and the words."""

from msgspec.structs import replace

from corral.base.ids import NodeId, OperationId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import ModelNeeds
from corral.frontend.nodes.decide.node import Capacity, Node, NodeStatus, SeenNode, drain, resume
from corral.frontend.operations.decide.intent import Intent, IntentState, Verb
from corral.frontend.serving.decide.act_plan import ActEffect, ActPlan, EffectKind
from corral.frontend.serving.decide.removal_plans import RemovedFiles, drain_plan, model_removal_plan, node_removal_plan
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.scaling_state import ScalingPolicy
from corral.frontend.serving.decide.scheduling import (
    RuleSource,
    RuleStamp,
    RulesUpdate,
    SchedulingRule,
    SchedulingWish,
    rules_after,
    rules_mark,
    update,
)
from corral.frontend.serving.decide.scheduling_plans import RulesPreview, scheduling_plan
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.wire.state_words import WORDS, Subject
from tests.kit.samples import a_node, a_replica, after

GIB = 1024**3


def a_machine(name: str, ram: int = 16, **fields: object) -> Node:
    capacity = Capacity(total_ram=ram * GIB, available_ram=ram * GIB)
    return a_node(id=NodeId(name), name=name, capacity=capacity, **fields)


def loaded(node: str, model: str, ram: int = 1, **fields: object) -> Replica:
    values = {"node_id": NodeId(node), "model": model, "index": 0, "ram": ram * GIB, "changed_at": after(-60)}
    return a_replica(**{**values, "revision": "r1", **fields})


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


def told(plan: ActPlan) -> list[tuple[str, str, str, str]]:
    return [(effect.kind.value, effect.subject, effect.node, effect.to) for effect in plan.ordered]


def test_every_kind_of_effect_has_a_word() -> None:
    assert set(WORDS[Subject.CONSEQUENCE]) == {kind.value for kind in EffectKind}


# Drains.


def test_a_drain_moves_what_fits_elsewhere_once_and_ends_what_others_serve_for() -> None:
    fleet = a_fleet(
        [a_machine("a", 32), a_machine("b", 8)],
        [loaded("a", "one", 6), loaded("a", "two", 6), loaded("a", "twin"), loaded("b", "twin")],
        {"one": 6, "two": 6, "twin": 1},
    )
    plan = drain_plan(fleet, fleet.nodes[0].node, is_forced=False)

    assert told(plan) == [("ends", "twin", "a", ""), ("stays", "two", "a", ""), ("moves", "one", "a", "b")]
    assert plan.text.splitlines() == [
        "Drain a: 1 ends, 1 stays, 1 moves.",
        "Ends: twin on a; others serve its model",
        "Stays: two on a; no other node can take its model: a is draining; b has 1.0 GiB free and needs 6.0 GiB",
        "Moves: one on a, to b; another one is to be loaded, on b or elsewhere",
    ]


def test_a_forced_drain_ends_what_nothing_can_take_and_says_when_that_is_the_last_one() -> None:
    fleet = a_fleet([a_machine("a"), a_machine("b", 1)], [loaded("a", "big", 6)], {"big": 6})
    node = fleet.nodes[0].node

    assert told(drain_plan(fleet, node, is_forced=False)) == [("stays", "big", "a", "")]
    forced = drain_plan(fleet, node, is_forced=True)
    assert told(forced) == [("loses_service", "big", "a", "")]
    assert forced.hash != drain_plan(fleet, node, is_forced=False).hash


def test_the_hash_of_a_plan_follows_what_would_be_done_and_not_what_changes_with_every_heartbeat() -> None:
    fleet = a_fleet([a_machine("a"), a_machine("b"), a_machine("c")], [loaded("a", "m")], {"m": 1})
    node, replica = fleet.nodes[0].node, fleet.replicas[0]
    plan = drain_plan(fleet, node, is_forced=False)

    busy = replace(fleet, in_flight={replica.id: 7}, at=after(5))
    fuller = [a_machine("a"), replace(a_machine("b"), capacity=Capacity(total_ram=16 * GIB, available_ram=9 * GIB))]
    elsewhere = a_fleet([*fuller, a_machine("c")], [replica], {"m": 1})
    assert drain_plan(busy, node, is_forced=False).hash == plan.hash
    assert drain_plan(busy, node, is_forced=False).in_flight == 7
    assert drain_plan(elsewhere, node, is_forced=False).hash == plan.hash

    more = replace(fleet, replicas=(replica, loaded("a", "m", index=1)))
    drained = drain(node, by="ann", at=after(1))
    assert drain_plan(more, node, is_forced=False).hash != plan.hash
    assert drain_plan(fleet, drained, is_forced=False).hash != plan.hash
    again = drain(resume(drained, by="ann", at=after(2)), by="ann", at=after(3))
    assert drain_plan(fleet, again, is_forced=False).hash != drain_plan(fleet, drained, is_forced=False).hash


def test_requests_are_unknown_while_a_gateway_is_silent() -> None:
    fleet = a_fleet([a_machine("a"), a_machine("b")], [loaded("a", "m")], {"m": 1}, is_load_known=False)
    plan = drain_plan(fleet, fleet.nodes[0].node, is_forced=False)
    assert plan.in_flight is None
    assert plan.text.splitlines()[0] == "Drain a: 1 moves; an unknown number of requests under way."


def test_names_of_strangers_cannot_break_the_lines_of_a_plan() -> None:
    name = "a\n[bold]\x1b[31mDeleted: everything"
    effect = ActEffect(kind=EffectKind.MOVES, subject=name, node=name, to=name, detail=name)
    plan = ActPlan(title=f"Drain {name}", act=("drain",), effects=(effect,))
    assert len(plan.text.splitlines()) == 2
    assert "\x1b" not in plan.text


# Removals.


def an_intent(verb: Verb, subject: str, state: IntentState) -> Intent:
    return Intent(
        node_id=NodeId("a"),
        verb=verb,
        subject=subject,
        operation_id=OperationId("op-1"),
        state=state,
        accepted_at=after(0),
        changed_at=after(0),
        next_try=after(0),
    )


def test_the_removal_of_a_node_tells_what_moves_what_is_lost_what_is_cancelled_and_what_is_kept() -> None:
    fleet = a_fleet(
        [a_machine("a", 32), a_machine("b", 4)],
        [loaded("a", "small"), loaded("a", "big", 9), loaded("a", "kept")],
        {"small": 1, "big": 9, "kept": 1},
        rules={"kept": SchedulingWish(model="kept", min_replicas=1)},
        in_flight={},
    )
    intents = [
        an_intent(Verb.INSTALL, "vllm", IntentState.OPEN),
        an_intent(Verb.UPGRADE, "echo", IntentState.BLOCKED),
        an_intent(Verb.INSTALL, "done", IntentState.SATISFIED),
    ]
    plan = node_removal_plan(fleet, fleet.nodes[0].node, intents)

    assert told(plan) == [
        ("loses_service", "big", "a", ""),
        ("deleted", "a", "", ""),
        ("cancelled", "install vllm", "a", ""),
        ("cancelled", "upgrade echo", "a", ""),
        ("moves", "kept", "a", "b"),
        ("moves", "small", "a", "b"),
        ("kept", "what a has on its disk", "", ""),
    ]
    by_model = {effect.subject: effect.detail for effect in plan.effects}
    assert by_model["kept"] == "its rule has it loaded again, and nothing answers until then"
    assert by_model["small"] == "it is loaded again when somebody asks, and nothing answers until then"
    assert node_removal_plan(fleet, fleet.nodes[0].node, intents[:1]).hash != plan.hash


def test_the_removal_of_a_model_tells_replicas_names_files_and_nodes() -> None:
    fleet = a_fleet(
        [a_machine("a"), a_machine("b")],
        [loaded("a", "m"), loaded("b", "m", state=ReplicaState.UNLOADING), loaded("b", "other")],
        {"m": 1, "other": 1},
        rules={"m": SchedulingWish(model="m", min_replicas=2)},
    )
    files = RemovedFiles(
        deleted=("m.gguf",), kept=("shared.gguf stays: other needs it",), nodes=(NodeId("a"),), spared=(NodeId("b"),)
    )
    spec = fleet.models["m"]
    plan = model_removal_plan(fleet, spec, files, ["short"], mark="3")

    assert [(kind, subject, node) for kind, subject, node, _ in told(plan)] == [
        ("loses_service", "m", ""),
        ("loses_service", "short", ""),
        ("ends", "m", "a"),
        ("ends", "m", "b"),
        ("deleted", "m.gguf", ""),
        ("deleted", "what 1 node may have of m", ""),
        ("kept", "shared.gguf stays: other needs it", ""),
        ("kept", "what 1 node may have of m", ""),
        ("kept", "the rule of scheduling of m (at least 2)", ""),
    ]
    assert model_removal_plan(fleet, spec, files, ["short"], mark="4").hash != plan.hash


def test_an_alias_goes_alone() -> None:
    fleet = a_fleet([a_machine("a")], [loaded("a", "m")], {"m": 1})
    alias = ModelSpec(name="short", alias_of="m")
    plan = model_removal_plan(fleet, alias, RemovedFiles(), [], mark="1")
    assert [(kind, subject) for kind, subject, _, _ in told(plan)] == [("loses_service", "short"), ("kept", "m")]


# Rules of scheduling.


def a_change(
    *wishes: SchedulingWish, current: list[SchedulingRule] | None = None, drop: list[str] | None = None
) -> RulesPreview:
    stamp = RuleStamp(source=RuleSource.API, by="ann", at=after(0))
    ids = {wish.model: "id" for wish in wishes}
    changed = update(current or [], wishes, stamp, ids=ids, drop=drop or [])
    in_force = {rule.model: rule.wish for rule in rules_after(current or [], changed)}
    models = {wish.model for wish in wishes} | set(drop or [])
    return RulesPreview(update=changed, in_force=in_force, mark=rules_mark(current or [], models))


def a_rule(wish: SchedulingWish, *, at: int = -100) -> SchedulingRule:
    return SchedulingRule(
        id="r", wish=wish, source=RuleSource.API, created_at=after(at), updated_at=after(at), updated_by="ann"
    )


POLICY = ScalingPolicy()


def test_a_minimum_adds_as_many_as_are_missing_and_says_what_fits_nowhere() -> None:
    fleet = a_fleet([a_machine("a"), a_machine("b"), a_machine("tiny", 1)], [loaded("a", "m", 4)], {"m": 4})
    two = scheduling_plan(fleet, a_change(SchedulingWish(model="m", min_replicas=2)), POLICY)
    four = scheduling_plan(fleet, a_change(SchedulingWish(model="m", min_replicas=4)), POLICY)

    assert told(two) == [("added", "m", "", "b")]
    assert two.text.splitlines()[0] == "m at least 2: 1 added."
    assert [(kind, to) for kind, _, _, to in told(four)] == [("not_added", ""), ("added", "b")]
    assert "one more fits nowhere" in four.ordered[0].detail


def test_a_maximum_ends_the_idle_ones_and_pins_move_what_is_elsewhere() -> None:
    nodes, replicas = [a_machine(name) for name in "abc"], [loaded("a", "m", 4), loaded("b", "m", 4)]
    fleet = a_fleet(nodes, replicas, {"m": 4}, in_flight={replicas[0].id: 2})
    most = scheduling_plan(fleet, a_change(SchedulingWish(model="m", min_replicas=1, max_replicas=1)), POLICY)
    pinned = scheduling_plan(fleet, a_change(SchedulingWish(model="m", pinned_nodes=(NodeId("c"),))), POLICY)
    kept = scheduling_plan(fleet, a_change(SchedulingWish(model="m", min_replicas=2)), POLICY)

    assert told(most) == [("ends", "m", "b", "")]
    assert most.in_flight == 0
    assert [(kind, node, to) for kind, _, node, to in told(pinned)] == [("not_added", "", ""), ("moves", "b", "c")]
    assert told(kept) == []
    assert kept.text == "m at least 2: nothing else changes."


def test_one_on_every_node_comes_to_an_end_in_a_larger_fleet() -> None:
    fleet = a_fleet([a_machine(f"n{number:03}") for number in range(60)], [loaded("n000", "m")], {"m": 1})
    plan = scheduling_plan(fleet, a_change(SchedulingWish(model="m", spread_all=True)), POLICY)
    assert [kind for kind, _, _, _ in told(plan)] == ["added"] * 59


def test_a_rule_that_is_removed_is_told_and_unloading_ends_all() -> None:
    rule = a_rule(SchedulingWish(model="m", min_replicas=1))
    fleet = a_fleet([a_machine("a")], [loaded("a", "m")], {"m": 1}, rules={"m": rule.wish})
    preview = a_change(current=[rule], drop=["m"])
    gone = scheduling_plan(fleet, preview, POLICY)
    unloaded = scheduling_plan(fleet, replace(preview, unload=frozenset({"m"})), POLICY)

    assert told(gone) == [("deleted", "the rule of m", "", "")]
    assert told(unloaded) == [("ends", "m", "a", ""), ("deleted", "the rule of m", "", "")]


def test_the_hash_of_a_rule_covers_all_that_it_says_and_the_rule_that_it_replaces() -> None:
    fleet = a_fleet([a_machine("a")], [], {"m": 1})
    wish = SchedulingWish(model="m", route_policy="round_robin")
    plan = scheduling_plan(fleet, a_change(wish), POLICY)
    other = scheduling_plan(fleet, a_change(replace(wish, route_policy="prefix_cache")), POLICY)
    later = scheduling_plan(fleet, a_change(wish, current=[a_rule(SchedulingWish(model="m", min_replicas=1))]), POLICY)
    again = scheduling_plan(
        fleet, a_change(wish, current=[a_rule(SchedulingWish(model="m", min_replicas=1), at=-50)]), POLICY
    )
    assert len({plan.hash, other.hash, later.hash, again.hash}) == 4
    assert scheduling_plan(fleet, a_change(wish), POLICY).hash == plan.hash


def test_nothing_changes_without_a_change() -> None:
    fleet = a_fleet([a_machine("a")], [loaded("a", "m")], {"m": 1})
    plan = scheduling_plan(fleet, RulesPreview(update=RulesUpdate(), in_force={}), POLICY)
    assert plan.text == "No rule changes: nothing else changes."
