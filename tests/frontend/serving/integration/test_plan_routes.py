"""Plans of drains, removals and rules through the API, and acts on plans that somebody has seen; on both databases."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.store.db import Database
from corral.wire.view import GatewayReport
from tests.kit.clock import ManualClock
from tests.kit.world import World, open_world

SCHEDULING, MODELS = "/api/v1/scheduling", "/api/v1/models"


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path) as world:
        yield world


async def ask(world: World, method: str, path: str, body: object = None, *, status: int = 200) -> Any:
    answer = await world.frontend.call(method, path, body)
    assert answer.status == status, answer.body
    return answer.json() if answer.body else None


def told(plan: Any) -> list[tuple[str, str, str]]:
    return [(item["kind"], item["subject"], item["node"]) for item in plan["consequences"]]


def stale(answer: Any) -> Any:
    """The new plan of an answer that nothing was done."""
    assert answer["error"]["code"] == "stale_plan"
    assert "nothing was done" in answer["error"]["message"]
    return answer["plan"]


async def both(world: World, method: str, path: str, body: object = None) -> list[tuple[int, Any]]:
    """The same act twice at once: the better answer first."""
    answers = await asyncio.gather(*(world.frontend.call(method, path, body) for _ in range(2)))
    return sorted(
        ((answer.status, answer.json() if answer.body else None) for answer in answers), key=lambda one: one[0]
    )


# Drains.


async def test_a_drain_is_planned_and_only_the_plan_that_was_seen_is_carried_out(world: World) -> None:
    first = await world.node("w1")
    replica = await world.loaded()
    await world.node("w2")
    path = f"/api/v1/nodes/{first.id}/drain"
    world.control.context.serving.gateways.take(GatewayReport(gateway="g", sequence=0, in_flight={replica.id: 3}))
    plan = await ask(world, "POST", f"{path}/plan")

    assert told(plan) == [("moves", "small", "w1")]
    assert plan["consequences"][0]["to_node"] == "w2"
    assert (plan["in_flight"], plan["text"].splitlines()[0]) == (3, "Drain w1: 1 moves; 3 requests under way.")
    assert await world.events(EventKind.NODE_DRAINING) == []
    forced = await ask(world, "POST", f"{path}/plan", {"force": True})
    assert forced["hash"] != plan["hash"]
    assert await ask(world, "POST", f"{path}/plan?force=true") == forced

    again = stale(await ask(world, "POST", path, {"plan_hash": "of yesterday"}, status=409))
    assert (again, await world.events(EventKind.NODE_DRAINING)) == (plan, [])
    drained = await ask(world, "POST", path, {"plan_hash": plan["hash"]})
    assert drained["status"] == "draining"


async def test_of_two_people_who_drain_on_one_plan_one_wins(world: World) -> None:
    node = await world.node("w1")
    path = f"/api/v1/nodes/{node.id}/drain"
    plan = await ask(world, "POST", f"{path}/plan")
    (won, _), (lost, answer) = await both(world, "POST", path, {"plan_hash": plan["hash"]})

    assert (won, lost) == (200, 409)
    assert stale(answer)["hash"] != plan["hash"]
    assert len(await world.events(EventKind.NODE_DRAINING)) == 1


async def test_a_drain_whose_plan_changed_between_look_and_act_does_nothing(world: World) -> None:
    node = await world.node("w1")
    path = f"/api/v1/nodes/{node.id}/drain"
    plan = await ask(world, "POST", f"{path}/plan")
    await world.loaded()

    assert told(stale(await ask(world, "POST", path, {"plan_hash": plan["hash"]}, status=409))) != []
    assert await world.events(EventKind.NODE_DRAINING) == []


# Nodes.


async def test_the_removal_of_a_node_is_planned_and_done_once(world: World) -> None:
    first = await world.node("w1")
    await world.loaded()
    plan = await ask(world, "POST", f"/api/v1/nodes/{first.id}/removal/plan")
    assert told(plan)[0] == ("loses_service", "small", "w1")
    assert ("deleted", "w1", "") in told(plan)
    assert "Kept: what w1 has on its disk" in plan["text"]

    await world.node("w2")
    path = f"/api/v1/nodes/{first.id}?plan_hash="
    new = stale(await ask(world, "DELETE", path + plan["hash"], status=409))
    assert told(new)[1] == ("moves", "small", "w1")
    (won, _), (lost, _) = await both(world, "DELETE", path + new["hash"])
    assert (won, lost) == (204, 404)
    assert len(await world.events(EventKind.NODE_REMOVED)) == 1
    await ask(world, "POST", f"/api/v1/nodes/{first.id}/removal/plan", status=404)


async def test_a_node_that_goes_while_its_removal_is_planned_is_not_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what it had would be another plan, and its hash a conflict."""
    first = await world.node("w1")
    await world.loaded()
    plans = world.control.context.serving.plans
    take = plans._snapshots.take

    async def remove_first() -> FleetSnapshot:
        snapshot = await take()
        await ask(world, "DELETE", f"/api/v1/nodes/{first.id}", status=204)
        return snapshot

    monkeypatch.setattr(plans._snapshots, "take", remove_first)
    await ask(world, "POST", f"/api/v1/nodes/{first.id}/removal/plan", status=404)


