"""What LocalAI's routes do to backends, and how they tell what came of it: `/api/backends`, `/backends`,
`/api/operations`.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.operations.decide.intent import IntentPolicy
from corral.frontend.record.decide import EventKind
from corral.frontend.store.db import Database
from corral.galleries.gallery import GalleryEntry, GallerySource
from corral.wire.backends import InstalledBackend
from tests.kit.asgi import AsgiAnswer
from tests.kit.clock import ManualClock
from tests.kit.galleries import StaticCatalogue
from tests.kit.loop_time import overdue
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.world import World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

HASTE = timedelta(seconds=3)
"""Shorter than any time-out of the database, which must not be over as well."""
SHELF = StaticCatalogue(
    GallerySource(name="g", url="https://g.example/index.yaml"),
    GalleryEntry(name="llama", gallery="g", capabilities={"default": "cpu-llama", "nvidia": "cuda12-llama"}),
    GalleryEntry(name="cpu-llama", gallery="g", uri="oci://r/cpu"),
    GalleryEntry(name="cuda12-llama", gallery="g", uri="oci://r/cuda"),
    GalleryEntry(name="lonely", gallery="g", uri="oci://r/lonely"),
)


@pytest.fixture
def policy() -> IntentPolicy:
    return IntentPolicy()


@pytest.fixture
async def world(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, policy: IntentPolicy
) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path, lookups=Lookups(galleries=SHELF), intents=policy) as world:
        yield world


async def post(world: World, path: str, sent: object = None, status: int = 200, **headers: str) -> Any:
    answer = await world.frontend.call("POST", path, sent, **headers)
    assert answer.status == status, answer.body
    return answer.json()


async def get(world: World, path: str, status: int = 200) -> Any:
    answer = await world.frontend.call("GET", path)
    assert answer.status == status, answer.body
    return answer.json()


async def work(world: World) -> None:
    await world.control.context.operations.dispatcher.tick()


async def waited(world: World, path: str, sent: object = None) -> AsgiAnswer:
    """The answer of a route that waits for nodes."""
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(world.frontend.call("POST", path, sent))
        await world.clock.until_sleeping(1)
        await work(world)
        await world.clock.advance(timedelta(seconds=1))
    return answer.result()


def installed(name: str) -> InstalledBackend:
    return InstalledBackend(name=name, installed_at="2029-12-31T00:00:00Z")


# Applying.


async def test_a_build_for_certain_hardware_is_not_put_on_all_nodes(world: World) -> None:
    """control-plane.md 5.5 and 6.5: 409 `{"error","code":"concrete_backend_requires_target","meta_alternative"}`; what
    LocalAI then does all the same is not done."""
    node = await world.backends("w1")
    refused = await post(world, "/backends/apply", {"id": "cuda12-llama"}, 409)
    assert set(refused) == {"error", "code", "meta_alternative"}
    assert (refused["code"], refused["meta_alternative"]) == ("concrete_backend_requires_target", "llama")
    assert "/api/nodes/{node_id}/backends/install" in refused["error"]
    assert (await post(world, "/backends/apply", {"id": "g@lonely"}, 409))["meta_alternative"] == ""
    await work(world)
    assert node.requests == []


@pytest.mark.parametrize("name", ["llama", "g@llama", "unheard-of"])
async def test_a_meta_backend_is_applied_everywhere_and_so_is_what_no_gallery_knows(world: World, name: str) -> None:
    await world.backends("w1")
    applied = await post(world, "/backends/apply", {"id": name}, host="fleet.example:8443")
    assert applied == {
        "id": applied["id"],
        "status_url": f"http://fleet.example:8443/backends/jobs/{applied['id']}",
    }
    assert (await get(world, f"/backends/jobs/{applied['id']}"))["cancellable"] is (name != "unheard-of")


async def test_what_a_stranger_says_of_the_scheme_is_not_believed(world: World) -> None:
    await world.backends("w1")
    applied = await post(world, "/backends/apply", {"id": "llama"}, host="h", x_forwarded_proto="https")
    assert applied["status_url"].startswith("http://h/")


async def test_a_single_build_may_be_installed_on_all_by_the_pages_route(world: World) -> None:
    """control-plane.md 5.5: not refused on `/api/backends/install/:id`."""
    node = await world.backends("w1")
    await post(world, "/api/backends/install/lonely")
    await work(world)
    assert "lonely" in node.disk


async def test_an_install_ensures_and_a_forced_one_installs_anew(world: World) -> None:
    node = await world.backends("w1")
    for path in (
        "/api/backends/install/lonely",
        "/api/backends/install/lonely",
        "/api/backends/install/lonely?force=1",
    ):
        await post(world, path)
        await world.clock.advance(timedelta(seconds=2))
        await work(world)
    assert node.written["lonely"] == 2


# Time-outs, errors, absent nodes.


@pytest.mark.parametrize("policy", [IntentPolicy(install=HASTE)])
async def test_a_node_that_does_not_answer_in_time_is_still_installing(world: World) -> None:
    """control-plane.md 2.2, 2.4: `running_on_worker`, attempts unchanged; soft end = processed, no error, progress not
    100, message says the reconciler will confirm."""
    quick, slow = await world.backends("w1"), await held(world, "w2")
    job = (await post(world, "/api/backends/install/lonely"))["jobID"]
    await overdue(work(world), quick.finished, slow.begun, by=HASTE)
    shown = await get(world, f"/api/backends/job/{job}")
    assert shown["message"].startswith("still installing in background on w2")
    assert (shown["processed"], shown["queued"], "error" in shown, "completed" in shown) == (True, False, False, False)
    assert shown["progress"] != 100
    status = await get(world, f"/backends/jobs/{job}")
    assert [(one["node_name"], one["status"]) for one in status["nodes"]] == [
        ("w1", "success"),
        ("w2", "running_on_worker"),
    ]
    assert await get(world, "/api/operations") == {"operations": []}
    (native,) = (await get(world, "/api/v1/operations"))["items"]
    assert [one["attempts"] for one in native["targets"]] == [0, 0]
    slow.gate.set()
    await slow.finished.wait()
    await get(world, "/backends?refresh=1")
    await work(world)
    assert (await get(world, f"/api/backends/job/{job}"))["completed"] is True
    assert slow.written["lonely"] == 1


async def test_errors_of_nodes_are_joined_and_absent_nodes_are_none(world: World) -> None:
    """control-plane.md 5.1: `name: message` joined with `; ` for `error` entries only; queued is success."""
    for name in ("w3", "w1"):
        (await world.backends(name)).faults.refusal = f"{name} says no"
    await (await world.backends("w2")).stop()
    job = (await post(world, "/api/backends/install/lonely"))["jobID"]
    await work(world)
    (item,) = (await get(world, "/api/operations"))["operations"]
    assert item["error"] == "w1: w1 says no; w3: w3 says no"
    assert item["message"] == f"error: {item['error']}"
    assert [(one["node_name"], one["status"]) for one in item["nodes"]] == [
        ("w1", "error"),
        ("w2", "queued"),
        ("w3", "error"),
    ]
    assert (await get(world, f"/api/backends/job/{job}"))["error"] == item["error"]


async def test_an_operation_that_only_waits_is_neither_done_nor_failed(world: World) -> None:
    """Defect 18: LocalAI reports `completed` 100 % when all nodes are queued."""
    node = await world.backends("w1")
    await node.stop()
    job = (await post(world, "/api/backends/install/lonely"))["jobID"]
    await work(world)
    shown = await get(world, f"/api/backends/job/{job}")
    assert (shown["processed"], shown["message"]) == (True, "waiting for w1 to come back")
    assert "completed" not in shown
    assert "error" not in shown


# Upgrades.


async def test_an_upgrade_reaches_only_nodes_that_have_it(world: World) -> None:
    """control-plane.md 5.2: nodes reporting it installed."""
    with_it, without = await world.backends("w1"), await world.backends("w2")
    with_it.disk["lonely"] = installed("lonely")
    await post(world, "/api/backends/upgrade/lonely")
    await world.clock.advance(timedelta(seconds=2))
    await work(world)
    assert (with_it.written["lonely"], without.requests) == (1, [])


@pytest.mark.parametrize("path", ["/api/backends/upgrade/lonely", "/backends/upgrade/lonely"])
async def test_an_upgrade_of_what_no_node_has_says_so(world: World, path: str) -> None:
    await world.backends("w1")
    error = (await post(world, path, status=409))["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message == 'backend "lonely" is not installed on any node'
    assert await get(world, "/api/operations") == {"operations": []}


# Deletes.


async def test_a_delete_that_is_waited_for_tells_of_each_node(world: World) -> None:
    nodes = {name: await world.backends(name) for name in ("w1", "w2", "w3")}
    for node in (nodes["w1"], nodes["w2"]):
        node.disk["lonely"] = installed("lonely")
    nodes["w2"].faults.refusal = "a process survived"
    path = "/api/backends/system/delete/lonely"
    failed = await waited(world, path)
    body: Any = failed.json()
    assert (failed.status, body["error"]) == (500, "w2: a process survived")
    assert [(one["node_name"], one["status"]) for one in body["corral"]["nodes"]] == [
        ("w1", "success"),
        ("w2", "error"),
        ("w3", "success"),
    ]
    nodes["w2"].faults.refusal = ""
    done: Any = (await waited(world, path)).json()
    assert (done["success"], done["message"]) == (True, "Backend deleted successfully")
    assert {one["status"] for one in done["corral"]["nodes"]} == {"success"}


async def test_a_delete_does_not_wait_for_absent_nodes_and_names_them(world: World) -> None:
    (await world.backends("w1")).disk["lonely"] = installed("lonely")
    await (await world.backends("w2")).stop()
    answer = await waited(world, "/api/backends/system/delete/lonely")
    body: Any = answer.json()
    assert (answer.status, body["success"]) == (200, True)
    assert body["message"] == "Backend deleted on 1 of 2 nodes; it waits for w2"


async def test_a_delete_on_a_node_that_is_away_stays_wanted(world: World) -> None:
    node = await world.backends("w1")
    await node.stop()
    answer = await waited(world, f"/api/nodes/{node.node_id}/backends/delete", {"backend": "lonely"})
    body: Any = answer.json()
    assert answer.status == 500
    assert body["error"]["message"].startswith("failed to delete backend on node: it is away")
    assert body["error"]["type"] == "node_error"
    (operation,) = (await get(world, "/api/v1/operations"))["items"]
    assert operation["state"] == "waiting"


# Operations.


async def held(world: World, name: str) -> SimulatedBackends:
    """A node that begins and does not end."""
    node = await world.backends(name)
    node.gate.clear()
    world.stack.callback(node.gate.set)
    return node


async def test_the_nodes_of_an_operation_are_sorted_and_never_flicker(world: World) -> None:
    for name in ("w2", "w1", "w3"):
        await world.backends(name)
    await post(world, "/api/backends/install/lonely")
    before = (await get(world, "/api/operations"))["operations"][0]
    assert [one["node_name"] for one in before["nodes"]] == ["w1", "w2", "w3"]
    assert (before["isQueued"], before["phase"], before["message"]) == (True, "queued", "queued")
    assert all(set(one) == {"node_id", "node_name", "status", "percentage"} for one in before["nodes"])
    assert (await get(world, "/api/operations"))["operations"][0] == before


async def test_an_operation_of_one_node_is_named_by_its_backend_and_tells_the_node(world: World) -> None:
    """Golden: `"id": "nope", "nodeID": …` in the list, `"id": "node:<id>:mock"` in the history."""
    node = await world.backends("w1")
    await post(world, f"/api/nodes/{node.node_id}/backends/install", {"backend": "lonely"}, 202)
    (item,) = (await get(world, "/api/operations"))["operations"]
    assert (item["id"], item["fullName"], item["nodeID"]) == ("lonely", "lonely", node.node_id)
    assert "nodeName" not in item
    await work(world)
    (past,) = (await get(world, "/api/operations/history"))["operations"]
    assert (past["id"], past["nodeID"]) == (f"node:{node.node_id}:lonely", node.node_id)


async def test_operations_are_sorted_by_progress_then_by_name(world: World) -> None:
    await world.backends("w1")
    for name in ("lonely", "cpu-llama", "llama"):
        await post(world, f"/api/backends/install/{name}")
    shown = (await get(world, "/api/operations"))["operations"]
    assert [one["id"] for one in shown] == sorted(one["id"] for one in shown)


async def test_a_cancel_may_be_repeated(world: World) -> None:
    node = await world.backends("w1")
    job = (await post(world, "/api/backends/install/lonely"))["jobID"]
    for _ in range(2):
        assert await post(world, f"/api/operations/{job}/cancel") == {
            "success": True,
            "message": "Operation cancelled",
        }
    await work(world)
    assert node.disk == {}
    shown = await get(world, f"/api/backends/job/{job}")
    assert (shown["processed"], shown["message"], "error" in shown) == (True, "cancelled", False)
    (past,) = (await get(world, "/api/operations/history"))["operations"]
    assert past["outcome"] == "cancelled"
    assert len(await world.events(EventKind.OPERATION_CANCELLED)) == 1


async def test_the_history_is_read_page_by_page_and_begins_with_what_ended_last(world: World) -> None:
    await world.backends("w1")
    for name in ("lonely", "cpu-llama", "llama"):
        await post(world, f"/api/backends/install/{name}")
        await work(world)
        await world.clock.advance(timedelta(seconds=1))
    first = await get(world, "/api/operations/history?limit=2")
    assert [one["name"] for one in first["operations"]] == ["llama", "cpu-llama"]
    rest = await get(world, f"/api/operations/history?limit=2&cursor={first['corral']['next_cursor']}")
    assert [one["name"] for one in rest["operations"]] == ["lonely"]
    assert "corral" not in rest
    assert set(first["operations"][0]) == {
        "id",
        "name",
        "jobID",
        "isBackend",
        "taskType",
        "outcome",
        "startedAt",
        "finishedAt",
    }
    assert "limit" in (await get(world, "/api/operations/history?limit=51", 400))["error"]
    assert "cursor" in (await get(world, "/api/operations/history?cursor=x", 400))["error"]


async def test_clearing_the_history_leaves_what_goes_on(world: World) -> None:
    node = await world.backends("w1")
    await post(world, "/api/backends/install/lonely")
    await work(world)
    node.faults.refusal = "no"
    failed = (await post(world, "/api/backends/install/cpu-llama"))["jobID"]
    await work(world)
    await post(world, "/api/backends/delete/other")
    answer = await world.frontend.call("DELETE", "/api/operations/history")
    assert (answer.status, answer.json()) == (200, {"success": True})
    assert [one["jobID"] for one in (await get(world, "/api/operations/history"))["operations"]] == [failed]
    assert len((await get(world, "/api/operations"))["operations"]) == 2
    (event,) = await world.events(EventKind.OPERATIONS_CLEARED)
    assert event.actor == "admin"


async def test_a_dismissed_failure_is_history_and_stays_wanted(world: World) -> None:
    node = await world.backends("w1")
    node.faults.refusal = "no"
    job = (await post(world, "/api/backends/install/lonely"))["jobID"]
    await work(world)
    for _ in range(2):
        assert (await post(world, f"/api/operations/{job}/dismiss"))["success"] is True
    assert await get(world, "/api/operations") == {"operations": []}
    (past,) = (await get(world, "/api/operations/history"))["operations"]
    assert (past["outcome"], past["error"]) == ("failed", "w1: no")
    node.faults.refusal = ""
    await world.clock.advance(timedelta(minutes=1))
    await work(world)
    assert "lonely" in node.disk
    assert (await get(world, "/api/operations/history"))["operations"][0]["outcome"] == "completed"
