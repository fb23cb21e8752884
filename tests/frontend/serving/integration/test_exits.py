"""What nodes say of processes that ended by themselves, and whom control believes."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from corral.base.ids import NodeId
from corral.bus.port import Message
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.replica_health import EXIT_LIMITS
from corral.wire import subjects
from corral.wire.keys import hash_secret
from corral.wire.replicas import ReplicaExited
from tests.kit.world import SECRET, World, view_of


async def unanswered(subject: str, data: bytes) -> None:
    raise AssertionError("nobody asked")


async def say(world: World, node_id: NodeId, report: ReplicaExited | bytes) -> None:
    data = report if isinstance(report, bytes) else msgspec.json.encode(report)
    message = Message(subject=subjects.replica_exited(node_id), data=data, reply=unanswered)
    await world.control.context.serving.exits.on_message(message)


def exit_of(replica: Replica, **changes: object) -> ReplicaExited:
    report = ReplicaExited(
        model_id=replica.model,
        replica_index=replica.index,
        address="127.0.0.1:7000",
        key_hash=hash_secret("k1"),
        reason="backend small#0 ended by itself (signal 9)",
        tail=["out of memory"],
    )
    return msgspec.structs.replace(report, **changes)


async def test_a_replica_that_exited_leaves_the_view_at_once_and_its_last_words_are_kept(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    await say(world, node.id, exit_of(replica))

    assert (await view_of(world.control)).replicas == {}
    (event,) = await world.events(EventKind.REPLICA_LOST)
    assert event.node_id == node.id
    assert event.data["why"] == "backend small#0 ended by itself (signal 9)"
    assert event.data["errors"] == ["out of memory"]


async def test_the_next_request_loads_it_again_and_a_late_report_does_not_touch_that(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    node.running.clear()
    await say(world, node.id, exit_of(replica))
    assert (await world.loads.ensure("small")).state == "pending"
    again = await world.loaded()
    await say(world, node.id, exit_of(replica))
    await say(world, node.id, exit_of(replica, address=again.address))

    assert again.key == "k2"
    assert list((await view_of(world.control)).replicas) == [again.id]
    assert len(await world.events(EventKind.REPLICA_LOST)) == 1


async def test_only_its_own_node_is_believed(world: World) -> None:
    await world.node("w1")
    replica = await world.loaded()
    other = await world.node("w2")
    await say(world, other.id, exit_of(replica))
    await say(world, NodeId("nobody"), exit_of(replica))

    assert (await view_of(world.control)).replicas


@pytest.mark.parametrize(
    "changes",
    [{"key_hash": hash_secret("k0")}, {"key_hash": ""}, {"replica_index": 1}],
)
async def test_another_process_is_not_mistaken_for_it(world: World, changes: dict[str, object]) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    await say(world, node.id, exit_of(replica, **changes))

    assert (await view_of(world.control)).replicas


async def test_a_replica_without_a_key_is_known_by_its_port(world: World) -> None:
    node = await world.node("w1")
    node.has_urls = False
    replica = await world.loaded()
    await say(world, node.id, exit_of(replica, key_hash="", address="127.0.0.1:7002"))
    assert await world.events(EventKind.REPLICA_LOST) == []
    await say(world, node.id, exit_of(replica, key_hash=""))

    assert len(await world.events(EventKind.REPLICA_LOST)) == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"model_id":5}', b'{"tail":"x"}'])
async def test_a_report_that_cannot_be_read_changes_nothing(world: World, data: bytes) -> None:
    node = await world.node("w1")
    await world.loaded()
    await say(world, node.id, data)

    assert (await view_of(world.control)).replicas


async def test_what_a_node_says_is_cut_to_a_bearable_length(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    await say(world, node.id, exit_of(replica, reason="x" * 10_000, tail=["y" * 10_000] * 100))

    (event,) = await world.events(EventKind.REPLICA_LOST)
    assert len(msgspec.json.encode(event.data)) < 20_000


async def test_an_exit_during_the_load_is_left_to_the_load(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    await world.control.context.serving.replicas.lose([replica.id], reason="x", at=world.clock.now(), events=[])
    await world.loads.ensure("small")
    (held,) = await world.loads.claim()
    placed = await world.loads._work.place(held, {})
    assert placed is not None
    await say(world, node.id, exit_of(placed[0]))

    now = await world.control.context.serving.replicas.get(placed[0].id)
    assert now is not None
    assert now.state is ReplicaState.RESERVED


# How many are read.


@pytest.fixture
def reads(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each read of all living replicas."""
    replicas, reads = world.control.context.serving.replicas, list[int]()
    living = replicas.living

    async def counted() -> Sequence[Replica]:
        reads.append(1)
        return await living()

    monkeypatch.setattr(replicas, "living", counted)
    return reads


def dropped(caplog: pytest.LogCaptureFixture) -> int:
    return len([one for one in caplog.records if getattr(one, "event", "") == "replica.exits_dropped"])


async def test_a_node_that_reports_too_often_is_heard_again_in_the_next_window(
    world: World, reads: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    reads.clear()
    for _ in range(EXIT_LIMITS.reports_per_node + 50):
        await say(world, node.id, exit_of(replica, key_hash=hash_secret("k0")))
    assert (len(reads), dropped(caplog)) == (EXIT_LIMITS.reports_per_node, 1)

    await world.clock.advance(EXIT_LIMITS.window + timedelta(seconds=1))
    await say(world, node.id, exit_of(replica))
    assert len(await world.events(EventKind.REPLICA_LOST)) == 1


async def test_one_node_that_reports_too_often_does_not_silence_another(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    for _ in range(EXIT_LIMITS.reports_per_node + 50):
        await say(world, NodeId("flood"), exit_of(replica))
    await say(world, node.id, exit_of(replica))
    assert len(await world.events(EventKind.REPLICA_LOST)) == 1


async def test_many_made_up_nodes_together_have_a_limit_too(
    world: World, reads: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert EXIT_LIMITS.reports_in_all is not None
    report = ReplicaExited(model_id="small", replica_index=0, address="", key_hash="", reason="", tail=[])
    for number in range(EXIT_LIMITS.reports_in_all + 100):
        await say(world, NodeId(f"nobody-{number}"), report)
    assert (len(reads), dropped(caplog)) == (EXIT_LIMITS.reports_in_all, 1)


async def test_a_large_report_is_dropped_before_it_is_parsed(world: World, reads: list[int]) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    reads.clear()
    await say(world, node.id, exit_of(replica, tail=["x" * 1024 * 1024]))
    assert reads == []


async def test_a_worker_that_was_stopped_takes_its_replica_along_without_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    node = await world.node("w1")
    await world.loaded()
    caplog.set_level("INFO")

    await world.frontend.call("POST", f"/api/node/{node.id}/deregister", {}, key=SECRET + "w1")
    await world.control.context.serving.health.sweep()

    (event,) = await world.events(EventKind.REPLICA_LOST)
    assert event.data["why"] == "its node w1 has left"
    assert [one.levelname for one in caplog.records if getattr(one, "event", "") == "replica.lost"] == ["INFO"]
