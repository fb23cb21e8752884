"""Backends, models and operations as LocalAI's own frontend answers for them: every recorded exchange, on a fleet that
is as the recorded one was.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.ids import OperationId
from corral.base.tasks import running
from corral.bus.port import Bus
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.store.db import Database
from corral.galleries.gallery import GalleryEntry, GallerySource
from corral.wire import go_json, subjects
from corral.wire.backends import InstalledBackend, InstallProgress
from tests.kit.asgi import AsgiAnswer
from tests.kit.clock import ManualClock
from tests.kit.galleries import StaticCatalogue
from tests.kit.golden import GoldenMessage, differences_between, read_recording
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.waiting import eventually
from tests.kit.world import MODEL, World, open_world

TIME = re.compile(r'"\d{4}-\d\d-\d\dT[0-9:.]+Z"')
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

DELIBERATE: dict[str, str] = {
    "one node lacks the backend": "what is absent already is deleted; LocalAI fails for it",
    "dead worker: no responders": "the node is waited for and shown as absent; LocalAI forgets it with an error",
    "cancelled operation by job id": "a cancelled operation says so; LocalAI's says that its nodes failed",
    "upgrade when the only holder did not answer the listing": "the last word of a node that is away counts, and its "
    "upgrade waits for it; LocalAI fails at once",
    "409 but two JSON documents in one body, and the install runs": "it is refused, in one document",
    "after kill -9 of the frontend during a fan-out and a restart": "what is under way on each node is shown for "
    "deletes too",
}
"""Every answer that differs from LocalAI's on purpose, and why. There are no others."""

ELSEWHERE: dict[str, str] = {
    "tag moved, version unchanged: nothing reported": "Corral does report it, as the tests of upgrades show",
    "log names": "the worker's own answer is passed on, as the tests of logs show",
    "log proxy to a dead worker": "the same tests: the words of LocalAI's HTTP client are not ours",
}


SHELF = StaticCatalogue(
    GallerySource(name="g", url="http://127.0.0.1:8099/index.yaml"),
    *(GalleryEntry(name=name, gallery="g", uri=f"oci://r/{name}") for name in ("mock", "custom")),
)
"""The recorded gallery."""


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path, lookups=Lookups(galleries=SHELF)) as world:
        yield world


class Stage:
    """A fleet that is made to stand as the recorded one did, and which of our ids stands for which recorded one."""

    def __init__(self, world: World, recorded: GoldenMessage) -> None:
        self.world = world
        self.message = recorded.message
        self.ours: dict[str, str] = {}
        self.waits = False
        """Whether the answer comes only when work was done."""

    async def node(self, name: str, recorded_id: str = "") -> SimulatedBackends:
        node = await self.world.backends(name, is_corral=False)
        if recorded_id:
            self.ours[recorded_id] = node.node_id
        return node

    async def post(self, path: str, sent: object = None) -> Any:
        return (await self.world.frontend.call("POST", path, sent)).json()

    async def work(self) -> None:
        await self.world.control.context.operations.dispatcher.tick()

    @property
    def node_in_path(self) -> str:
        return str(UUID.search(self.message["path"])[0])  # type: ignore[index]

    async def differences(self) -> list[str]:
        message = self.message
        answer = await self._asked()
        problems = [] if answer.status == message["status"] else [f"status {answer.status}: {answer.body!r}"]
        wanted = json.loads(TIME.sub('"<time>"', self.translated(json.dumps(message["response"]))))
        got = json.loads(TIME.sub('"<time>"', answer.body.decode()))
        return problems + differences_between(_anonymous(wanted), _anonymous(got), "$")

    async def _asked(self) -> AsgiAnswer:
        message = self.message
        asking = self.world.frontend.call(message["method"], self.translated(message["path"]), message.get("request"))
        if not self.waits:
            return await asking
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(asking)
            await self.world.clock.until_sleeping(1)
            await self.work()
            await self.world.clock.advance(timedelta(seconds=1))
        return answer.result()

    def translated(self, text: str) -> str:
        for theirs, ours in self.ours.items():
            text = text.replace(theirs, ours)
        return text


def _anonymous(document: Any) -> Any:
    """Without ids of jobs and revisions, which are new each time; and without nodes' ages, which are Corral's own."""
    if isinstance(document, dict):
        found = {key: _anonymous(value) for key, value in document.items() if key != "corral"}
        return {key: "<id>" if _is_new_each_time(key, value) else value for key, value in found.items()}
    if isinstance(document, list):
        return [_anonymous(one) for one in document]
    return document


