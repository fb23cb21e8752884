"""NATS and the database go away and come back while nodes beat: nothing is lost, and nobody is blamed for it."""

from datetime import timedelta

import pytest

from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.record.decide import EventKind, StoredEvent
from tests.kit.cluster import STEP, Cluster, NodeStatusChanged
from tests.kit.databases import DatabaseSource


def blamed(events: list[StoredEvent]) -> list[StoredEvent]:
    """Announcements that a node is unhealthy or offline."""
    bad = ("unhealthy", "offline")
    return [stored for stored in events if stored.event.data.get("after") in bad]


async def test_without_nats_heartbeats_go_on_and_silence_does_not_count(cluster: Cluster) -> None:
    living, dead = await cluster.healthy("living"), await cluster.healthy("dead")
    await cluster.nats.kill()
    await cluster.until_nats_is_lost()
    await cluster.worker("dead").kill()
    heard = (await cluster.frontend().node(living)).last_heartbeat

    await cluster.advance(cluster.interval * cluster.policy.offline_after * 2)

    assert (await cluster.frontend().node(living)).last_heartbeat > heard
    assert {node.status for node in (await cluster.frontend().nodes()).values()} == {"healthy"}
    assert (await cluster.frontend().call("GET", "/readyz")).status == 503

    await cluster.nats.start()
    await cluster.until_nats_is_back()
    assert (await cluster.frontend().call("GET", "/readyz")).status == 200
    await cluster.advance(cluster.interval * (cluster.policy.unhealthy_after - 1))
    assert blamed(await cluster.frontend().events()) == []

    await cluster.advance(cluster.interval * cluster.policy.offline_after)
    await cluster.until(NodeStatusChanged(dead, NodeStatus.OFFLINE))
    assert await cluster.frontend().status(living) is NodeStatus.HEALTHY


async def test_people_can_act_and_workers_can_join_without_nats(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    await cluster.nats.kill()
    await cluster.until_nats_is_lost()

    await cluster.frontend().drain(node)
    await cluster.until(NodeStatusChanged(node, NodeStatus.DRAINING))
    newcomer = await cluster.worker("w2").joined()
    await cluster.frontend().approve(newcomer)

    await cluster.until(NodeStatusChanged(newcomer, NodeStatus.HEALTHY))


async def test_a_frontend_that_is_cut_off_from_nats_counts_no_silence_alone(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    await cluster.frontend().nats_wire.cut()
    await cluster.until_nats_is_lost()
    await cluster.worker("w1").kill()
    await cluster.advance(timedelta(minutes=5))
    assert await cluster.frontend().status(node) is NodeStatus.HEALTHY

    await cluster.frontend().nats_wire.mend()
    await cluster.until_nats_is_back()

    await cluster.advance(STEP + cluster.interval * cluster.policy.offline_after)  # heard again after one step
    await cluster.until(NodeStatusChanged(node, NodeStatus.OFFLINE))


@pytest.mark.postgres
async def test_a_database_that_dies_under_beating_nodes_loses_nothing(
    pair: Cluster, database_source: DatabaseSource
) -> None:
    nodes = [await pair.healthy(name, through=through) for name, through in (("w1", 1), ("w2", 2))]
    await pair.frontend().label(nodes[0], {"rack": "7"})
    before = await pair.frontend().events()

    database_source.postgres.kill()
    await pair.advance(pair.interval * 2)
    answers = [await frontend.call("GET", "/api/nodes") for frontend in pair.frontends]
    assert [answer.status for answer in answers] == [503, 503]
    assert (await pair.frontend().call("GET", "/healthz")).status == 200
    await pair.advance(pair.interval * pair.policy.offline_after)
    database_source.postgres.start()
    await pair.advance(pair.interval * 2)

    for frontend in pair.frontends:
        assert {id: node.status for id, node in (await frontend.nodes()).items()} == dict.fromkeys(nodes, "healthy")
        assert (await frontend.call("GET", "/readyz")).status == 200
    after = await pair.frontend().events()
    assert after[: len(before)] == before
    assert blamed(after) == []
    assert [stored.sequence for stored in after] == list(range(1, len(after) + 1))
    assert (await pair.frontend().node(nodes[0])).labels["rack"] == "7"


@pytest.mark.postgres
async def test_a_worker_that_meets_a_dead_database_joins_when_it_is_back(
    pair: Cluster, database_source: DatabaseSource
) -> None:
    await pair.settle()
    worker = pair.worker("w1")
    await worker.start()
    database_source.postgres.kill()
    await pair.advance(timedelta(seconds=5))
    database_source.postgres.start()

    await pair.advance(timedelta(seconds=20))

    node = await worker.joined()
    assert [id for id in await pair.frontend(2).nodes()] == [node]
    kinds = [stored.event.kind for stored in await pair.frontend().events()]
    assert kinds.count(EventKind.NODE_REGISTERED) == 1


async def test_a_clock_set_back_while_control_was_away_moves_no_node(cluster: Cluster) -> None:
    living, dead = await cluster.healthy("living"), await cluster.healthy("dead")
    await cluster.advance(timedelta(minutes=2))
    await cluster.worker("dead").kill()
    await cluster.frontend().kill()
    cluster.jump(timedelta(hours=-1))

    await cluster.frontend().start()

    assert {node.status for node in (await cluster.frontend().nodes()).values()} == {"healthy"}
    await cluster.advance(cluster.interval * 2)
    assert blamed(await cluster.frontend().events()) == []
    await cluster.advance(cluster.interval * cluster.policy.offline_after)
    await cluster.until(NodeStatusChanged(dead, NodeStatus.OFFLINE))
    assert await cluster.frontend().status(living) is NodeStatus.HEALTHY


@pytest.mark.postgres
async def test_a_clock_set_back_while_the_database_was_away_moves_no_node(
    pair: Cluster, database_source: DatabaseSource
) -> None:
    living, dead = await pair.healthy("living"), await pair.healthy("dead")
    await pair.advance(pair.interval)
    await pair.worker("dead").kill()
    database_source.postgres.kill()
    pair.jump(timedelta(hours=-1))
    await pair.advance(timedelta(seconds=5))
    database_source.postgres.start()

    await pair.advance(pair.interval * (pair.policy.unhealthy_after - 1))
    assert blamed(await pair.frontend().events()) == []
    await pair.advance(pair.interval * pair.policy.offline_after)

    await pair.until(NodeStatusChanged(dead, NodeStatus.OFFLINE))
    assert await pair.frontend().status(living) is NodeStatus.HEALTHY
