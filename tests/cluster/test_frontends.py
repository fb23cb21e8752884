"""Several frontends on one database and one NATS: what one does, the others see."""

from datetime import timedelta

import pytest

from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.record.decide import EventKind
from corral.frontend.record.routes import KEEP_ALIVE
from tests.kit.cluster import Cluster, NodeStatusChanged, RecordedEvent

pytestmark = pytest.mark.postgres


async def test_a_worker_that_joined_through_one_is_approved_and_drained_through_the_other(pair: Cluster) -> None:
    node = await pair.worker("w1", through=1).joined()
    assert await pair.frontend(2).status(node) is NodeStatus.PENDING

    await pair.frontend(2).approve(node)
    await pair.until(NodeStatusChanged(node, NodeStatus.HEALTHY))
    await pair.frontend(2).drain(node)
    await pair.until(NodeStatusChanged(node, NodeStatus.DRAINING))

    assert [await frontend.status(node) for frontend in pair.frontends] == [NodeStatus.DRAINING] * 2


async def test_an_event_of_one_frontend_reaches_the_stream_of_the_other_by_the_doorbell(pair: Cluster) -> None:
    node = await pair.healthy("w1")
    await pair.settle()
    async with pair.frontend(2).stream() as stream:
        await pair.settle()

        await pair.frontend(1).label(node, {"rack": "7"})  # time stands still: only the doorbell can tell

        event = await stream.next()
        assert (event.kind, event.node_id) == ("node.labels", node)


async def test_with_the_doorbell_lost_the_stream_tells_once_per_period(pair: Cluster) -> None:
    node = await pair.healthy("w1")
    await pair.frontend(2).nats_wire.cut()
    await pair.frontend(2).until_nats_is_lost()
    async with pair.frontend(2).stream() as stream:
        await pair.settle()

        await pair.frontend(1).label(node, {"rack": "7"})
        await pair.advance(KEEP_ALIVE)

        assert (await stream.next()).kind == "node.labels"


async def test_a_stream_is_resumed_on_another_frontend_without_a_gap(pair: Cluster) -> None:
    node = await pair.healthy("w1")
    async with pair.frontend(1).stream(after=0) as stream:
        seen = [await stream.next() for _ in range(3)]
    await pair.frontend(1).kill()
    await pair.frontend(2).drain(node)

    async with pair.frontend(2).stream(after=seen[-1].sequence) as stream:
        while seen[-1].kind != EventKind.NODE_DRAINING:
            seen.append(await stream.next())

    assert [event.sequence for event in seen] == list(range(1, len(seen) + 1))


async def test_a_worker_moves_to_another_frontend_when_its_own_dies(pair: Cluster) -> None:
    node = await pair.healthy("w1", through=1)

    await pair.frontend(1).kill()
    await pair.advance(pair.interval * pair.policy.offline_after)

    seen = await pair.frontend(2).node(node)
    assert seen.status == "healthy"
    assert seen.silent_seconds < pair.interval.total_seconds()


async def test_a_status_is_announced_once_however_many_watch(pair: Cluster) -> None:
    node = await pair.healthy("w1")
    await pair.worker("w1").kill()

    await pair.advance(pair.interval * pair.policy.offline_after + timedelta(seconds=5))

    await pair.until(NodeStatusChanged(node, NodeStatus.OFFLINE))
    told = [stored.event.data["after"] for stored in await pair.frontend(1).events() if "why" in stored.event.data]
    assert told == ["pending", "healthy", "unhealthy", "offline"]


async def test_the_restart_of_one_frontend_does_not_help_a_dead_node(pair: Cluster) -> None:
    """Silence was heard all the time, by the other one."""
    node = await pair.healthy("w1")
    await pair.worker("w1").kill()
    for _ in range(pair.policy.offline_after):
        await pair.advance(pair.interval)
        await pair.frontend(1).restart()

    await pair.until(NodeStatusChanged(node, NodeStatus.OFFLINE))


async def test_a_key_that_one_frontend_revokes_opens_no_other(pair: Cluster) -> None:
    made = await pair.frontend(1).call("POST", "/api/v1/keys", {"name": "other", "scopes": ["admin"]})
    key: object = made.json()
    assert isinstance(key, dict)
    assert (await pair.frontend(2).call("GET", "/api/nodes", key=key["key"])).status == 200

    await pair.frontend(1).call("DELETE", f"/api/v1/keys/{key['id']}")

    assert (await pair.frontend(2).call("GET", "/api/nodes", key=key["key"])).status == 401
    await pair.until(RecordedEvent(EventKind.KEY_REVOKED))
