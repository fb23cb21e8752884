"""Stagings as operations, on real file servers: files reach many nodes from few sources, survive all faults, and make
room for each other."""

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.ids import NodeId
from corral.bus.port import Bus, Message
from corral.frontend.operations.decide.operation import Operation, OperationState, TargetStatus
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.staging.decide.sources import SourceKind, StagingPolicy
from corral.frontend.serving.staging.decide.staged import ON_NODE, ON_NODE_BEFORE
from corral.frontend.serving.staging.operations import StagingAsk
from corral.frontend.store.db import Database
from corral.wire import subjects
from corral.wire.models import ModelCommandReply, ModelDeleteRequest
from corral.wire.registration import FEATURES, Feature
from corral.worker.models import ModelFiles
from tests.kit.clock import ManualClock
from tests.kit.file_worker import FileWorker, open_file_worker
from tests.kit.relay import Relay
from tests.kit.waiting import eventually, within_timeout
from tests.kit.world import SECRET, World, open_world

SIZE = 3 * 1024 * 1024
CONTENT = random.Random(5).randbytes(SIZE)


@dataclass(frozen=True, slots=True)
class FileNode:
    id: NodeId
    name: str
    worker: FileWorker
    relay: Relay | None

    def has(self, path: str) -> bool:
        return (self.worker.models / path).is_file()


class StagingFleet:
    """Nodes with file servers, and a frontend that lets them fetch everything from each other."""

    def __init__(self, world: World, root: Path, stack: AsyncExitStack) -> None:
        self.world = world
        self._root = root
        self._stack = stack

    async def node(
        self,
        name: str,
        *,
        fetches: bool = True,
        disk: tuple[int, int] | None = None,
        is_relayed: bool = False,
        shares: bool = False,
    ) -> FileNode:
        """`disk` is its size and what is free there; `shares`: it has the models directory of the frontend."""
        features = [feature for feature in FEATURES if fetches or feature != Feature.FILE_FETCHES]
        worker = await self._stack.enter_async_context(
            open_file_worker(
                self.world.models.parent if shares else self._root / name, secret=SECRET + name, clock=self.world.clock
            )
        )
        relay = await self._stack.enter_async_context(Relay(worker.port)) if is_relayed else None
        port = worker.port if relay is None else relay.port
        fake = await self.world.node(name, features=features, http_address=f"127.0.0.1:{port}", disk=disk)
        worker.node_id = fake.id
        files = ModelFiles(worker.models)

        async def delete(message: Message) -> None:
            await files.delete(msgspec.json.decode(message.data, type=ModelDeleteRequest).model_name)
            await message.respond(msgspec.json.encode(ModelCommandReply(success=True)))

        subscription = await self.world.bus.subscribe(subjects.model_delete(fake.id), delete)
        self._stack.push_async_callback(subscription.close)
        return FileNode(fake.id, name, worker, relay)

    async def fill(self, node: FileNode, free: int) -> None:
        """So much is free on its disk from now on."""
        address = f"127.0.0.1:{node.worker.port}"
        await self.world.register(node.name, FEATURES, "127.0.0.1:50051", address, (100 * SIZE, free))

    async def model(self, name: str, content: bytes) -> None:
        (self.world.models / f"{name}.gguf").write_bytes(content)
        text = f"name: {name}\nbackend: echo\nparameters:\n  model: {name}.gguf\n"
        await self.world.write(text, f"{name}.yaml")

    async def start(self, model: str, /, *nodes: FileNode, **changes: object) -> Operation:
        ask = StagingAsk(model=model, nodes=tuple(node.id for node in nodes), by="ada")
        return await self.world.control.context.serving.stagings.start(replace(ask, **changes))  # type: ignore[arg-type]

    async def tick(self) -> None:
        await within_timeout(self.world.control.context.operations.dispatcher.tick(), lambda: "the end of stagings")

    async def get(self, operation: Operation) -> Operation:
        return await self.world.control.context.operations.service.get(operation.id)

    async def stage(self, model: str, *nodes: FileNode) -> Operation:
        operation = await self.start(model, *nodes)
        await self.tick()
        return await self.get(operation)