def _is_new_each_time(key: str, value: object) -> bool:
    is_url_of_job = key == "status" and isinstance(value, str) and "/models/jobs/" in value
    return is_url_of_job or key in ("jobID", "uuid", "statusUrl", "config_revision")


def installed(name: str = "mock") -> InstalledBackend:
    return InstalledBackend(
        name=name,
        gallery_url="http://127.0.0.1:8099/index.yaml",
        installed_at="2026-11-15T19:37:23Z",
        version="1.0.0",
        uri="oci://127.0.0.1:5055/mock:latest",
    )


# How the fleet stood.


async def two_nodes(stage: Stage) -> None:
    for name in ("w1", "w2"):
        await stage.node(name)


async def downloading(stage: Stage) -> None:
    (entry,) = stage.message["response"]["operations"]
    (shown,) = entry["nodes"]
    node = await stage.node("w1", shown["node_id"])
    node.gate.clear()
    job = OperationId((await stage.post("/api/backends/install/g@mock"))["jobID"])
    await stage.world.stack.enter_async_context(running(stage.work(), name="dispatcher"))
    stage.world.stack.callback(node.gate.set)
    await node.begun.wait()
    told = {name: shown[name] for name in ("file_name", "current", "total", "percentage", "phase")}
    word = InstallProgress(op_id=job, node_id=node.node_id, backend="mock", **told)
    await stage.world.bus.publish(subjects.install_progress(node.node_id, job), go_json.encode(word))

    async def heard() -> bool:
        return node.node_id in stage.world.control.context.operations.progress.of(job)

    await eventually(heard, "a word of progress")


async def failed_everywhere(stage: Stage) -> None:
    (entry,) = stage.message["response"]["operations"]
    for shown in entry["nodes"]:
        (await stage.node(shown["node_name"], shown["node_id"])).faults.refusal = shown["error"]
    await stage.post("/api/backends/install/g@mock")
    await stage.work()


async def two_with_mock(stage: Stage) -> None:
    shown = stage.message["response"][0]["nodes"] if isinstance(stage.message["response"], list) else []
    for name, recorded in zip(("w1", "w2"), [one["node_id"] for one in shown] or ["", ""], strict=True):
        (await stage.node(name, recorded)).disk["mock"] = installed()
    await stage.world.control.context.backends.inventory.sweep()


async def custom_on_one(stage: Stage) -> None:
    await stage.node("w1")
    (await stage.node("w2")).disk["custom"] = installed("custom")
    stage.waits = True


async def node_of_the_path(stage: Stage) -> SimulatedBackends:
    node = await stage.node("pyw", stage.node_in_path)
    node.disk["mock"] = installed()
    return node


async def node_that_refuses_deletes(stage: Stage) -> None:
    node = await node_of_the_path(stage)
    node.disk["custom"] = installed("custom")
    node.faults.refusal = "no"
    stage.waits = True


async def dead_node_of_the_path(stage: Stage) -> None:
    node = await node_of_the_path(stage)
    await node.stop()
    stage.waits = stage.message["path"].endswith("/delete")


async def worker_of_the_path(stage: Stage) -> None:
    stage.ours[stage.node_in_path] = (await stage.world.worker("pyw", "mock", is_corral=False)).node_id


async def model_that_is_not_loaded(stage: Stage) -> None:
    await stage.world.write(MODEL.replace("small", "mymodel"), "mymodel.yaml")


async def model_to_delete(stage: Stage) -> None:
    await stage.node("w1")
    await stage.world.write(MODEL.replace("small", "m2"), "m2.yaml")


async def loaded_model(stage: Stage) -> None:
    await model_that_is_not_loaded(stage)
    await stage.world.worker("w1", "echo")
    await stage.world.loaded("mymodel")


async def agent_of_the_path(stage: Stage) -> None:
    frontend = stage.world.frontend
    joined: Any = (await frontend.register({"name": "a", "node_type": "agent"})).json()
    stage.ours[stage.node_in_path] = joined["id"]


async def two_ended_on_one_node(stage: Stage) -> None:
    node_id = stage.message["response"]["operations"][0]["nodeID"]
    node = await stage.node("pyw", node_id)
    for verb in ("install", "upgrade"):
        await stage.post(f"/api/nodes/{node.node_id}/backends/{verb}", {"backend": "mock"})
        for _ in range(2):  # a date that tells only seconds is given time to differ
            await stage.work()
            await stage.world.clock.advance(timedelta(seconds=5))


