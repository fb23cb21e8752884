"""What the cluster of the testing kit promises to tests."""

from dataclasses import replace
from datetime import timedelta

import pytest

from corral.base.errors import DatabaseInUse, PeerRefused
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.record.decide import EventKind
from tests.kit.admin_api import open_session
from tests.kit.cluster import REGISTRATION_TOKEN, Cluster, NodeStatusChanged, RecordedEvent
from tests.kit.members import FRONTEND_LOOPS, ClusterFrontend
from tests.kit.ports import lasting_port
from tests.kit.simulated_node import SimulatedIdentity, SimulatedNode


async def test_the_kit_knows_how_many_loops_of_a_frontend_wait_for_its_clock(cluster: Cluster) -> None:
    """All but the heartbeats, which wait for heartbeats, and the adapter, which waits for replicas without a URL.

    Loads wait twice: for their turn, and for news. Whoever adds a loop tells the kit.
    """
    loops = cluster.frontend().control.loops()
    for loop in loops.values():
        loop.close()
    assert len(loops) - 2 + 1 == FRONTEND_LOOPS


async def test_at_rest_every_loop_of_a_frontend_waits_for_its_clock(cluster: Cluster) -> None:
    """More sleepers than the kit counts would hide a loop that still works."""
    await cluster.healthy("w1")
    for _ in range(12):
        await cluster.advance(timedelta(seconds=1))
        assert cluster.frontend().clock.sleeping == FRONTEND_LOOPS


async def test_what_keeps_a_frontend_from_starting_comes_out_of_start(cluster: Cluster) -> None:
    """SQLite serves one frontend."""
    first = cluster.frontend()
    config = replace(first.config, port=lasting_port())
    async with open_session() as session:
        second = ClusterFrontend("second", config, clock=first.clock, session=session, wire=first.nats_wire)
        with pytest.raises(DatabaseInUse):
            await second.start()
        assert not second.is_running


async def test_a_wait_that_is_over_tells_the_story(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kit.waiting.WAIT_TIMEOUT", timedelta(milliseconds=50))
    with pytest.raises(AssertionError, match=r"key\.created"):
        await cluster.until(RecordedEvent(EventKind.NODE_REMOVED))


async def test_a_simulated_node_lives_the_life_of_a_worker(cluster: Cluster) -> None:
    async with open_session() as session:
        node = SimulatedNode(session, cluster.frontend().url, REGISTRATION_TOKEN, "sim", cluster.interval)
        node_id = await node.register()
        assert node.status == "pending"
        await cluster.frontend().approve(node_id)
        assert await node.beat() == "healthy"
        assert await node.register() == node_id

        await cluster.advance(cluster.interval * cluster.policy.offline_after)
        await cluster.until(NodeStatusChanged(node_id, NodeStatus.OFFLINE))
        await node.beat()
        await cluster.until(NodeStatusChanged(node_id, NodeStatus.HEALTHY))

        await node.deregister()
        await node.beat()
        assert node.status == "offline"
        await cluster.frontend().remove(node_id)
        with pytest.raises(PeerRefused):
            await node.beat()


async def test_a_simulated_node_may_lie_and_is_shown_up(cluster: Cluster) -> None:
    async with open_session() as session:
        node = SimulatedNode(session, cluster.frontend().url, REGISTRATION_TOKEN, "liar", cluster.interval)
        node_id = await node.register()
        truth = (await cluster.frontend().node(node_id)).available_ram
        node.lies = {"available_ram": "lots", "gpu_vendor": 7}

        await node.beat()

        seen = await cluster.frontend().node(node_id)
        assert len(seen.problems) == 2
        assert seen.available_ram == truth


async def test_a_simulated_node_without_a_secret_is_known_by_its_name(cluster: Cluster) -> None:
    async with open_session() as session:
        url, identity = cluster.frontend().url, SimulatedIdentity(secret="")
        node = SimulatedNode(session, url, REGISTRATION_TOKEN, "plain", cluster.interval, identity=identity)
        again = SimulatedNode(
            session, url, REGISTRATION_TOKEN, "plain", cluster.interval, identity=SimulatedIdentity(secret="")
        )
        assert await node.register() == await again.register()
        assert await node.beat() == "pending"