def rungs(operation: Operation) -> set[object]:
    return {None if target.reason is None else target.reason.fields.get("rung") for target in operation.targets}


@pytest.fixture
async def fleet(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[StagingFleet]:
    policy = dataclasses.replace(
        StagingPolicy(), order=(SourceKind.PEERS,), least_bytes=1024 * 1024, reserve_bytes=1024
    )
    async with open_world(database, clock, bus, tmp_path, staging=policy) as world, AsyncExitStack() as stack:
        yield StagingFleet(world, tmp_path / "nodes", stack)


async def test_files_are_brought_once_and_proven(fleet: StagingFleet) -> None:
    await fleet.model("big", CONTENT)
    node = await fleet.node("w1")

    operation = await fleet.stage("big", node)

    assert (operation.state, rungs(operation)) == (OperationState.DONE, {ON_NODE})
    assert (node.worker.models / "big/big.gguf").read_bytes() == CONTENT
    assert fleet.world.loader.loads == []

    again = await fleet.stage("big", node)
    assert (again.state, rungs(again)) == (OperationState.DONE, {ON_NODE_BEFORE})


async def test_many_nodes_get_a_file_from_few_sources(fleet: StagingFleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="corral.worker.files.peers")
    await fleet.model("big", CONTENT)
    await fleet.stage("big", await fleet.node("first"))
    nodes = [await fleet.node(f"w{number}") for number in range(6)]

    operation = await fleet.stage("big", *nodes)

    assert operation.state is OperationState.DONE
    assert all(node.has("big/big.gguf") for node in nodes)
    served = [record for record in caplog.records if getattr(record, "event", "") == "files.served"]
    assert len(served) >= 2, "the first node serves two at a time"
    assert {getattr(record, "key", "") for record in served} == {"models/big/big.gguf"}


async def test_a_peer_that_is_broken_costs_a_detour(fleet: StagingFleet) -> None:
    await fleet.model("big", CONTENT)
    first = await fleet.node("w0")
    await fleet.stage("big", first)
    (first.worker.models / "big/big.gguf").write_bytes(bytes(SIZE))  # it lies, and does not know it
    others = [await fleet.node(f"w{number}") for number in (1, 2, 3)]

    operation = await fleet.stage("big", *others)

    assert operation.state is OperationState.DONE
    assert all((node.worker.models / "big/big.gguf").read_bytes() == CONTENT for node in others)


async def test_nodes_that_cannot_fetch_are_sent_everything(fleet: StagingFleet) -> None:
    await fleet.model("big", CONTENT)
    nodes = [await fleet.node(f"w{number}", fetches=False) for number in range(4)]

    assert (await fleet.stage("big", *nodes)).state is OperationState.DONE
    assert all(node.has("big/big.gguf") for node in nodes)


async def test_a_cancelled_staging_ends_and_what_came_stays(fleet: StagingFleet) -> None:
    await fleet.model("big", bytes(32 * 1024 * 1024))
    node = await fleet.node("w1", is_relayed=True)
    assert node.relay is not None
    node.relay.freeze()
    operation = await fleet.start("big", node)
    work = asyncio.create_task(fleet.tick())

    async def is_sent() -> bool:
        return (await fleet.get(operation)).targets[0].status is TargetStatus.DOWNLOADING

    await eventually(is_sent, "the request to be open")
    await fleet.world.control.context.operations.service.cancel(operation.id, by="ada")
    await within_timeout(work, lambda: "the end of the work")

    cancelled = await fleet.get(operation)
    assert cancelled.state is OperationState.CANCELLED
    node.relay.thaw()
    assert (await fleet.stage("big", node)).state is OperationState.DONE


async def test_a_node_that_is_away_gets_them_later(fleet: StagingFleet) -> None:
    await fleet.model("big", CONTENT)
    node = await fleet.node("w1", is_relayed=True)
    assert node.relay is not None
    await node.relay.cut()
    operation = await fleet.start("big", node)
    await node.relay.mend()
    await fleet.tick()

    assert (await fleet.get(operation)).state is OperationState.DONE


async def test_a_model_without_files_here_is_told(fleet: StagingFleet) -> None:
    await fleet.world.write("name: lost\nbackend: echo\nparameters:\n  model: lost.gguf\n", "lost.yaml")
    node = await fleet.node("w1")

    operation = await fleet.stage("lost", node)

    assert operation.state is OperationState.FAILED
    assert "has no files of lost" in sentence(operation.targets[0].reason)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": "nobody"}, NotFound),
        ({}, InvalidInput),
        ({"nodes": (NodeId("x"),)}, NotFound),
        ({"nodes": (NodeId("x"),), "is_everywhere": True}, InvalidInput),
        ({"labels": {"zone": "nowhere"}}, Conflict),
    ],
)
async def test_what_cannot_be_staged_is_refused(
    fleet: StagingFleet, changes: dict[str, object], error: type[Exception]
) -> None:
    await fleet.model("big", CONTENT)
    await fleet.node("w1")

    with pytest.raises(error):
        await fleet.start("big", **changes)


