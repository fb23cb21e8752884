"""What nodes have: told by themselves, compared by a fingerprint, and asked for only when that is needed."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from corral.base.ids import NodeId
from corral.bus.port import Message
from corral.frontend.backends import inventory
from corral.wire import subjects
from corral.wire.backends import InstalledBackend, InventoryReport, fingerprint
from corral.wire.subjects import POKE_EVENTS
from tests.kit.loop_time import overdue
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.world import SECRET, World

ECHO = InstalledBackend(name="echo", installed_at="2030-01-01T00:00:00Z", digest="sha256:1")


async def beat(world: World, node: SimulatedBackends, name: str = "w", told: str | None = None) -> None:
    """A heartbeat that tells what the node has, or something else."""
    shown = fingerprint(node.disk.values()) if told is None else told
    body = {"corral": {"incarnation": "1", "inventory": shown}}
    await world.frontend.call("POST", f"/api/node/{node.node_id}/heartbeat", body, key=SECRET + name)
    await world.frontend.settle()


async def report(world: World, node: SimulatedBackends) -> None:
    """The node says by itself what it has."""
    data = msgspec.json.encode(InventoryReport(backends=list(node.disk.values())))
    message = Message(subject=subjects.inventory(node.node_id), data=data, reply=_nowhere)
    await world.control.context.backends.inventory.on_message(message)
    await world.control.context.backends.inventory.settle()


async def _nowhere(_: str, __: bytes) -> None:
    raise AssertionError("nobody asked")


async def names(world: World, node_id: NodeId) -> list[str]:
    known = await world.control.context.backends.inventory.known([node_id])
    return [entry.name for one in known.values() for entry in one.entries]


async def test_what_a_node_says_is_stored_and_it_is_not_asked(world: World) -> None:
    node = await world.backends("w")
    keeper = world.control.context.backends.inventory
    node.disk["echo"] = ECHO
    await report(world, node)
    assert await names(world, node.node_id) == ["echo"]
    for _ in range(3):
        await world.clock.advance(inventory.PERIOD)
        await beat(world, node)
        await keeper.settle()
        await keeper.sweep()
    assert node.lists == 0
    (known,) = (await keeper.known([node.node_id])).values()
    assert known.seen_at == world.clock.now()  # it is as fresh as the last heartbeat


async def test_a_report_that_differs_from_the_one_before_rings_at_all_frontends(world: World) -> None:
    node = await world.backends("w")
    keeper, feed = world.control.context.backends.inventory, world.control.context.record.feed
    node.disk["echo"] = ECHO
    await report(world, node)
    before = feed.rings
    rings: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Message) -> None:
        rings.put_nowait(message.subject)

    await world.bus.subscribe(POKE_EVENTS, hear)
    await report(world, node)
    await keeper.refresh([node.node_id])
    assert feed.rings == before
    del node.disk["echo"]
    await report(world, node)
    assert feed.rings > before
    assert await rings.get() == POKE_EVENTS


async def test_another_fingerprint_is_a_reason_to_ask_and_the_same_is_none(world: World) -> None:
    node = await world.backends("w")
    keeper = world.control.context.backends.inventory
    await beat(world, node)
    await keeper.settle()
    assert node.lists == 1  # nothing was known
    node.disk["echo"] = ECHO
    await beat(world, node)
    await keeper.settle()
    await beat(world, node)
    await keeper.settle()
    assert (node.lists, await names(world, node.node_id)) == (2, ["echo"])


async def test_a_frontend_that_starts_anew_asks_nobody_whose_report_is_stored(world: World) -> None:
    node = await world.backends("w")
    node.disk["echo"] = ECHO
    await report(world, node)
    other = (await world.again()).context.backends.inventory
    other.hear(node.node_id, fingerprint([ECHO]))
    await other.settle()
    assert node.lists == 0


async def test_those_who_tell_no_fingerprint_are_polled(world: World) -> None:
    localai, old = await world.backends("l", is_corral=False), await world.backends("w")
    keeper = world.control.context.backends.inventory
    for _ in range(2):
        await keeper.sweep()
    assert (localai.lists, old.lists) == (2, 2)
    await beat(world, old)
    await keeper.sweep()
    assert (localai.lists, old.lists) == (3, 2)
    await beat(world, old, told="")
    await keeper.sweep()
    assert (localai.lists, old.lists) == (4, 3)


async def test_of_two_frontends_the_one_that_hears_the_node_keeps_its_report(world: World) -> None:
    node = await world.backends("w")
    other = (await world.again()).context.backends.inventory
    await other.sweep()
    assert node.lists == 1
    await world.clock.advance(timedelta(seconds=5))
    await beat(world, node)
    await world.control.context.backends.inventory.settle()
    await world.control.context.backends.inventory.sweep()
    await world.clock.advance(timedelta(seconds=5))
    await other.sweep()
    assert node.lists == 1


async def test_a_pending_node_is_not_asked_and_a_stranger_is_not_believed(world: World) -> None:
    keeper = world.control.context.backends.inventory
    answer = await world.frontend.register({"name": "p", "address": "127.0.0.1:1"})
    pending = SimulatedBackends(NodeId(msgspec.json.decode(answer.body)["id"]), world.clock)
    await pending.listen(world.bus)
    world.stack.push_async_callback(pending.stop)
    pending.disk["echo"] = ECHO
    keeper.hear(pending.node_id, "f")
    await keeper.settle()
    await report(world, pending)
    stranger = SimulatedBackends(NodeId("nobody"), world.clock, disk={"echo": ECHO})
    await report(world, stranger)
    assert pending.lists == 0
    assert await keeper.known([pending.node_id, stranger.node_id]) == {}


@pytest.mark.parametrize("nonsense", [b"", b"[]", b'{"backends": 7}', b"{"])
async def test_what_nobody_understands_changes_nothing(world: World, nonsense: bytes) -> None:
    node = await world.backends("w")
    keeper = world.control.context.backends.inventory
    await keeper.on_message(Message(subject=subjects.inventory(node.node_id), data=nonsense, reply=_nowhere))
    await keeper.settle()
    assert await keeper.known([node.node_id]) == {}


async def test_a_silent_node_delays_nobody(world: World) -> None:
    node, mute = await world.backends("w"), await world.backends("m")
    mute.faults.mute = True
    node.disk["echo"] = ECHO
    within = timedelta(seconds=3)
    asking = world.control.context.backends.inventory.refresh([mute.node_id, node.node_id], within=within)
    found = await overdue(asking, mute.looked_at, node.looked_at, by=within)
    assert list(found) == [node.node_id]
