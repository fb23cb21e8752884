"""The routes of fleet rules: a set with a revision, what follows from it, and each way to be wrong."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.kit.asgi import AsgiAnswer
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

PATH = "/api/v1/fleet-rules"
ECHO = {"name": "everywhere", "backend": "echo"}


def body(answer: AsgiAnswer, status: int = 200) -> Any:
    assert answer.status == status, answer.body
    return msgspec.json.decode(answer.body)


async def put(world: World, *rules: object, match: str = "*", prune: str = "") -> AsgiAnswer:
    return await world.frontend.call("PUT", PATH, {"rules": rules, "prune": prune}, if_match=match)


async def test_a_set_is_put_shown_and_taken_back(world: World) -> None:
    await world.backends("w1")
    (await world.backends("w2")).faults.refusal = "disk full"
    before = body(await world.frontend.call("GET", PATH))
    assert before["items"] == []
    answer = await put(world, ECHO, match=f'"{before["revision"]}"')
    applied = body(answer)
    assert dict(answer.headers)["etag"] == f'"{applied["revision"]}"'
    assert applied["changes"] == {"added": ["everywhere"], "changed": [], "removed": []}
    (operation,) = applied["operations"]
    assert (operation["asked_by"], operation["state"]) == ("fleet rule everywhere", "running")
    await world.control.context.operations.dispatcher.tick()
    (rule,) = body(await world.frontend.call("GET", PATH))["items"]
    assert (rule["made_by"], rule["counts"], rule["unmet"]) == (
        "admin",
        {"error": 1, "success": 1},
        {"w2": "disk full"},
    )
    assert (await world.frontend.call("DELETE", f"{PATH}/everywhere")).status == 204
    assert body(await world.frontend.call("GET", PATH)) == before


async def test_a_delete_of_what_is_demanded_is_refused_on_every_route(world: World) -> None:
    node = await world.backends("w1")
    await put(world, ECHO)
    await world.control.context.operations.dispatcher.tick()
    sentence = "the fleet rule everywhere demands echo on w1; change or delete the rule first"
    native = await world.frontend.call("POST", "/api/v1/operations", {"verb": "delete", "backend": "echo"})
    assert body(native, 409)["error"] == {"code": "conflict", "message": sentence}
    for path in ("/api/backends/delete/echo", "/backends/delete/echo"):
        assert sentence in str(body(await world.frontend.call("POST", path), 409))
    one = await world.frontend.call("POST", f"/api/nodes/{node.node_id}/backends/delete", {"backend": "echo"})
    assert sentence in str(body(one, 409))
    assert "echo" in node.disk


async def test_a_set_of_another_revision_is_not_overwritten(world: World) -> None:
    await put(world, ECHO)
    refused = body(await put(world, match='"0123"'), 412)["error"]
    assert (refused["code"], "by now, not 0123" in refused["message"]) == ("precondition_failed", True)
    unguarded = await world.frontend.call("PUT", PATH, {"rules": []})
    assert body(unguarded, 400)["error"]["field"] == "If-Match"
    assert len(body(await world.frontend.call("GET", PATH))["items"]) == 1


async def test_what_is_wrong_is_named(world: World) -> None:
    for rules, prune, field in (
        ([{"backend": "echo"}], "", "rules[0]"),
        ([{**ECHO, "labels": {"a": 1}}], "", "rules[0].labels[a]"),
        ([{**ECHO, "name": "a b"}], "", "rules[0].name"),
        ([ECHO, ECHO], "", "rules"),
        ([ECHO], "some", "prune"),
    ):
        error = body(await put(world, *rules, prune=prune), 400)["error"]
        assert error.get("field", error["message"]).startswith(field.partition("[a]")[0]), error
    assert body(await world.frontend.call("DELETE", f"{PATH}/nobody"), 404)["error"]["code"] == "not_found"


async def test_a_plan_tells_what_would_be_done_and_does_nothing(world: World) -> None:
    node = await world.backends("w1")
    await world.backends("w2", zone="a")
    await put(world, ECHO)
    await world.control.context.operations.dispatcher.tick()
    rules = [{"name": "more", "backend": "more", "labels": {"zone": "a"}}]
    plan = body(await world.frontend.call("POST", f"{PATH}/plan", {"rules": rules, "prune": "demanded"}))
    assert plan["changes"] == {"added": ["more"], "changed": [], "removed": ["everywhere"]}
    acts = [(one["verb"], one["backend"], [node["node_name"] for node in one["nodes"]]) for one in plan["acts"]]
    assert acts == [("install", "more", ["w2"]), ("delete", "echo", ["w1", "w2"])]
    assert "echo" in node.disk
    assert [one["name"] for one in body(await world.frontend.call("GET", PATH))["items"]] == ["everywhere"]


async def test_operators_change_rules_beside_those_of_administrators(world: World) -> None:
    """A rule with a uri stays as it is, with its maker, whoever puts the set; administrators change and remove it."""
    key = body(await world.frontend.call("POST", "/api/v1/keys", {"name": "o", "scopes": ["operator"]}), 201)["key"]
    mine = {"name": "mine", "backend": "mine", "uri": "oci://127.0.0.1:9/mine"}
    body(await put(world, mine))
    calls: list[tuple[str, str, object]] = [
        ("PUT", PATH, {"rules": [{**mine, "uri": "oci://127.0.0.1:9/evil"}]}),
        ("PUT", PATH, {"rules": [{**mine, "labels": {"a": "b"}}]}),
        ("PUT", PATH, {"rules": [{"name": "mine", "backend": "echo"}]}),
        ("PUT", PATH, {"rules": [{**mine, "name": "other"}, mine]}),
        ("PUT", PATH, {"rules": [ECHO]}),
        ("DELETE", f"{PATH}/mine", None),
    ]
    for method, path, asked in calls:
        refused = await world.frontend.call(method, path, asked, key=key, if_match="*")
        assert (refused.status, b"backends.trust" in refused.body) == (403, True), (asked, refused.body)

    for path, method in ((f"{PATH}/plan", "POST"), (PATH, "PUT")):
        body(await world.frontend.call(method, path, {"rules": [ECHO, mine]}, key=key, if_match="*"))
    items = body(await world.frontend.call("GET", PATH))["items"]
    assert {item["name"]: item["made_by"] for item in items} == {"everywhere": "o", "mine": "admin"}
    assert (await world.frontend.call("DELETE", f"{PATH}/everywhere", key=key)).status == 204
    assert (await world.frontend.call("DELETE", f"{PATH}/mine")).status == 204


async def test_a_set_is_put_only_on_the_plan_that_was_seen_and_once(world: World) -> None:
    await world.backends("w1")
    ask = {"rules": [ECHO]}
    plan = body(await world.frontend.call("POST", f"{PATH}/plan", ask))
    await world.backends("w2")
    stale = body(await world.frontend.call("PUT", PATH, {**ask, "plan_hash": plan["hash"]}, if_match="*"), 409)
    assert stale["error"]["code"] == "stale_plan"
    title, act, *nodes = stale["plan"]["text"].splitlines()
    assert (title[0], act, [line.split()[0] for line in nodes]) == (
        "+",
        f"install {ECHO['backend']} because of {ECHO['name']}:",
        ["w1", "w2"],
    )
    assert [node["node_name"] for node in stale["plan"]["acts"][0]["nodes"]] == ["w1", "w2"]
    assert body(await world.frontend.call("GET", PATH))["items"] == []

    act = {**ask, "plan_hash": stale["plan"]["hash"]}
    answers = await asyncio.gather(*(world.frontend.call("PUT", PATH, act, if_match="*") for _ in range(3)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409]
    assert (await world.frontend.call("PUT", PATH, act, if_match="old")).status == 412, "another set comes first"
