"""The loop that scales, over load jobs, replicas and gateways' reports, on a bus in memory and on both databases."""

from datetime import timedelta
from typing import Any

from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.load_job import LoadWhy
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.unloading import HEARD_AFTER
from corral.wire.view import GatewayReport
from tests.kit.world import MODEL, World


async def put(world: World, **fields: Any) -> Any:
    answer = await world.frontend.call("PUT", "/api/v1/scheduling/small", fields)
    assert answer.status == 200, answer.body
    return answer.json()


async def look(world: World, *, after: timedelta = timedelta(0)) -> bool:
    """One step of the loop, and of those that carry out what it wants."""
    await world.clock.advance(after)
    serving = world.control.context.serving
    is_under_way = await serving.scaling.sweep()
    await world.loads.tick()
    await serving.unloading.sweep()
    return is_under_way


async def loaded(world: World) -> list[Replica]:
    living = await world.control.context.serving.replicas.living()
    return [replica for replica in living if replica.state is ReplicaState.LOADED]


async def test_a_minimum_is_loaded_without_anybody_asking_and_kept(world: World) -> None:
    await world.node("w1")
    await put(world, min_replicas=2)
    await look(world)
    assert [replica.why for replica in await loaded(world)] == [LoadWhy.MINIMUM]
    short = await world.events(EventKind.MODEL_SHORT)
    assert [event.data["why"] for event in short] == ["one more fits nowhere: w1 already has 1 of 1 replicas of it"]

    await world.node("w2")
    await look(world)
    assert len(await loaded(world)) == 2
    begun = await world.events(EventKind.MODEL_SCALING)
    assert [event.data["why"] for event in begun] == ["minimum", "minimum"]
    assert await look(world) is False
    assert len(await world.events(EventKind.MODEL_SCALING)) == 2


async def test_a_replica_that_is_lost_is_loaded_again(world: World) -> None:
    await world.node("w1"), await world.node("w2")
    await put(world, min_replicas=1)
    await look(world)
    [first] = await loaded(world)
    await world.control.context.serving.health.lose([first], "its node is gone")
    await look(world)
    [second] = await loaded(world)
    assert second.id != first.id


async def test_a_lower_maximum_takes_effect_at_once(world: World) -> None:
    nodes = [await world.node(name) for name in ("w1", "w2")]
    await put(world, min_replicas=2, max_replicas=2)
    await look(world)
    assert len(await loaded(world)) == 2
    await put(world, min_replicas=1, max_replicas=1)
    await look(world)
    assert len(await loaded(world)) == 1
    await look(world, after=HEARD_AFTER)
    assert [key for node in nodes for key in node.stopped] == ["small#0"]
    [event] = await world.events(EventKind.REPLICA_UNLOADING)
    assert (event.actor, event.data["why"]) == ("scaling", "there are more replicas than the rule allows")


async def test_one_on_every_node_and_on_those_that_join(world: World) -> None:
    await world.node("w1")
    await put(world, spread_all=True)
    await look(world)
    await world.node("w2")
    await look(world)
    assert len({replica.node_id for replica in await loaded(world)}) == 2


async def test_grows_while_busy_and_shrinks_when_idle(world: World) -> None:
    await world.node("w1"), await world.node("w2")
    await put(world, min_replicas=1, max_replicas=2)
    await look(world)
    gateways = world.control.context.serving.gateways

    def report(sequence: int, count: int, replicas: list[Replica]) -> None:
        busy = {replica.id: count for replica in replicas if count}
        gateways.take(GatewayReport(gateway="g", sequence=sequence, in_flight=busy))

    for second in range(8):
        report(second + 1, 1, await loaded(world))
        await look(world, after=timedelta(seconds=4))
    assert len(await loaded(world)) == 1
    report(20, 1, await loaded(world))
    await look(world, after=timedelta(seconds=2))
    assert [replica.why for replica in await loaded(world)] == [LoadWhy.MINIMUM, LoadWhy.BUSY]

    for minute in range(5):
        report(30 + minute, 0, [])
        await look(world, after=timedelta(seconds=4))
    await world.clock.advance(timedelta(minutes=5))
    report(50, 0, [])
    await look(world)
    assert len(await loaded(world)) == 1
    assert [event.data["why"] for event in await world.events(EventKind.REPLICA_UNLOADING)] == [
        "nobody asked it for a while"
    ]


async def test_a_changed_model_is_loaded_elsewhere_before_the_old_one_ends(world: World) -> None:
    await world.node("w1"), await world.node("w2")
    old = await world.loaded()
    await world.write(MODEL + "system_prompt: be kind\n")
    await look(world)
    assert [replica.id for replica in await loaded(world)] == [old.id]
    await look(world, after=timedelta(seconds=5))
    both = await loaded(world)
    assert {replica.node_id for replica in both} > {old.node_id}
    await look(world)
    [new] = await loaded(world)
    assert new.revision == world.control.context.models.catalogue.revision_of("small")
    assert new.why is LoadWhy.CHANGED


async def test_only_one_frontend_scales(world: World) -> None:
    await world.node("w1")
    await put(world, min_replicas=1)
    await world.control.context.serving.scaling.sweep()
    other = await world.again()
    await world.loads.tick()
    await put(world, min_replicas=2)
    await world.node("w2")
    assert await other.context.serving.scaling.sweep() is False
    assert len(await loaded(world)) == 1


async def test_a_load_that_nobody_wants_any_more_is_taken_back(world: World) -> None:
    await world.node("w1"), await world.node("w2")
    await put(world, min_replicas=2)
    await world.control.context.serving.scaling.sweep()
    assert len(await world.loads.jobs()) == 2
    await put(world, min_replicas=0)
    await world.control.context.serving.scaling.sweep()
    assert await world.loads.jobs() == []


class TestByHand:
    async def post(self, world: World, what: str, status: int, **body: str) -> Any:
        answer = await world.frontend.call("POST", f"/api/v1/model-{what}", {"name": "small", **body})
        assert answer.status == status, answer.body
        return answer.json()

    async def test_a_model_is_loaded_on_the_node_that_was_named(self, world: World) -> None:
        await world.node("w1")
        second = await world.node("w2")
        await self.post(world, "loads", 202, node="w2")
        await world.loads.tick()
        [replica] = await loaded(world)
        assert (replica.node_id, replica.why) == (second.id, LoadWhy.PERSON)
        await self.post(world, "loads", 202, node="w2")
        assert await world.loads.jobs() == []

    async def test_without_a_node_it_is_loaded_anywhere(self, world: World) -> None:
        await world.node("w1")
        assert (await self.post(world, "loads", 202))["state"] == "pending"
        await world.loads.tick()
        assert len(await loaded(world)) == 1

    async def test_what_cannot_be_is_refused_with_the_reason(self, world: World) -> None:
        await world.node("w1"), await world.node("w2")
        assert "no node has the id" in (await self.post(world, "loads", 400, node="w3"))["error"]["message"]
        await put(world, pinned_nodes=["w1"], min_replicas=1, max_replicas=1)
        refused = await self.post(world, "loads", 409, node="w2")
        assert "w2 cannot take small: it is not one of the nodes" in refused["error"]["message"]
        await look(world)
        refused = await self.post(world, "loads", 409, node="w2")
        assert "allows no more replicas: exactly 1" in refused["error"]["message"]

    async def test_unloading_is_refused_while_a_rule_wants_it(self, world: World) -> None:
        await world.node("w1")
        await put(world, min_replicas=1)
        await look(world)
        refused = await self.post(world, "unloads", 409)
        assert "the rule of scheduling of small would load it again: at least 1" in refused["error"]["message"]