async def failed_on_one_node(stage: Stage) -> None:
    (entry,) = stage.message["response"]["operations"]
    node = await stage.node("pyw", entry["nodeID"])
    node.faults.refusal = entry["nodes"][0]["error"]
    await stage.post(f"/api/nodes/{node.node_id}/backends/install", {"backend": "nope", "backend_galleries": "[]"})
    await stage.work()


async def dead_worker(stage: Stage) -> None:
    node = await stage.node("pyw")
    await node.stop()
    await stage.post(f"/api/nodes/{node.node_id}/backends/install", {"backend": "mock"})
    await stage.work()


async def holder_that_died(stage: Stage) -> None:
    node = await stage.node("pyw")
    node.disk["mock"] = installed()
    await stage.world.control.context.backends.inventory.sweep()
    await node.stop()
    await stage.post(f"/api/nodes/{node.node_id}/backends/upgrade", {"backend": "mock"})
    await stage.work()


async def job_of_the_path(stage: Stage) -> None:
    await stage.node("fake1")
    stage.ours[stage.node_in_path] = (await stage.post("/api/backends/install/mock"))["jobID"]


async def cancelled_job_of_the_path(stage: Stage) -> None:
    await job_of_the_path(stage)
    await stage.post(f"/api/operations/{stage.ours[stage.node_in_path]}/cancel")


async def delete_under_way(stage: Stage) -> None:
    (await stage.node("w1")).disk["mock"] = installed()
    await stage.post("/api/backends/delete/mock")


async def nothing(stage: Stage) -> None:
    """Whoever asks asks in vain."""


PREPARED: dict[str, Callable[[Stage], Awaitable[object]]] = {
    "install by gallery@name": two_nodes,
    "while downloading": downloading,
    "failed operation stays listed": failed_everywhere,
    "cluster listing": two_with_mock,
    "upgrade": two_with_mock,
    "check": nothing,
    "external": two_nodes,
    "one node lacks the backend": custom_on_one,
    "unknown job": nothing,
    "backends of a node": node_of_the_path,
    "node-scoped install": node_of_the_path,
    "node-scoped upgrade": node_of_the_path,
    "history: an upgrade is an installation": two_ended_on_one_node,
    "failed node-scoped install": failed_on_one_node,
    "delete refused by the worker: detail is lost": node_that_refuses_deletes,
    "unload": worker_of_the_path,
    "stop a model": model_that_is_not_loaded,
    "model delete": model_to_delete,
    "reload": nothing,
    "config edit, exact stop confirmed": model_that_is_not_loaded,
    "config edit, worker answered address mismatch": loaded_model,
    "no load running": model_that_is_not_loaded,
    "empty install body": node_of_the_path,
    "agent node": agent_of_the_path,
    "dead worker: no responders": dead_worker,
    "listing a dead worker": dead_node_of_the_path,
    "upgrade when the only holder did not answer the listing": holder_that_died,
    "": dead_node_of_the_path,
    "cancel": job_of_the_path,
    "cancelled operation by job id": cancelled_job_of_the_path,
    "dismiss": job_of_the_path,
    "cancel of an unknown id": nothing,
    "unknown job id reads as queued": nothing,
    "pause": job_of_the_path,
    "409 but two JSON documents in one body, and the install runs": two_nodes,
    "after kill -9 of the frontend during a fan-out and a restart": delete_under_way,
}
"""By the note of the recording."""

OURS = re.compile(
    r"(/api)?/(backends|operations|models)(/.*)?|/backend/shutdown|/api/nodes/[^/]+/(backends(/.*)?|models/.+|backend-logs)"
)
GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "http_admin.json"


def recorded_exchanges() -> list[GoldenMessage]:
    """None where the recordings are not beside the checkout; another test says so in CI."""
    if not GOLDEN.is_file():
        return []
    found = [one for one in read_recording(GOLDEN) if OURS.fullmatch(one.message["path"])]
    return [one for one in found if one.message.get("note", "") not in ELSEWHERE]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("recorded", recorded_exchanges(), ids=lambda one: f"{one.index} {one.message.get('note', '')}")
async def test_a_recorded_exchange_is_answered_alike(world: World, recorded: GoldenMessage) -> None:
    note = recorded.message.get("note", "")
    stage = Stage(world, recorded)
    await PREPARED[note](stage)
    differences = await stage.differences()
    assert bool(differences) == (note in DELIBERATE), differences


def test_every_preparation_is_used(golden: Path) -> None:
    assert {one.message.get("note", "") for one in recorded_exchanges()} == set(PREPARED)
