"""The list of what is not as it was asked for, through the API and on both databases."""

from datetime import timedelta
from typing import Any

from tests.kit.world import World

DRIFT, OPERATIONS = "/api/v1/drift", "/api/v1/operations"
SECOND = timedelta(seconds=1)


async def drift(world: World) -> list[Any]:
    answer = await world.frontend.call("GET", DRIFT)
    assert answer.status == 200, answer.body
    items: list[Any] = answer.json()["items"]
    return items


async def drift_that_needs_attention(world: World) -> list[tuple[str, str]]:
    """What the web page shows first: of each backend the node, its name, and why."""
    answer = await world.frontend.call("GET", "/api/v1/fleet/summary")
    names = {node.node.id: node.node.name for node in await world.control.context.nodes.fleet.all()}
    items = [item for item in answer.json()["attention"] if item["kind"] == "drift"]
    subjects = [item["subject"]["id"].partition("/") for item in items]
    return [(f"{names[node]}/{backend}", item["why"]) for (node, _, backend), item in zip(subjects, items, strict=True)]


async def act(world: World, ask: object) -> None:
    await world.clock.advance(SECOND)
    assert (await world.frontend.call("POST", OPERATIONS, ask)).status == 202
    await world.control.context.operations.dispatcher.tick()


async def reported(world: World) -> None:
    """Twice: a report that came with an operation is taken for that of another frontend at first."""
    for _ in range(2):
        await world.clock.advance(SECOND)
        await world.frontend.settle()
        await world.control.context.backends.inventory.sweep()


async def test_what_somebody_changed_on_a_node_appears_and_its_fix_mends_it(world: World) -> None:
    first, second = await world.backends("w1"), await world.backends("w2")
    await act(world, {"verb": "install", "backend": "echo"})
    await reported(world)
    assert await drift(world) == []

    del first.disk["echo"]
    second.put("other")
    await act(world, {"verb": "delete", "backend": "other"})
    second.put("other")
    await reported(world)
    gone, back = await drift(world)

    assert (gone["node_name"], gone["backend"], gone["kind"], gone["has"]) == ("w1", "echo", "changed", "not installed")
    assert gone["fix"]["label"] == "Install echo on w1"
    assert (back["node_name"], back["backend"], back["wanted"]) == ("w2", "other", "not installed")
    assert back["fix"]["label"] == "Delete other on w2"
    assert sorted(await drift_that_needs_attention(world)) == [("w1/echo", gone["why"]), ("w2/other", back["why"])]
    await act(world, gone["fix"]["operation"])
    await act(world, back["fix"]["operation"])
    await reported(world)
    assert await drift(world) == []


async def test_what_is_blocked_or_fails_is_told_with_its_rule_and_operation(world: World) -> None:
    (await world.backends("w1")).faults.refusal = "install failed: no"
    rules = {"rules": [{"name": "all", "backend": "echo"}]}
    put = await world.frontend.call("PUT", "/api/v1/fleet-rules", rules, **{"If-Match": "*"})
    await world.control.context.operations.dispatcher.tick()
    [failing] = await drift(world)

    assert (failing["kind"], failing["rule"], failing["why"]) == ("failing", "all", "install failed: no")
    assert failing["operation_id"] == put.json()["operations"][0]["id"]
    assert failing["since"] is not None
    assert failing["fix"] is None


async def test_a_viewer_may_look(world: World) -> None:
    assert (await world.frontend.call("GET", DRIFT, Authorization="Bearer nothing")).status == 401