async def test_the_same_key_starts_one_operation(fleet: StagingFleet) -> None:
    await fleet.model("big", CONTENT)
    node = await fleet.node("w1")

    first = await fleet.start("big", node, idempotency_key="k")

    assert (await fleet.start("big", node, idempotency_key="k")).id == first.id
    await fleet.tick()


# Room.


async def files_of(fleet: StagingFleet, node: FileNode) -> dict[str, str]:
    staged = await fleet.world.control.context.serving.staged.of_node(node.id)
    return {model.model: needed for model, needed in staged}


async def test_the_longest_unused_files_make_room(fleet: StagingFleet) -> None:
    node = await fleet.node("w1", disk=(100 * SIZE, 2 * SIZE + SIZE // 2))
    for name in ("a", "b", "c"):
        await fleet.model(name, name.encode() * SIZE)
    await fleet.stage("a", node)
    await fleet.world.clock.advance(timedelta(minutes=1))
    await fleet.stage("b", node)
    await fleet.world.clock.advance(timedelta(minutes=1))
    assert list(await files_of(fleet, node)) == ["a", "b"]
    await fleet.fill(node, SIZE // 2)

    assert (await fleet.stage("c", node)).state is OperationState.DONE

    assert list(await files_of(fleet, node)) == ["b", "c"]
    assert not (node.worker.models / "a").exists()
    assert node.has("b/b.gguf")
    (event,) = await fleet.world.events(EventKind.MODEL_FILES_DELETED)
    assert (event.node_id, event.data) == (node.id, {"model": "a", "bytes": SIZE})


async def test_files_that_nobody_brought_are_never_deleted(fleet: StagingFleet) -> None:
    node = await fleet.node("w1", disk=(100 * SIZE, 50 * SIZE))
    for name in ("a", "c"):
        await fleet.model(name, name.encode() * SIZE)
    await fleet.stage("a", node)
    (node.worker.models / "a/notes.txt").write_text("mine")
    (node.worker.models / "hand.gguf").write_bytes(b"mine")
    await fleet.fill(node, SIZE // 2)

    operation = await fleet.stage("c", node)

    assert operation.state is OperationState.FAILED
    reason = sentence(operation.targets[0].reason)
    assert "a stays: its directory there has files that no frontend has brought, such as notes.txt" in reason
    assert "node_min_free" in reason
    assert node.has("a/a.gguf")
    assert node.has("hand.gguf")


async def test_what_a_replica_uses_stays(fleet: StagingFleet) -> None:
    node = await fleet.node("w1", disk=(100 * SIZE, 50 * SIZE))
    await fleet.model("c", b"c" * SIZE)
    (fleet.world.models / "small.gguf").write_bytes(b"s" * SIZE)
    await fleet.world.loaded("small")
    assert await files_of(fleet, node) == {"small": "a replica of it is there"}
    await fleet.fill(node, SIZE // 2)

    operation = await fleet.stage("c", node)

    assert operation.state is OperationState.FAILED
    assert "small stays: a replica of it is there" in sentence(operation.targets[0].reason)
    assert node.has("small/small.gguf")


async def test_what_a_rule_on_an_alias_wants_stays(fleet: StagingFleet) -> None:
    node = await fleet.node("w1", disk=(100 * SIZE, 50 * SIZE))
    await fleet.model("big", CONTENT)
    await fleet.world.write("name: nickname\nalias: big\n", "nickname.yaml")
    await fleet.stage("big", node)
    put = await fleet.world.frontend.call("PUT", "/api/v1/scheduling/nickname", {"min_replicas": 1})
    assert put.status == 200, put.body

    assert await files_of(fleet, node) == {"big": "a rule wants it to be loaded"}


async def test_a_replica_that_ended_counts_as_a_use(fleet: StagingFleet) -> None:
    node = await fleet.node("w1")
    for name in ("a", "b"):
        await fleet.model(name, name.encode() * SIZE)
    replica = await fleet.world.loaded("a")
    await fleet.world.clock.advance(timedelta(minutes=1))
    await fleet.stage("b", node)
    assert list(await files_of(fleet, node)) == ["a", "b"]
    await fleet.world.clock.advance(timedelta(minutes=1))

    await fleet.world.control.context.serving.health.lose([replica], "its process ended")

    assert list(await files_of(fleet, node)) == ["b", "a"]


async def test_a_full_disk_does_not_matter_to_a_model_whose_files_are_there(fleet: StagingFleet) -> None:
    node = await fleet.node("w1", disk=(100 * SIZE, 50 * SIZE))
    for name in ("a", "b"):
        await fleet.model(name, name.encode() * SIZE)
        await fleet.stage(name, node)
    await fleet.fill(node, SIZE // 2)

    snapshot = await fleet.world.control.context.serving.snapshots.take()
    (candidate,) = snapshot.candidates(snapshot.models["a"])
    assert (candidate.has_files, candidate.reclaimable) == (True, SIZE)
    (candidate,) = snapshot.candidates(snapshot.models["small"])
    assert (candidate.has_files, candidate.reclaimable) == (False, 2 * SIZE)

    assert (await fleet.world.loaded("a")).node_id == node.id


async def test_files_that_are_not_recorded_one_by_one_make_no_room(
    fleet: StagingFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.frontend.serving.staging.staged_files.MOST_RECORDED", 0)
    node = await fleet.node("w1", disk=(100 * SIZE, 50 * SIZE))
    await fleet.model("big", CONTENT)
    await fleet.stage("big", node)

    snapshot = await fleet.world.control.context.serving.snapshots.take()
    (candidate,) = snapshot.candidates(snapshot.models["small"])
    assert candidate.reclaimable == 0
    assert snapshot.candidates(snapshot.models["big"])[0].has_files


async def test_copies_made_by_hand_count_as_there_and_are_never_deleted(fleet: StagingFleet) -> None:
    node = await fleet.node("w1", disk=(100 * SIZE, 50 * SIZE))
    for name in ("hand", "big"):
        await fleet.model(name, name.encode() * SIZE)
    (node.worker.models / "hand.gguf").write_bytes(b"hand" * SIZE)
    await fleet.stage("hand", node)
    await fleet.fill(node, SIZE // 2)
    assert await files_of(fleet, node) == {}

    snapshot = await fleet.world.control.context.serving.snapshots.take()
    (candidate,) = snapshot.candidates(snapshot.models["hand"])
    assert (candidate.has_files, candidate.reclaimable) == (True, 0)
    assert (await fleet.stage("big", node)).state is OperationState.FAILED
    assert node.has("hand.gguf")
    assert await fleet.world.events(EventKind.MODEL_FILES_DELETED) == []

    (node.worker.models / "hand.gguf").unlink()
    assert (await fleet.stage("hand", node)).state is OperationState.FAILED
    snapshot = await fleet.world.control.context.serving.snapshots.take()
    assert not snapshot.candidates(snapshot.models["hand"])[0].has_files


async def test_scaling_uses_full_disks_that_have_the_models_directory(fleet: StagingFleet) -> None:
    await fleet.model("big", CONTENT)
    full = (100 * SIZE, SIZE // 2)
    shared = [await fleet.node(name, disk=full, shares=True) for name in ("w1", "w2")]
    other = await fleet.node("w3", disk=full)
    serving = fleet.world.control.context.serving
    await fleet.world.frontend.call("PUT", "/api/v1/scheduling/big", {"min_replicas": 3})
    await serving.scaling.sweep()
    await fleet.world.loads.tick()
    assert await serving.replicas.living() == []

    assert await serving.shared.sweep() is True
    await serving.scaling.sweep()
    await fleet.world.loads.tick()

    assert {replica.node_id for replica in await serving.replicas.living()} == {node.id for node in shared}
    assert not other.has("big/big.gguf")
    assert [await files_of(fleet, node) for node in shared] == [{}, {}]
    await fleet.world.control.context.nodes.registry.remove(shared[0].id, by="ada")
    await serving.shared.sweep()
    assert serving.shared.nodes == {shared[1].id}


async def test_a_load_that_is_refused_for_full_disks_asks_who_has_the_models_directory(fleet: StagingFleet) -> None:
    await fleet.model("big", CONTENT)
    await fleet.node("w1", disk=(100 * SIZE, SIZE // 2))
    shared = await fleet.node("w2", disk=(100 * SIZE, SIZE // 2), shares=True)

    assert (await fleet.world.loaded("big")).node_id == shared.id


async def test_a_node_that_is_gone_shares_nothing(fleet: StagingFleet) -> None:
    node = await fleet.node("w1", shares=True)
    shared = fleet.world.control.context.serving.shared
    await fleet.world.control.context.nodes.registry.remove(node.id, by="ada")

    await shared.look([node.id])

    assert shared.nodes == frozenset()


async def test_a_node_that_is_removed_takes_its_record_along(fleet: StagingFleet) -> None:
    await fleet.model("big", CONTENT)
    node = await fleet.node("w1")
    await fleet.stage("big", node)

    await fleet.world.control.context.nodes.registry.remove(node.id, by="ada")

    assert await files_of(fleet, node) == {}


# The routes.


async def test_the_routes_start_a_staging_and_show_its_files(fleet: StagingFleet) -> None:
    await fleet.model("big", CONTENT)
    node = await fleet.node("w1", disk=(100 * SIZE, 50 * SIZE))
    call = fleet.world.frontend.call

    started = await call("POST", "/api/v1/model-stagings", {"model": "big", "nodes": [node.id]})

    assert started.status == 202
    view = msgspec.json.decode(started.body)
    assert (view["verb"], view["backend"]) == ("stage", "big")
    assert view["targets"][0]["backend"] == "models/big"
    await fleet.tick()
    files = msgspec.json.decode((await call("GET", f"/api/v1/nodes/{node.id}/files")).body)
    assert (files["node"], files["bytes"], files["total_disk"]) == ("w1", SIZE, 100 * SIZE)
    (item,) = files["items"]
    assert (item["model"], item["bytes"], item["files"], item["needed"]) == ("big", SIZE, 1, "")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "big"}, 400),
        ({"model": "big", "all": True, "selector": {"a": "b"}}, 400),
        ({"nodes": ["x"]}, 400),
        ({"model": 1, "all": True}, 400),
        ({"model": "nobody", "all": True}, 404),
        ({"model": "big", "nodes": ["x"]}, 404),
        ({"model": "big", "selector": {"zone": "nowhere"}}, 409),
        ({"model": "big", "all": True}, 409),
    ],
)
async def test_a_request_that_cannot_be_done_is_refused(
    fleet: StagingFleet, body: dict[str, object], status: int
) -> None:
    await fleet.model("big", CONTENT)

    assert (await fleet.world.frontend.call("POST", "/api/v1/model-stagings", body)).status == status
    assert (await fleet.world.frontend.call("GET", "/api/v1/nodes/nobody/files")).status == 404
