"""Frontends of LocalAI and of Corral on one bus: what ours tell, and what they make of what they hear."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from corral.base.ids import OperationId
from corral.bus.port import Message
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation, OperationState
from corral.frontend.record.decide import EventKind
from corral.galleries.build_uris import BackendRef
from corral.processes.control import Control
from tests.kit.waiting import eventually
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

NEVER = timedelta(days=1)
JOB = "fa3763ad-e12b-11f1-ad65-020000000001"
STATUS = {
    "deletion": False,
    "file_name": "",
    "processed": False,
    "message": "queued",
    "progress": 0,
    "file_size": "",
    "downloaded_size": "",
    "gallery_element_name": "g@mock",
    "cancelled": False,
    "cancellable": True,
}
"""What LocalAI's frontends always say of an operation."""
ROW = {"node_id": "n1", "node_name": "w1", "status": "downloading", "percentage": 12.5, "phase": "downloading"}


class Tap:
    """All broadcasts, apart from what Corral adds."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    async def on_message(self, message: Message) -> None:
        told = msgspec.json.decode(message.data)
        assert told.pop("corral")["frontend"]
        self.heard.append((message.subject, told))

    def of(self, subject: str) -> list[dict[str, Any]]:
        return [told for heard, told in self.heard if heard == subject]


@pytest.fixture
async def tap(world: World) -> Tap:
    tap = Tap()
    for subject in ("gallery.>", "cache.>"):
        world.stack.push_async_callback((await world.bus.subscribe(subject, tap.on_message)).close)
    return tap


async def listening(world: World, control: Control) -> Control:
    """With the subscriptions that it has when it runs."""
    for subject, handler in control.context.operations.subscriptions().items():
        world.stack.push_async_callback((await world.bus.subscribe(subject, handler)).close)
    return control


async def start(world: World, verb: Verb = Verb.INSTALL) -> Operation:
    return await world.control.context.backends.operations.start(
        Ask(verb=verb, ref=BackendRef(backend="echo"), by="me")
    )


async def say(world: World, subject: str, payload: object) -> None:
    await world.bus.publish(subject, msgspec.json.encode(payload))


async def until(condition: Any, what: str) -> Any:
    async def reached() -> Any:
        return condition()

    return await eventually(reached, what)


async def test_the_removal_of_a_model_is_not_told_as_one_of_a_backend(world: World, tap: Tap) -> None:
    await world.worker("w1")
    operation = await world.control.context.models.removal.remove("small", by="me")
    await world.control.context.operations.dispatcher.tick()
    await world.control.context.operations.broadcasts.tell()
    await until(lambda: tap.of("gallery.opcache.end"), "the end")
    assert tap.of("gallery.opcache.start") == [{"job_id": operation.id, "cache_key": "small", "is_backend": False}]
    queued, *_, done = tap.of(f"gallery.{operation.id}.progress")
    assert (queued["status"]["phase"], queued["status"]["deletion"]) == ("queued", True)
    assert (done["status"]["processed"], done["status"]["deletion"]) == (True, True)
    assert tap.of("cache.invalidate.models") == [{"element": "small", "op": "delete"}]
    assert not tap.of("cache.invalidate.backends")


async def test_an_install_is_told_as_localais_frontends_tell_theirs(world: World, tap: Tap) -> None:
    node = await world.backends("w1", is_corral=False)
    node.gate.clear()
    operation = await start(world)
    progress = f"gallery.{operation.id}.progress"
    async with asyncio.TaskGroup() as group:
        group.create_task(world.control.context.operations.dispatcher.tick())
        await node.begun.wait()
        await node.say(operation.id, 12.5)
        await until(lambda: world.control.context.operations.progress.of(operation.id), "progress")
        await world.control.context.operations.broadcasts.tell()
        node.gate.set()
    await world.control.context.operations.broadcasts.tell()
    await world.control.context.operations.broadcasts.tell()
    await until(lambda: tap.of("gallery.opcache.end"), "the end")
    assert tap.of("gallery.opcache.start") == [{"job_id": operation.id, "cache_key": "echo", "is_backend": True}]
    queued, moving, done = tap.of(progress)
    about = {"job_id": operation.id}
    assert queued == about | {"status": STATUS | {"phase": "queued", "gallery_element_name": "echo"}}
    row = ROW | {"node_id": node.node_id}
    assert moving["status"] == STATUS | {
        "message": "downloading",
        "progress": 12.5,
        "gallery_element_name": "",
        "nodes": [row],
    }
    assert done["status"] == STATUS | {
        "processed": True,
        "message": "completed",
        "progress": 100,
        "gallery_element_name": "echo",
        "cancellable": False,
        "nodes": [{"node_id": node.node_id, "node_name": "w1", "status": "success", "percentage": 0}],
    }
    assert tap.of("cache.invalidate.backends") == [{"element": "echo", "op": "install"}]
    assert tap.of("gallery.opcache.end") == [{"job_id": operation.id, "cache_key": "", "is_backend": False}]


async def test_an_operation_of_a_localai_frontend_is_listed_until_it_is_over(world: World) -> None:
    await listening(world, world.control)
    peers = world.control.context.operations.peers
    await say(world, "gallery.opcache.start", {"job_id": JOB, "cache_key": "g@mock", "is_backend": True})
    await until(peers.listed, "the operation")
    (item,) = await listed(world)
    assert (item["id"], item["name"], item["jobID"], item["isQueued"], item["taskType"]) == (
        "g@mock",
        "mock",
        JOB,
        True,
        "Waiting",
    )
    moving = STATUS | {"message": "processing file: x", "progress": 12.5, "nodes": [ROW]}
    await say(world, f"gallery.{JOB}.progress", {"job_id": JOB, "status": moving})
    await until(lambda: status_of(world)["progress"] == 12.5, "its progress")
    await say(world, f"gallery.{JOB}.progress", {"job_id": JOB, "status": STATUS | {"message": "on it"}})
    await until(lambda: status_of(world)["message"] == "on it", "more progress")
    (item,) = await listed(world)
    assert (item["taskType"], item["isBackend"], item["nodes"]) == ("Installation", True, [ROW])  # nodes never flicker
    job = msgspec.json.decode((await world.frontend.call("GET", f"/api/backends/job/{JOB}")).body)
    assert (job["message"], job["processed"], job["queued"]) == ("on it", False, False)
    failed = STATUS | {"processed": True, "error": "w1: disk full", "message": "error: w1: disk full"}
    await say(world, f"gallery.{JOB}.progress", {"job_id": JOB, "status": failed})
    await until(lambda: status_of(world)["processed"], "the end")
    assert [one["error"] for one in await listed(world)] == ["w1: disk full"]
    await say(world, "gallery.opcache.end", {"job_id": JOB, "cache_key": "", "is_backend": False})
    await until(lambda: not peers.listed(), "it to be dismissed")
    assert await listed(world) == []


async def test_files_that_a_localai_frontend_stages_are_listed_until_they_are_there(world: World) -> None:
    await listening(world, world.control)
    peers = world.control.context.operations.peers
    told = {
        "model_id": "a.b",
        "node_name": "w2",
        "file_name": "m.bin",
        "bytes_sent": 32768,
        "total_bytes": 3000000,
        "progress": 1.09,
        "speed": "6.1 MB/s",
        "file_index": 1,
        "total_files": 1,
        "message": "m.bin (32.0 KB / 2.9 MB, 6.1 MB/s)",
        "started_at": "2026-11-15T19:37:40.833997673Z",
    }
    await say(world, "staging.a-b.progress", {"model_id": "a.b", "status": told, "done": False})
    await until(peers.staged, "the staging")
    (item,) = await listed(world)
    assert (item["id"], item["name"], item["taskType"], item["nodeName"]) == ("staging:a.b", "a.b", "staging", "w2")
    assert (item["progress"], item["isBackend"], item["cancellable"]) == (1, False, False)
    await say(world, "staging.a-b.progress", {"model_id": "a.b", "done": True})
    await until(lambda: not peers.staged(), "its end")
    await say(world, "staging.c.progress", {"model_id": "c", "status": told, "done": False})
    await until(peers.staged, "another staging")
    await world.clock.advance(timedelta(seconds=61))
    assert await listed(world) == []


async def listed(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode((await world.frontend.call("GET", "/api/operations")).body)[
        "operations"
    ]
    return found


def status_of(world: World) -> dict[str, Any]:
    known = world.control.context.operations.peers.find(JOB)
    return {} if known is None else msgspec.to_builtins(known.status) or {"progress": -1, "message": ""}


async def test_what_is_broken_off_without_a_word_is_not_shown_for_ever(world: World) -> None:
    await listening(world, world.control)
    peers = world.control.context.operations.peers
    await say(world, "gallery.opcache.start", {"job_id": JOB, "cache_key": "mock", "is_backend": True})
    await until(peers.listed, "the operation")
    await world.clock.advance(timedelta(minutes=31))
    assert peers.listed() == []


async def test_ours_are_taken_back_when_a_localai_frontend_says_so_and_only_once(world: World, tap: Tap) -> None:
    node = await world.backends("w1")
    other = await listening(world, await world.again())
    await listening(world, world.control)
    operation = await start(world)
    await say(world, f"gallery.{operation.id}.cancel", {"id": operation.id, "corral": {"frontend": "one of ours"}})
    await say(world, f"gallery.{operation.id}.cancel", {"id": operation.id, "corral": {"frontend": "one of ours"}})
    assert (await other.context.operations.service.get(operation.id)).state is OperationState.RUNNING
    tap.heard.clear()
    for bus_message in ({"id": operation.id}, {"id": operation.id, "pause": True}):
        payload = msgspec.json.encode(bus_message)
        for control in (world.control, other):
            handler = control.context.operations.peers.handlers()["gallery.*.cancel"]
            await handler(Message(subject="gallery.x.cancel", data=payload, reply=_nowhere))
    assert (await other.context.operations.service.get(operation.id)).state is OperationState.CANCELLED
    assert len(await world.events(EventKind.OPERATION_CANCELLED)) == 1
    assert [subject for subject, _ in tap.heard] == []  # what is heard is never told again
    assert node.requests == []


async def _nowhere(_: str, __: bytes) -> None:
    raise AssertionError("nobody asked")


async def test_a_cancel_of_ours_and_of_theirs_is_told(world: World, tap: Tap) -> None:
    await world.backends("w1")
    operation = await start(world)
    await world.control.context.operations.service.cancel(operation.id, by="me")
    await world.frontend.call("POST", f"/api/operations/{JOB}/cancel")
    await until(lambda: tap.of(f"gallery.{JOB}.cancel"), "both")
    assert tap.of(f"gallery.{operation.id}.cancel") == [{"id": operation.id}]
    assert tap.of(f"gallery.{JOB}.cancel") == [{"id": JOB}]


async def test_a_frontend_that_does_not_listen_knows_the_progress_from_another_one(world: World) -> None:
    node = await world.backends("w1", is_corral=False)
    node.gate.clear()
    other = (await listening(world, await world.again())).context.operations.progress
    operation = await start(world)
    async with asyncio.TaskGroup() as group:
        group.create_task(world.control.context.operations.dispatcher.tick())
        await node.begun.wait()
        await node.say(operation.id, 60)
        await until(lambda: world.control.context.operations.progress.of(operation.id), "progress")
        await world.control.context.operations.broadcasts.tell()
        known = await until(lambda: other.of(operation.id), "the other frontend to know")
        assert known[node.node_id].percentage == 60
        node.gate.set()


async def test_what_nobody_understands_is_ignored(world: World) -> None:
    context = world.control.context
    for handler in context.operations.peers.handlers().values():
        for nonsense in (b"", b"[]", b"null", b'{"job_id": 7, "id": 7, "element": 7}', b'{"status": null}'):
            await handler(Message(subject="gallery.x.progress", data=nonsense, reply=_nowhere))
    assert world.control.context.operations.peers.listed() == []
    assert world.control.context.operations.progress.of(OperationId("")) == {}


async def test_what_a_localai_frontend_changed_is_looked_at_anew(world: World) -> None:
    context = (await listening(world, world.control)).context
    await context.backends.upgrades.look()
    looked_at = world.clock.now()
    await world.clock.advance(timedelta(seconds=5))
    await context.backends.upgrades.tick()  # hours too early
    assert (await context.backends.upgrades.findings()).check.at == looked_at  # type: ignore[union-attr]
    async with asyncio.timeout(60):
        await say(world, "cache.invalidate.models", {"element": "small", "op": "install"})
        await context.models.catalogue.poke.wait(world.clock, NEVER)
        await say(world, "cache.invalidate.backends", {"element": "echo", "op": "upgrade"})
        await context.backends.inventory.poke.wait(world.clock, NEVER)
    await context.backends.upgrades.tick()
    assert (await context.backends.upgrades.findings()).check.at == world.clock.now()  # type: ignore[union-attr]


async def test_what_corrals_own_frontends_tell_of_it_is_known_from_elsewhere(world: World) -> None:
    context = (await listening(world, world.control)).context
    ours = {"element": "echo", "op": "upgrade", "corral": {"frontend": "another"}}
    theirs = {"element": "small", "op": "install"}
    await say(world, "cache.invalidate.backends", ours)
    await say(world, "cache.invalidate.models", theirs)
    async with asyncio.timeout(60):
        await context.models.catalogue.poke.wait(world.clock, NEVER)
    await context.backends.upgrades.look()
    looked_at = world.clock.now()
    await world.clock.advance(timedelta(seconds=5))
    await context.backends.upgrades.tick()
    assert (await context.backends.upgrades.findings()).check.at == looked_at  # type: ignore[union-attr]
