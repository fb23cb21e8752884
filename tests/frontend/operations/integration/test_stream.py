"""Operations watched live: at any frontend, resumed after a break, and by nobody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec
import pytest

from corral.base.ids import OperationId
from corral.frontend.app import build_app
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.watch import OperationWatch, WatchCursor
from corral.galleries.build_uris import BackendRef
from corral.processes.control import Control
from corral.wire.operation_views import OperationUpdate
from tests.kit.asgi import AsgiStream, open_stream
from tests.kit.bus import MemoryBus
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.waiting import eventually
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

SOON = timedelta(seconds=1)


async def install(world: World) -> Operation:
    return await world.control.context.backends.operations.start(
        Ask(verb=Verb.INSTALL, ref=BackendRef(backend="echo"), by="me")
    )


@asynccontextmanager
async def installing(world: World, *nodes: SimulatedBackends) -> AsyncIterator[Operation]:
    """An install that all nodes have begun with, and finish at the end of the block."""
    for node in nodes:
        node.gate.clear()
    operation = await install(world)
    async with asyncio.TaskGroup() as group:
        group.create_task(world.control.context.operations.dispatcher.tick())
        for node in nodes:
            await node.begun.wait()
        try:
            yield operation
        finally:
            for node in nodes:
                node.gate.set()


def listens(world: World, operation: Operation) -> int:
    """How many subscriptions there are to what nodes say of the operation."""
    assert isinstance(world.bus, MemoryBus)
    return sum(f".{operation.id}.progress" in one.subject for one in world.bus._server.subscriptions)


async def look(world: World, control: Control, id: OperationId, place: WatchCursor) -> list[OperationUpdate]:
    await world.clock.advance(SOON)
    await control.context.operations.progress.tend()
    return await control.context.operations.watch.one(id, place)


async def test_a_frontend_that_has_nothing_to_do_with_it_shows_the_same_progress(world: World) -> None:
    node = await world.backends("w")
    other = await world.again()
    async with installing(world, node) as operation:
        assert listens(world, operation) == 1
        await look(world, other, operation.id, WatchCursor())
        await look(world, other, operation.id, WatchCursor())
        assert listens(world, operation) == 2
        await node.say(operation.id, 40)

        async def both_know() -> bool:
            boards = [control.context.operations.progress.of(operation.id) for control in (world.control, other)]
            return [board[node.node_id].percentage for board in boards if node.node_id in board] == [40, 40]

        await eventually(both_know, "both frontends to hear of it")
        (update,) = await look(world, other, operation.id, other.context.operations.watch.here)
        assert (update.operation.progress, update.operation.targets[0].phase) == (40, "downloading")


async def test_nobody_listens_when_nobody_looks(world: World) -> None:
    node = await world.backends("w")
    other = await world.again()
    async with installing(world, node) as operation:
        await look(world, other, operation.id, WatchCursor())
        await look(world, other, operation.id, WatchCursor())
        assert listens(world, operation) == 2
        await world.clock.advance(timedelta(seconds=11))
        await other.context.operations.progress.tend()
        assert listens(world, operation) == 1
    assert listens(world, operation) == 0


async def test_what_a_reader_has_is_not_told_again_and_only_changed_targets_are(world: World) -> None:
    first, second = await world.backends("a"), await world.backends("b")
    watch = world.control.context.operations.watch
    async with installing(world, first, second) as operation:
        (whole,) = await watch.one(operation.id, WatchCursor())
        assert whole.is_whole
        assert [one.node_name for one in whole.operation.targets] == ["a", "b"]
        place = watch.here
        assert await look(world, world.control, operation.id, place) == []
        await first.say(operation.id, 10)

        async def told() -> list[OperationUpdate]:
            return await look(world, world.control, operation.id, place)

        (update,) = await eventually(told, "the change to be told")
        assert (update.is_whole, [one.node_name for one in update.operation.targets]) == (False, ["a"])
        assert await look(world, world.control, operation.id, watch.place_of(watch.name_of(watch.here))) == []


async def test_all_operations_are_told_and_their_ends_also_to_somebody_from_another_frontend(world: World) -> None:
    node = await world.backends("w")
    watch, other = world.control.context.operations.watch, (await world.again()).context.operations.watch
    async with installing(world, node) as operation:
        (begun,) = await watch.all(WatchCursor())
        assert begun.operation.state == "running"
        place, name = watch.here, watch.name_of(watch.here)
        await world.clock.advance(SOON)
        assert await watch.all(place) == []
    await world.clock.advance(SOON)
    (ended,) = await watch.all(place)
    (told_elsewhere,) = await other.all(other.place_of(name))
    assert ended.operation.id == told_elsewhere.operation.id == operation.id
    assert ended.operation.state == told_elsewhere.operation.state == "done"
    assert await other.all(WatchCursor()) == []


@pytest.mark.parametrize("name", ["", "7", "f:x:1", "f:1:²", "f:1:-3", "f:1:" + "9" * 30, ":::"])
async def test_a_place_that_makes_no_sense_is_the_beginning(world: World, name: str) -> None:
    watch: OperationWatch = world.control.context.operations.watch
    assert watch.place_of(name) == WatchCursor()


async def test_the_stream_tells_what_changes_and_ends_with_the_process(world: World) -> None:
    node = await world.backends("w")
    headers = {"authorization": f"Bearer {world.frontend.admin_key}"}
    async with installing(world, node) as operation:
        path = f"/api/v1/operations/{operation.id}/stream"
        async with open_stream(world.frontend.app, path, headers=headers) as stream:
            assert await stream.next() == b"retry: 2000"
            assert read(await stream.next()).is_whole
            await world.clock.until_sleeping(1)
            await node.say(operation.id, 25)

            async def heard() -> bool:
                return node.node_id in world.control.context.operations.progress.of(operation.id)

            await eventually(heard, "the progress to be heard")
            assert (await next_update(world, stream)).operation.progress == 25
    last_place = world.control.context.operations.watch
    async with open_stream(
        build_app(world.control.context), path, headers=headers | {"last-event-id": last_place.name_of(last_place.here)}
    ) as stream:
        await stream.next()
        assert (await next_update(world, stream)).operation.state == "done"
        world.control.context.stopping.set()
        world.control.context.operations.progress.ring()


async def next_update(world: World, stream: AsgiStream) -> OperationUpdate:
    """Time passes until there is one."""

    async def step() -> bool:
        await world.clock.advance(timedelta(milliseconds=500))
        return not stream.is_quiet

    await eventually(step, "an event")
    return read(await stream.next())


def read(event: bytes) -> OperationUpdate:
    lines = dict(line.split(b": ", 1) for line in event.splitlines())
    assert lines[b"event"] == b"operation"
    assert lines[b"id"]
    return msgspec.json.decode(lines[b"data"], type=OperationUpdate)


async def test_an_operation_that_does_not_exist_has_no_stream(world: World) -> None:
    assert (await world.frontend.call("GET", "/api/v1/operations/nothing/stream")).status == 404