async def test_what_is_to_be_done_on_a_node_is_part_of_its_removal(world: World) -> None:
    await world.backends("w1")
    [seen] = await world.control.context.nodes.fleet.all()
    started = await ask(world, "POST", "/api/v1/operations", {"verb": "install", "backend": "echo"}, status=202)
    plan = await ask(world, "POST", f"/api/v1/nodes/{seen.node.id}/removal/plan")
    [cancelled] = [item for item in plan["consequences"] if item["kind"] == "cancelled"]
    assert (cancelled["subject"], cancelled["about"], cancelled["node"]) == ("install echo", "operation", "w1")
    assert started["id"] in cancelled["detail"]


# Models.


async def test_the_removal_of_a_model_is_planned_and_done_once(world: World) -> None:
    await world.node("w1")
    await world.write("name: short\nalias: small\n", "short.yaml")
    (world.models / "small.gguf").write_bytes(b"weights")
    await world.loaded()
    plan = await ask(world, "POST", "/api/v1/model-removals/plan", {"name": "small"})

    assert told(plan)[:3] == [("loses_service", "small", ""), ("loses_service", "short", ""), ("ends", "small", "w1")]
    assert ("deleted", "small.gguf", "") in told(plan)
    assert (world.models / "small.gguf").exists()
    path = f"{MODELS}/small?plan_hash="
    await world.write("name: small\nbackend: echo\nthreads: 3\nparameters:\n  model: small.gguf\n")
    new = stale(await ask(world, "DELETE", path + plan["hash"], status=409))
    assert new["hash"] != plan["hash"]
    (won, _), (lost, _) = await both(world, "DELETE", path + new["hash"])
    assert (won, lost) == (202, 404)
    assert len(await world.events(EventKind.MODEL_REMOVED)) == 1


async def test_a_removal_that_was_accepted_is_answered_again_under_its_key(world: World) -> None:
    await world.node("w1")
    await world.write("name: small\nbackend: echo\nparameters:\n  model: small.gguf\n")
    plan = await ask(world, "POST", "/api/v1/model-removals/plan", {"name": "small"})
    path = f"{MODELS}/small?plan_hash={plan['hash']}"
    answers = [await world.frontend.call("DELETE", path, **{"Idempotency-Key": "one"}) for _ in range(2)]
    assert [answer.status for answer in answers] == [202, 202]
    assert answers[0].json()["id"] == answers[1].json()["id"]


# Rules of scheduling.


