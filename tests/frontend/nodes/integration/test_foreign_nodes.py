"""What control believes of nodes, and whom it contacts: everybody with a NATS login can speak on their subjects."""

from datetime import timedelta

import msgspec
import pytest

from corral.base.ids import NodeId
from corral.bus.port import Message
from corral.frontend.backends.inventory import INVENTORY_LIMITS
from corral.frontend.nodes.client import MOST_BYTES, NodeRefused
from corral.frontend.nodes.contacts import NodePending
from corral.wire import subjects
from corral.wire.backends import InstalledBackend, InventoryReport
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

REGISTERED_AT = "127.0.0.1:50051"
ELSEWHERE = "192.0.2.7"


async def test_a_load_is_not_sent_to_an_address_of_another_host(world: World) -> None:
    node = await world.node("w1")
    node.host = ELSEWHERE
    await world.loads.ensure("small")
    await world.loads.tick()

    assert world.loader.loads == []  # nobody was dialled there, and given the node's secret
    status = await world.loads.ensure("small")
    assert status.state == "failed"
    assert f"'{ELSEWHERE}:7000'" in status.message
    assert REGISTERED_AT in status.message


async def test_a_load_is_not_given_a_url_of_another_host(world: World) -> None:
    node = await world.node("w1")
    node.url_host = ELSEWHERE
    await world.loads.ensure("small")
    await world.loads.tick()

    assert world.loader.loads == []
    assert f"'http://{ELSEWHERE}:7001'" in (await world.loads.ensure("small")).message


@pytest.mark.parametrize("field", ["host", "url_host"])
async def test_a_report_that_names_another_host_counts_as_none(
    world: World, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    node.running.clear()
    setattr(node, field, ELSEWHERE)
    node.start("small", 0)
    for _ in range(3):
        await world.control.context.serving.health.sweep()

    now = await world.control.context.serving.replicas.get(replica.id)
    assert now == replica
    with pytest.raises(NodeRefused, match=ELSEWHERE):
        await world.control.context.serving.health._client.running(node.id)
    assert "node.foreign_address" in {getattr(record, "event", "") for record in caplog.records}


async def test_workers_report_their_processes_by_loopback_addresses(world: World) -> None:
    node = await world.node("w1", address="10.0.0.5:50051")
    node.has_urls = False
    node.start("small", 0)

    (process,) = await world.control.context.serving.health._client.running(node.id)
    assert process.process_key == "small#0"


async def test_a_pending_node_is_asked_nothing(world: World) -> None:
    asked: list[str] = []

    async def hear(message: Message) -> None:
        asked.append(message.subject)

    answer = await world.frontend.register({"name": "p", "address": REGISTERED_AT})
    node_id = NodeId(msgspec.json.decode(answer.body)["id"])
    subscription = await world.bus.subscribe(f"nodes.{node_id}.>", hear)
    client = world.control.context.serving.health._client
    with pytest.raises(NodePending):
        await client.running(node_id)
    with pytest.raises(NodePending):
        await client.backends(node_id)
    assert not await client.stop(node_id, "small#0")
    await subscription.close()

    assert asked == []


def reported(node_id: NodeId, data: bytes) -> Message:
    async def nowhere(_: str, __: bytes) -> None:
        raise AssertionError("nobody asked")

    return Message(subject=subjects.inventory(node_id), data=data, reply=nowhere)


def inventory_of(name: str) -> bytes:
    return msgspec.json.encode(InventoryReport(backends=[InstalledBackend(name=name)]))


async def names(world: World, node_id: NodeId) -> list[str]:
    await world.control.context.backends.inventory.settle()
    known = await world.control.context.backends.inventory.known([node_id])
    return [entry.name for one in known.values() for entry in one.entries]


@pytest.mark.parametrize(
    "data",
    [
        inventory_of("x" * MOST_BYTES),
        b'{"backends":[' + b",".join([b"{}"] * 100_000) + b"]}",
    ],
    ids=["bytes", "objects"],
)
async def test_a_large_inventory_is_dropped_before_it_is_parsed(
    world: World, data: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await world.backends("w")
    monkeypatch.setattr("corral.frontend.backends.inventory.go_json.decode", _not_to_be_called)
    for _ in range(5):
        await world.control.context.backends.inventory.on_message(reported(node.node_id, data))

    assert await names(world, node.node_id) == []
    assert len([one for one in caplog.records if getattr(one, "event", "") == "inventory.dropped"]) == 1


def _not_to_be_called(*_: object) -> None:
    raise AssertionError("it was parsed")


async def test_a_node_that_reports_too_often_is_heard_again_in_the_next_window(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    node, other = await world.backends("w"), await world.backends("v")
    keeper, limits = world.control.context.backends.inventory, INVENTORY_LIMITS
    for number in range(limits.reports_per_node + 20):
        await keeper.on_message(reported(node.node_id, inventory_of(f"b{number}")))
    await keeper.on_message(reported(other.node_id, inventory_of("echo")))
    assert await names(world, node.node_id) == [f"b{limits.reports_per_node - 1}"]
    assert await names(world, other.node_id) == ["echo"]
    assert len([one for one in caplog.records if getattr(one, "event", "") == "inventory.dropped"]) == 1

    await world.clock.advance(limits.window + timedelta(seconds=1))
    await keeper.on_message(reported(node.node_id, inventory_of("new")))
    assert await names(world, node.node_id) == ["new"]


async def test_many_made_up_nodes_together_have_a_limit_too(world: World) -> None:
    keeper, limits = world.control.context.backends.inventory, INVENTORY_LIMITS
    large = inventory_of("x" * (MOST_BYTES // 2))
    for number in range(100):
        await keeper.on_message(reported(NodeId(f"nobody-{number}"), large))

    assert len(keeper._reports) <= limits.bytes_in_all // len(large)
