"""The routes of backends and operations: LocalAI's shapes, and Corral's own."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.kit.asgi import AsgiAnswer
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""


def body(answer: AsgiAnswer, status: int = 200) -> Any:
    assert answer.status == status, answer.body
    return msgspec.json.decode(answer.body)


async def call(world: World, method: str, path: str, sent: object = None, **headers: str) -> AsgiAnswer:
    return await world.frontend.call(method, path, sent, **headers)


async def work(world: World) -> None:
    await world.control.context.operations.dispatcher.tick()


async def test_an_install_by_localais_route_is_followed_by_its_job(world: World) -> None:
    await world.backends("w1")
    accepted = body(await call(world, "POST", "/api/backends/install/g@echo"))
    assert accepted["message"] == "Backend installation started"
    job = f"/api/backends/job/{accepted['jobID']}"
    assert body(await call(world, "GET", job)) == {
        "progress": 0,
        "message": "queued",
        "galleryElementName": "g@echo",
        "processed": False,
        "deletion": False,
        "queued": False,
    }
    (item,) = body(await call(world, "GET", "/api/operations"))["operations"]
    assert (item["id"], item["name"], item["jobID"], item["taskType"], item["isBackend"], item["cancellable"]) == (
        "g@echo",
        "echo",
        accepted["jobID"],
        "Installation",
        True,
        True,
    )
    assert [(one["node_name"], one["status"], one["percentage"]) for one in item["nodes"]] == [("w1", "queued", 0)]
    await work(world)
    assert body(await call(world, "GET", job)) == {
        "progress": 100,
        "message": "completed",
        "galleryElementName": "g@echo",
        "processed": True,
        "deletion": False,
        "queued": False,
        "completed": True,
    }
    assert body(await call(world, "GET", "/api/operations")) == {"operations": []}
    (past,) = body(await call(world, "GET", "/api/operations/history"))["operations"]
    assert (past["outcome"], past["taskType"], past["name"]) == ("completed", "installation", "echo")


async def test_errors_of_nodes_are_joined_and_stay_until_dismissed(world: World) -> None:
    for name in ("w1", "w2"):
        (await world.backends(name)).faults.refusal = "install failed: no"
    job = body(await call(world, "POST", "/api/backends/install/nope"))["jobID"]
    await work(world)
    (item,) = body(await call(world, "GET", "/api/operations"))["operations"]
    assert item["error"] == "w1: install failed: no; w2: install failed: no"
    assert item["message"] == f"error: {item['error']}"
    assert [(one["status"], one["error"]) for one in item["nodes"]] == [("error", "install failed: no")] * 2
    status = body(await call(world, "GET", f"/backends/jobs/{job}"))
    assert (status["processed"], status["error"], len(status["nodes"])) == (True, item["error"], 2)
    assert body(await call(world, "POST", f"/api/operations/{job}/dismiss"))["message"] == "Operation dismissed"
    assert body(await call(world, "GET", "/api/operations")) == {"operations": []}


async def test_a_fan_out_that_is_cancelled_on_the_way_is_not_completed(world: World) -> None:
    """control-plane.md 2.4: processed and cancelled, and so it stands in the history."""
    await world.backends("w1")
    (await world.backends("w2")).faults.refusal = "not now"
    job = body(await call(world, "POST", "/api/backends/install/echo"))["jobID"]
    await work(world)
    await call(world, "POST", f"/api/operations/{job}/cancel")
    status = body(await call(world, "GET", f"/backends/jobs/{job}"))
    assert (status["processed"], status["cancelled"], status["message"]) == (True, True, "cancelled")
    shown = body(await call(world, "GET", f"/api/backends/job/{job}"))
    assert (shown["processed"], shown["message"], "completed" in shown) == (True, "cancelled", False)
    assert body(await call(world, "GET", "/api/operations")) == {"operations": []}
    (past,) = body(await call(world, "GET", "/api/operations/history"))["operations"]
    assert past["outcome"] == "cancelled"


async def test_ids_that_nobody_knows_are_answered_as_localai_does(world: World) -> None:
    assert body(await call(world, "GET", "/api/backends/job/none"))["queued"] is True
    assert body(await call(world, "POST", "/api/operations/nope/cancel")) == {
        "message": "Operation cancelled",
        "success": True,
    }
    unknown = body(await call(world, "GET", "/backends/jobs/x"), 500)
    assert unknown == {"error": {"code": 500, "message": "could not find any status for ID", "type": ""}}


async def test_an_install_by_uri_needs_uri_and_name(world: World) -> None:
    node = await world.backends("w1")
    assert body(await call(world, "POST", "/api/backends/install-external", {}), 400) == {"error": "uri is required"}
    nameless = await call(world, "POST", "/api/backends/install-external", {"uri": "oci://x"})
    assert "needs a name" in body(nameless, 400)["error"]
    whole = {"uri": "oci://r/custom:v1", "name": "custom", "alias": "mine"}
    accepted = body(await call(world, "POST", "/api/backends/install-external", whole))
    assert accepted["message"] == "External backend installation started"
    await work(world)
    assert node.disk["custom"].uri == "oci://r/custom:v1"


async def test_upgrade_and_delete_by_localais_routes(world: World) -> None:
    node = await world.backends("w1")
    nowhere = body(await call(world, "POST", "/api/backends/upgrade/echo"), 409)
    assert nowhere == {"error": 'backend "echo" is not installed on any node'}
    await call(world, "POST", "/api/backends/install/echo")
    await work(world)
    upgraded = body(await call(world, "POST", "/api/backends/upgrade/echo"))
    assert upgraded["statusUrl"] == f"/api/backends/job/{upgraded['jobID']}"
    assert upgraded["uuid"] == upgraded["jobID"]
    await work(world)
    assert node.written["echo"] == 2
    body(await call(world, "POST", "/api/backends/delete/echo"))
    (item,) = body(await call(world, "GET", "/api/operations"))["operations"]
    assert (item["taskType"], item["isDeletion"], item["cancellable"]) == ("deletion", True, False)
    await work(world)
    assert node.disk == {}


async def test_routes_of_the_command_line_do_the_same(world: World) -> None:
    node = await world.backends("w1")
    applied = body(await call(world, "POST", "/backends/apply", {"id": "echo"}))
    assert applied["status_url"] == f"http://127.0.0.1/backends/jobs/{applied['id']}"
    await work(world)
    (row,) = body(await call(world, "GET", "/backends?refresh=1"))
    assert (row["Name"], row["RunFile"], row["IsMeta"], row["IsSystem"]) == ("echo", "", False, False)
    assert row["Metadata"]["uri"] == "oci://gallery/echo"
    assert [(one["node_name"], one["node_status"]) for one in row["nodes"]] == [("w1", "healthy")]
    await call(world, "POST", "/backends/apply", {"id": "echo", "force": True})
    await work(world)
    assert node.written["echo"] == 2
    await call(world, "POST", "/backends/upgrade/echo")
    await work(world)
    await call(world, "POST", "/backends/delete/echo")
    await work(world)
    assert (node.written["echo"], node.disk) == (3, {})


async def on_one_node(world: World, node: SimulatedBackends, verb: str, sent: object) -> AsgiAnswer:
    return await call(world, "POST", f"/api/nodes/{node.node_id}/backends/{verb}", sent)


async def test_backends_of_one_node(world: World) -> None:
    node, other = await world.backends("w1"), await world.backends("w2")
    empty = body(await on_one_node(world, node, "install", {}), 400)
    assert empty == {"error": {"code": 400, "message": "backend name or uri required", "type": "node_error"}}
    accepted = body(await on_one_node(world, node, "install", {"backend": "echo"}), 202)
    assert accepted["message"] == "backend installation started"
    assert accepted["statusUrl"] == f"/api/backends/job/{accepted['jobID']}"
    await work(world)
    assert other.disk == {}
    (listed,) = body(await call(world, "GET", f"/api/nodes/{node.node_id}/backends"))
    assert (listed["name"], listed["is_system"], listed["is_meta"]) == ("echo", False, False)
    assert body(await on_one_node(world, node, "upgrade", {"backend": "echo"}), 202)["message"].endswith("started")
    await work(world)
    assert node.written["echo"] == 2
    body(await on_one_node(world, other, "upgrade", {"backend": "echo"}), 409)


async def test_a_delete_on_one_node_waits_and_tells_the_nodes_own_words(world: World) -> None:
    node = await world.backends("w1")
    await on_one_node(world, node, "install", {"backend": "echo"})
    await work(world)
    node.faults.refusal = "a process survived"
    refused = body(await _deleted(world, node), 500)["error"]["message"]
    assert refused == "backend deletion failed: w1: a process survived"
    node.faults.refusal = ""
    done = body(await _deleted(world, node))
    assert done["message"] == "backend deleted"
    assert [(one["node_name"], one["status"]) for one in done["corral"]["nodes"]] == [("w1", "success")]
    assert node.disk == {}


async def _deleted(world: World, node: SimulatedBackends) -> AsgiAnswer:
    """The answer comes when the work was done and some time has passed."""
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(on_one_node(world, node, "delete", {"backend": "echo"}))
        await world.clock.until_sleeping(1)
        await work(world)
        await world.clock.advance(timedelta(seconds=1))
    return answer.result()


async def test_a_dead_node_cannot_say_what_it_has(world: World) -> None:
    node = await world.backends("w1")
    await node.stop()
    told = body(await call(world, "GET", f"/api/nodes/{node.node_id}/backends"), 500)
    assert told["error"]["message"].startswith("failed to list backends on node")


async def test_an_operation_in_corrals_own_form(world: World) -> None:
    node = await world.backends("w1", zone="a")
    await world.backends("w2", zone="b")
    asked = {"verb": "install", "backend": "echo", "labels": {"zone": "a"}}
    (planned,) = body(await call(world, "POST", "/api/v1/operations/plan", asked))["items"]
    assert (planned["node_name"], planned["backend"], planned["blocked"]) == ("w1", "echo", "")
    first = await call(world, "POST", "/api/v1/operations", asked, idempotency_key="k1")
    operation = body(first, 202)
    again = body(await call(world, "POST", "/api/v1/operations", asked, idempotency_key="k1"), 202)
    assert (again["id"], operation["state"], operation["counts"]) == (operation["id"], "running", {"queued": 1})
    await work(world)
    shown = body(await call(world, "GET", f"/api/v1/operations/{operation['id']}"))
    assert (shown["state"], shown["progress"], shown["counts"]) == ("done", 100.0, {"success": 1})
    assert [(one["node_name"], one["message"]) for one in shown["targets"]] == [("w1", "present")]
    held = body(await call(world, "GET", "/api/v1/backends?refresh=1"))
    assert [(one["name"], [node["node_name"] for node in one["nodes"]]) for one in held["items"]] == [("echo", ["w1"])]
    assert node.written["echo"] == 1


async def test_operations_are_listed_page_by_page(world: World) -> None:
    await world.backends("w1")
    ids = []
    for name in ("a", "b", "c"):
        ids.append(
            body(await call(world, "POST", "/api/v1/operations", {"verb": "install", "backend": name}), 202)["id"]
        )
        await world.clock.advance(timedelta(seconds=1))
    first = body(await call(world, "GET", "/api/v1/operations?limit=2"))
    rest = body(await call(world, "GET", f"/api/v1/operations?limit=2&cursor={first['next_cursor']}"))
    assert [one["id"] for one in first["items"] + rest["items"]] == ids[::-1]
    assert rest["next_cursor"] is None
    body(await call(world, "GET", "/api/v1/operations?cursor=x"), 400)


async def test_retry_and_cancel_say_what_they_changed(world: World) -> None:
    node = await world.backends("w1")
    node.faults.refusal = "no"
    id = body(await call(world, "POST", "/api/v1/operations", {"verb": "install", "backend": "echo"}), 202)["id"]
    await work(world)
    node.faults.refusal = ""
    retried = body(await call(world, "POST", f"/api/v1/operations/{id}/retry", {"nodes": [node.node_id]}))
    assert (retried["nodes"], retried["operation"]["counts"]) == (["w1"], {"queued": 1})
    cancelled = body(await call(world, "POST", f"/api/v1/operations/{id}/cancel"))
    assert (cancelled["nodes"], cancelled["already_sent"], cancelled["operation"]["state"]) == (["w1"], [], "cancelled")
    await work(world)
    assert node.disk == {}
    body(await call(world, "POST", "/api/v1/operations/nobody/retry"), 404)


@pytest.mark.parametrize(
    ("sent", "status", "named"),
    [
        ({"verb": "destroy", "backend": "echo"}, 400, "verb"),
        ({"verb": "install"}, 400, "backend"),
        ({"backend": "echo"}, 400, "verb"),
        ({"verb": "install", "backend": "echo", "nodes": ["nobody"]}, 404, "nobody"),
        ({"verb": "install", "backend": "echo", "labels": {"zone": "z"}}, 409, "zone=z"),
        ({"verb": "install", "uri": "oci://x y", "name": "x"}, 400, "uri"),
        ({"verb": "upgrade", "backend": "echo"}, 409, "not installed on any node"),
    ],
)
async def test_what_is_wrong_is_named(world: World, sent: object, status: int, named: str) -> None:
    await world.backends("w1")
    error = body(await call(world, "POST", "/api/v1/operations", sent), status)["error"]
    assert named in f"{error.get('field', '')} {error['message']}"
    assert body(await call(world, "GET", "/api/v1/operations"))["items"] == []