async def test_a_rule_is_planned_and_set_on_the_plan_that_was_seen(world: World) -> None:
    await world.node("w1")
    await world.node("w2")
    await world.loaded()
    rule = {"model": "small", "min_replicas": 2}
    plan = await ask(world, "POST", f"{SCHEDULING}/plan", {"rules": [rule]})

    assert [(item["kind"], item["subject"]) for item in plan["consequences"]] == [("added", "small")]
    assert (await ask(world, "GET", SCHEDULING))["items"] == []
    bodies = ({"min_replicas": 2, "plan_hash": plan["hash"]}, {"min_replicas": 3, "plan_hash": plan["hash"]})
    stale(await ask(world, "PUT", f"{SCHEDULING}/small", bodies[1], status=409))
    assert (await ask(world, "PUT", f"{SCHEDULING}/small", bodies[0]))["min_replicas"] == 2
    after = stale(await ask(world, "PATCH", f"{SCHEDULING}/small", bodies[0], status=409))
    assert (after["consequences"], after["text"]) == ([], "No rule changes: nothing else changes.")


async def test_of_two_people_who_set_a_rule_on_one_plan_one_wins(world: World) -> None:
    await world.node("w1")
    plan = await ask(world, "POST", f"{SCHEDULING}/plan", {"rules": [{"model": "small", "max_replicas": 2}]})
    body = {"max_replicas": 2, "plan_hash": plan["hash"]}
    (won, _), (lost, answer) = await both(world, "PUT", f"{SCHEDULING}/small", body)
    assert (won, lost) == (200, 409)
    stale(answer)
    assert len(await world.events(EventKind.SCHEDULING_CHANGED)) == 1


async def test_rules_are_declared_and_deleted_on_plans(world: World) -> None:
    await world.node("w1")
    scheduling = world.control.context.serving.scheduling
    await scheduling.revise("gone", lambda _: SchedulingWish(model="gone", min_replicas=1), by="ann")
    declared = {"rules": [{"model": "small", "min_replicas": 1}], "prune": "all"}
    plan = await ask(world, "POST", f"{SCHEDULING}/plan", declared)
    assert ("deleted", "the rule of gone", "") in told(plan)
    changed = await ask(world, "PUT", SCHEDULING, {**declared, "plan_hash": plan["hash"]})
    assert (changed["added"], changed["removed"]) == (["small"], ["gone"])

    plan = await ask(world, "POST", f"{SCHEDULING}/plan", {"remove": ["small"]})
    assert told(plan) == [("deleted", "the rule of small", "")]
    stale(await ask(world, "DELETE", f"{SCHEDULING}/small?plan_hash=other", status=409))
    await ask(world, "DELETE", f"{SCHEDULING}/small?plan_hash={plan['hash']}", status=204)


async def test_unloading_can_be_planned_with_a_rule(world: World) -> None:
    await world.node("w1")
    await world.loaded()
    plan = await ask(world, "POST", f"{SCHEDULING}/plan", {"unload": ["small"]})
    assert told(plan) == [("ends", "small", "w1")]


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        (f"{SCHEDULING}/plan", {"rules": [{"model": "m", "min_replicas": -1}]}, 400, "rules[0].min_replicas"),
        (f"{SCHEDULING}/plan", {"rules": [{"model": "m"}, {"model": "m"}]}, 400, "rules[1].model"),
        (f"{SCHEDULING}/plan", {"prune": "some"}, 400, "prune"),
        (f"{SCHEDULING}/plan", {"rules": [{"model": "m"}], "remove": ["m"]}, 400, "remove"),
        (f"{SCHEDULING}/plan", {"unload": ["nothing"]}, 404, None),
        ("/api/v1/model-removals/plan", {"name": "nothing"}, 404, None),
        ("/api/v1/model-removals/plan", {}, 400, None),
        ("/api/v1/nodes/nobody/drain/plan", None, 404, None),
        ("/api/v1/nodes/nobody/drain/plan", {"force": "perhaps"}, 400, "force"),
        ("/api/v1/nodes/nobody/removal/plan", None, 404, None),
    ],
)
async def test_a_plan_of_nonsense_is_refused_with_its_field(
    world: World, path: str, body: object, status: int, field: str | None
) -> None:
    error = (await ask(world, "POST", path, body, status=status))["error"]
    assert error.get("field") == field


async def test_a_hash_that_is_none_is_refused(world: World) -> None:
    node = await world.node("w1")
    answer = await ask(world, "DELETE", f"/api/v1/nodes/{node.id}?plan_hash={'x' * 100}", status=400)
    assert answer["error"]["field"] == "plan_hash"
