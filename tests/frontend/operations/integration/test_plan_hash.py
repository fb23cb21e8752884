"""Operations on a plan that somebody has seen: the plan of now, or nothing; on both databases."""

import asyncio
from typing import Any

from corral.frontend.record.decide import EventKind
from corral.wire.view import GatewayReport
from tests.kit.asgi import AsgiAnswer
from tests.kit.world import World

OPERATIONS = "/api/v1/operations"
DELETE = {"verb": "delete", "backend": "echo"}
INSTALL = {"verb": "install", "backend": "echo"}


def body(answer: AsgiAnswer, status: int = 200) -> Any:
    assert answer.status == status, answer.body
    return answer.json()


async def plan_of(world: World, ask: object) -> Any:
    return body(await world.frontend.call("POST", f"{OPERATIONS}/plan", ask))


async def started(world: World) -> int:
    return len(await world.events(EventKind.OPERATION_STARTED))


async def test_a_plan_counts_groups_and_is_the_text_of_the_command_line(world: World) -> None:
    (await world.backends("w1")).put("echo")
    await world.backends("w2")
    await world.control.context.backends.inventory.sweep()
    plan = await plan_of(world, DELETE)

    assert plan["counts"] == {"fits": 1, "blocked": 0, "unknown": 0, "already": 1}
    assert (plan["replicas_end"], plan["rules"]) == ([], [])
    assert plan["text"].splitlines() == [
        "NODE  STATUS   BACKEND  BYTES  WHAT WOULD HAPPEN",
        "w1    Healthy  echo     0 B    delete",
        "w2    Healthy  echo     0 B    nothing: it is not there",
        "2 nodes: 1 would delete, 1 already as wanted.",
    ]
    assert plan == await plan_of(world, DELETE), "the same fleet gives the same plan"


async def test_replicas_that_end_are_told_with_their_requests(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    gateways = world.control.context.serving.gateways
    gateways.take(GatewayReport(gateway="g", sequence=0, in_flight={replica.id: 2}))
    plan = await plan_of(world, DELETE)

    assert plan["replicas_end"] == [{"node_id": node.id, "node": "w1", "model": "small", "in_flight": 2}]
    assert plan["text"].splitlines()[-1] == "Ends: small on w1, 2 requests under way."
    gateways.take(GatewayReport(gateway="g", sequence=1, in_flight={}))
    assert (await plan_of(world, DELETE))["hash"] == plan["hash"], "requests come and go all the time"


async def test_only_the_plan_that_was_seen_is_carried_out(world: World) -> None:
    (await world.backends("w1")).put("echo")
    await world.control.context.backends.inventory.sweep()
    plan = await plan_of(world, DELETE)
    await world.backends("w2")

    stale = body(await world.frontend.call("POST", OPERATIONS, {**DELETE, "plan_hash": plan["hash"]}), 409)
    assert stale["error"]["code"] == "stale_plan"
    assert [item["node_name"] for item in stale["plan"]["items"]] == ["w1", "w2"]
    assert await started(world) == 0
    other = {**INSTALL, "plan_hash": stale["plan"]["hash"]}
    assert body(await world.frontend.call("POST", OPERATIONS, other), 409)["plan"]["hash"] != stale["plan"]["hash"]
    act = {**DELETE, "plan_hash": stale["plan"]["hash"]}
    operation = body(await world.frontend.call("POST", OPERATIONS, act), 202)
    assert {target["node_name"] for target in operation["targets"]} == {"w1", "w2"}


async def test_of_two_people_who_act_on_one_plan_one_wins(world: World) -> None:
    await world.backends("w1")
    await world.backends("w2")
    act = {**INSTALL, "plan_hash": (await plan_of(world, INSTALL))["hash"]}
    answers = await asyncio.gather(*(world.frontend.call("POST", OPERATIONS, act) for _ in range(4)))

    assert sorted(answer.status for answer in answers) == [202, 409, 409, 409]
    assert {answer.json()["error"]["code"] for answer in answers if answer.status == 409} == {"stale_plan"}
    assert await started(world) == 1
    again = body(await world.frontend.call("POST", OPERATIONS, act), 409)
    assert await started(world) == 1
    assert again["plan"]["hash"] != act["plan_hash"]


async def test_a_lost_answer_is_given_again_and_not_called_stale(world: World) -> None:
    await world.backends("w1")
    act = {**INSTALL, "plan_hash": (await plan_of(world, INSTALL))["hash"]}
    headers = {"Idempotency-Key": "one"}
    first, second = [await world.frontend.call("POST", OPERATIONS, act, **headers) for _ in range(2)]
    assert body(first, 202)["id"] == body(second, 202)["id"]


async def test_a_forced_install_can_be_planned_although_each_one_is_another(world: World) -> None:
    (await world.backends("w1")).put("echo")
    await world.control.context.backends.inventory.sweep()
    ask = {**INSTALL, "force": True}
    plan, again = await plan_of(world, ask), await plan_of(world, ask)
    assert plan["hash"] == again["hash"] != (await plan_of(world, INSTALL))["hash"]
    body(await world.frontend.call("POST", OPERATIONS, {**ask, "plan_hash": plan["hash"]}), 202)


async def test_rules_in_the_way_are_part_of_the_plan_and_the_act_is_refused(world: World) -> None:
    (await world.backends("w1")).put("echo")
    await world.control.context.backends.inventory.sweep()
    rules = {"rules": [{"name": "all", "backend": "echo"}]}
    body(await world.frontend.call("PUT", "/api/v1/fleet-rules", rules, **{"If-Match": "*"}))
    plan = await plan_of(world, DELETE)

    [rule] = plan["rules"]
    assert rule == "the fleet rule all demands echo on w1; change or delete the rule first"
    assert plan["text"].splitlines()[-1] == f"In the way: {rule}."
    refused = body(await world.frontend.call("POST", OPERATIONS, {**DELETE, "plan_hash": plan["hash"]}), 409)
    assert (refused["error"]["message"], "plan" in refused) == (rule, False)


async def test_a_rule_that_appears_makes_a_plan_stale(world: World) -> None:
    (await world.backends("w1")).put("echo")
    await world.control.context.backends.inventory.sweep()
    plan = await plan_of(world, DELETE)
    rules = {"rules": [{"name": "all", "backend": "echo"}]}
    body(await world.frontend.call("PUT", "/api/v1/fleet-rules", rules, **{"If-Match": "*"}))
    stale = body(await world.frontend.call("POST", OPERATIONS, {**DELETE, "plan_hash": plan["hash"]}), 409)
    assert stale["error"]["code"] == "stale_plan"
    assert stale["plan"]["rules"] != []
