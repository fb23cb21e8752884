"""Workers that come, go, die and come back, seen by one frontend."""

from datetime import timedelta

import pytest

from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.record.decide import EventKind
from corral.processes.exit_codes import ExitCode
from tests.kit.cluster import Cluster, NodeStatusChanged, RecordedEvent


async def test_a_worker_registers_waits_for_approval_and_is_healthy(cluster: Cluster) -> None:
    node = await cluster.worker("w1").joined()
    await cluster.until(NodeStatusChanged(node, NodeStatus.PENDING))
    await cluster.advance(cluster.interval * 2)
    assert await cluster.frontend().status(node) is NodeStatus.PENDING

    await cluster.frontend().approve(node)

    healthy = await cluster.until(NodeStatusChanged(node, NodeStatus.HEALTHY))
    assert healthy.event.data["before"] == "pending"
    assert (await cluster.worker("w1").ask("/readyz")).status == 200
    assert await cluster.frontend().status(node) is NodeStatus.HEALTHY


async def test_the_living_keep_beating_while_time_passes(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")

    await cluster.advance(cluster.interval * 8)

    seen = await cluster.frontend().node(node)
    assert seen.status == "healthy"
    assert seen.silent_seconds < cluster.interval.total_seconds()


async def test_a_killed_worker_is_unhealthy_then_offline_then_back_as_itself(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    await cluster.frontend().label(node, {"rack": "7"})
    await cluster.worker("w1").kill()

    await cluster.advance(cluster.interval * cluster.policy.unhealthy_after)
    await cluster.until(NodeStatusChanged(node, NodeStatus.UNHEALTHY))
    await cluster.advance(cluster.interval * (cluster.policy.offline_after - cluster.policy.unhealthy_after))
    await cluster.until(NodeStatusChanged(node, NodeStatus.OFFLINE))

    assert await cluster.worker("w1").joined() == node
    await cluster.until(NodeStatusChanged(node, NodeStatus.HEALTHY))
    assert (await cluster.frontend().node(node)).labels["rack"] == "7"


async def test_a_worker_that_was_suspended_is_missed_and_welcome_again(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    cluster.worker("w1").pause()
    await cluster.advance(cluster.interval * cluster.policy.offline_after)
    await cluster.until(NodeStatusChanged(node, NodeStatus.OFFLINE))

    cluster.worker("w1").go_on()

    await cluster.until(NodeStatusChanged(node, NodeStatus.HEALTHY))


async def test_a_worker_that_said_good_bye_stays_offline_until_it_registers_again(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    await cluster.advance(cluster.interval)

    await cluster.worker("w1").stop()

    assert cluster.worker("w1").exit_code is ExitCode.OK
    await cluster.until(RecordedEvent(EventKind.NODE_DEREGISTERED, node))
    await cluster.until(NodeStatusChanged(node, NodeStatus.OFFLINE))
    seen = await cluster.frontend().node(node)
    assert seen.silent_seconds < cluster.interval.total_seconds()
    await cluster.advance(cluster.interval)
    assert await cluster.frontend().status(node) is NodeStatus.OFFLINE

    assert await cluster.worker("w1").joined() == node
    await cluster.until(NodeStatusChanged(node, NodeStatus.HEALTHY))


async def test_a_removed_node_comes_back_as_a_new_one_to_be_approved(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    await cluster.frontend().remove(node)
    await cluster.until(RecordedEvent(EventKind.NODE_REMOVED, node))

    await cluster.advance(cluster.interval)

    again = (await cluster.until(RecordedEvent(EventKind.NODE_REGISTERED))).event.node_id
    assert again is not None
    assert again != node
    assert await cluster.worker("w1").joined() == again
    assert {id: seen.status for id, seen in (await cluster.frontend().nodes()).items()} == {again: "pending"}


async def test_a_person_drains_and_a_restart_of_the_worker_does_not_end_that(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    await cluster.frontend().drain(node)
    await cluster.until(NodeStatusChanged(node, NodeStatus.DRAINING))

    await cluster.worker("w1").stop()
    assert await cluster.worker("w1").joined() == node

    assert await cluster.frontend().status(node) is NodeStatus.DRAINING
    await cluster.frontend().resume(node)
    await cluster.until(NodeStatusChanged(node, NodeStatus.HEALTHY))


async def test_a_restarted_control_gives_every_node_its_full_time(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    await cluster.worker("w1").kill()
    almost = cluster.interval * cluster.policy.unhealthy_after - timedelta(seconds=2)
    await cluster.advance(almost)
    await cluster.frontend().kill()
    await cluster.advance(timedelta(minutes=10))

    await cluster.frontend().start()

    assert await cluster.frontend().status(node) is NodeStatus.HEALTHY
    await cluster.advance(almost)
    assert await cluster.frontend().status(node) is NodeStatus.HEALTHY
    await cluster.advance(timedelta(seconds=2))
    await cluster.until(NodeStatusChanged(node, NodeStatus.UNHEALTHY))


async def test_a_worker_outlives_its_frontend_and_is_not_even_missed(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    await cluster.frontend().kill()
    await cluster.advance(timedelta(minutes=5))

    await cluster.frontend().start()
    await cluster.advance(cluster.interval * 2)

    assert await cluster.frontend().status(node) is NodeStatus.HEALTHY
    assert [stored for stored in await cluster.frontend().events() if _is_alarm(stored.event.data)] == []


@pytest.mark.parametrize("by", [timedelta(hours=5), timedelta(hours=-5), timedelta(minutes=-1)])
async def test_a_wall_clock_that_is_set_moves_no_node(cluster: Cluster, by: timedelta) -> None:
    living = await cluster.healthy("living")
    dead = await cluster.healthy("dead")
    await cluster.advance(cluster.interval)
    await cluster.worker("dead").kill()

    cluster.jump(by)
    await cluster.advance(cluster.interval)

    assert await cluster.frontend().status(living) is NodeStatus.HEALTHY
    assert await cluster.frontend().status(dead) is NodeStatus.HEALTHY
    await cluster.advance(cluster.interval * cluster.policy.offline_after)
    await cluster.until(NodeStatusChanged(dead, NodeStatus.OFFLINE))
    assert await cluster.frontend().status(living) is NodeStatus.HEALTHY


def _is_alarm(data: object) -> bool:
    return isinstance(data, dict) and data.get("after") in ("unhealthy", "offline")
