"""Operations on the live stream: targets that never go back, and ends that stay to be seen."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation
from corral.galleries.build_uris import BackendRef
from tests.kit.asgi import open_stream
from tests.kit.live import LiveEvent, LiveState
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.waiting import eventually
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


async def install(world: World) -> Operation:
    ask = Ask(verb=Verb.INSTALL, ref=BackendRef(backend="echo"), by="me")
    return await world.control.context.backends.operations.start(ask)


@asynccontextmanager
async def installing(world: World, node: SimulatedBackends) -> AsyncIterator[Operation]:
    """An install that the node has begun with, and finishes at the end of the block."""
    node.gate.clear()
    operation = await install(world)
    async with asyncio.TaskGroup() as group:
        group.create_task(world.control.context.operations.dispatcher.tick())
        await node.begun.wait()
        try:
            yield operation
        finally:
            node.gate.set()


async def test_a_target_is_seen_from_its_first_byte_to_its_proof_and_never_goes_back(world: World) -> None:
    node = await world.backends("w")
    hub = world.control.context.live.hub
    headers = {"authorization": f"Bearer {world.frontend.admin_key}"}
    shares: list[float] = []
    state = LiveState()
    async with installing(world, node) as operation:
        topic = f"operation:{operation.id}"
        stream_url = f"/api/v1/live?topics={topic},operations,node:{node.node_id}"
        async with open_stream(world.frontend.app, stream_url, headers=headers) as stream:
            await state.read_until_ready(stream)
            assert state.topics[topic][node.node_id]["status"] == "downloading"
            assert state.topics["operations"][operation.id]["worst"]["node"] == "w"
            (work,) = state.topics[f"node:{node.node_id}"]["work"]
            assert (work["operation_id"], work["verb"]) == (operation.id, "install")
            for percentage in (25, 60, 40, 80):

                async def heard(wanted: float = percentage) -> bool:
                    await node.say(operation.id, wanted)
                    await world.clock.advance(timedelta(seconds=1))
                    await hub.refresh(hub.read_topics)
                    return not stream.is_quiet

                await eventually(heard, f"the stream to tell {percentage} %")
                while not stream.is_quiet:
                    state.apply(LiveEvent.parse(await stream.next()))
                shares.append(state.topics[topic][node.node_id]["percentage"])
    assert shares == sorted(shares)
    assert shares[-1] == 80
    await world.clock.advance(timedelta(seconds=1))
    async with open_stream(world.frontend.app, stream_url, headers=headers | {"last-event-id": state.place}) as stream:
        await state.read_until_ready(stream)
    assert state.topics[topic][node.node_id]["status"] == "success"
    assert state.topics[topic][node.node_id]["message"], "the proof is told"
    row = state.topics["operations"][operation.id]
    assert (row["state"], row["worst"], "targets" in row) == ("done", None, False)
    assert state.topics[f"node:{node.node_id}"]["work"] == []


async def test_operations_that_are_over_are_read_once(world: World) -> None:
    await world.backends("w")
    operation = await install(world)
    await world.control.context.operations.dispatcher.tick()
    hub, store = world.control.context.live.hub, world.control.context.operations.stores.operations
    read: list[int] = []
    some = store.some

    async def counted(ids: object) -> object:
        read.append(len(ids))  # type: ignore[arg-type]
        return await some(ids)  # type: ignore[arg-type]

    store.some = counted  # type: ignore[method-assign, assignment]
    for _ in range(3):
        world.control.context.record.feed.ring()
        summary = await hub.summary()
    assert read == [1]
    assert summary.summary.operations == {"running": 0, "waiting": 0, "failed": 0}
    assert operation.id
