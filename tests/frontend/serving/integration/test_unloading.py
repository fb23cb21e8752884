"""Models whose files were changed or deleted: what becomes of their replicas."""

from datetime import timedelta

import msgspec

from corral.bus.port import Message
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.unloading import DRAIN_WITHIN, HEARD_AFTER, SETTLED_AFTER
from corral.wire import subjects
from corral.wire.models import ModelStopReply
from corral.wire.view import GatewayReport
from tests.kit.world import MODEL, World, view_of


async def sweep(world: World, *, after: timedelta = timedelta(0)) -> None:
    await world.clock.advance(after)
    await world.control.context.serving.scaling.sweep()
    await world.control.context.serving.unloading.sweep()


async def state_of(world: World, replica: Replica) -> ReplicaState:
    stored = await world.control.context.serving.replicas.get(replica.id)
    assert stored is not None
    return stored.state


async def test_the_replica_of_a_deleted_model_is_stopped_by_its_exact_key(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    await world.delete()
    await sweep(world)
    await sweep(world, after=SETTLED_AFTER)
    assert (await state_of(world, replica), node.stopped) == (ReplicaState.UNLOADING, [])
    await sweep(world, after=HEARD_AFTER)

    assert node.stopped == ["small#0"]
    assert await state_of(world, replica) is ReplicaState.IDLE
    (begun,) = await world.events(EventKind.REPLICA_UNLOADING)
    (ended,) = await world.events(EventKind.REPLICA_UNLOADED)
    assert begun.data["why"] == ended.data["why"] == "the model was deleted"
    assert await world.loads.jobs() == []


async def test_a_replica_that_leaves_service_ends_also_after_the_clock_was_set_back(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    await world.delete()
    await sweep(world)
    await sweep(world, after=SETTLED_AFTER)
    assert await state_of(world, replica) is ReplicaState.UNLOADING
    world.clock.jump(timedelta(hours=-1))
    await sweep(world, after=HEARD_AFTER)

    assert (await state_of(world, replica), node.stopped) == (ReplicaState.IDLE, ["small#0"])


async def test_a_changed_model_is_loaded_anew_with_its_new_configuration(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    await world.write(MODEL + "system_prompt: be kind\n")
    await sweep(world)
    await sweep(world, after=SETTLED_AFTER)
    assert (await view_of(world.control)).replicas == {}
    await world.loads.tick()
    assert len(node.installs) == 1
    await sweep(world, after=HEARD_AFTER)
    await world.loads.tick()

    (again,) = [one for one in await world.control.context.serving.replicas.living()]
    assert again.revision != replica.revision
    assert again.revision == world.control.context.models.catalogue.revision_of("small")
    assert (await state_of(world, replica), again.key) == (ReplicaState.IDLE, "k2")
    assert node.installs[-1].corral.model.system_prompt == "be kind"  # type: ignore[union-attr]
    await sweep(world, after=SETTLED_AFTER)
    assert await state_of(world, again) is ReplicaState.LOADED


async def test_a_change_that_is_taken_back_at_once_ends_nothing(world: World) -> None:
    await world.node("w1")
    replica = await world.loaded()
    await world.write(MODEL + "threads: 2\n")
    await sweep(world)
    await world.write(MODEL)
    await sweep(world, after=SETTLED_AFTER)
    await world.write(MODEL + "threads: 3\n")
    await sweep(world, after=SETTLED_AFTER)

    assert await state_of(world, replica) is ReplicaState.LOADED


async def test_a_file_that_cannot_be_read_deletes_no_model(world: World) -> None:
    await world.node("w1")
    replica = await world.loaded()
    for text in ("name: [", "", "name: small\nbackend: ../x\n"):
        await world.write(text)
        await sweep(world)
        await sweep(world, after=SETTLED_AFTER * 2)

    assert await state_of(world, replica) is ReplicaState.LOADED


async def test_a_directory_that_is_gone_deletes_no_model(world: World) -> None:
    await world.node("w1")
    replica = await world.loaded()
    world.models.rename(world.models.with_name("elsewhere"))
    await world.control.context.models.watch.look()
    await sweep(world)
    await sweep(world, after=SETTLED_AFTER * 2)
    assert (await view_of(world.control)).replicas
    again = await world.again()
    await again.context.serving.unloading.sweep()
    await world.clock.advance(SETTLED_AFTER * 2)
    await again.context.serving.unloading.sweep()

    assert await state_of(world, replica) is ReplicaState.LOADED


async def test_requests_under_way_get_their_time_and_no_more(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    gateways = world.control.context.serving.gateways
    gateways.take(GatewayReport(gateway="g", sequence=1, in_flight={replica.id: 1}))
    await world.delete()
    await sweep(world)
    await sweep(world, after=SETTLED_AFTER)
    for _ in range(5):
        gateways.take(GatewayReport(gateway="g", sequence=2, in_flight={replica.id: 1}))
        await sweep(world, after=DRAIN_WITHIN / 10)
    assert node.stopped == []
    await sweep(world, after=DRAIN_WITHIN / 2)

    assert node.stopped == ["small#0"]


async def test_a_place_is_free_only_when_the_node_says_so(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    node.deaf = True
    await world.delete()
    await sweep(world)
    await sweep(world, after=SETTLED_AFTER)
    await sweep(world, after=HEARD_AFTER)
    await sweep(world, after=HEARD_AFTER)
    assert (await state_of(world, replica), node.stopped) == (ReplicaState.UNLOADING, ["small#0"] * 2)
    node.deaf = False
    await sweep(world)

    assert await state_of(world, replica) is ReplicaState.IDLE


async def test_a_model_that_became_an_alias_frees_its_replica(world: World) -> None:
    node = await world.node("w1")
    await world.loaded()
    await world.write(MODEL.replace("small", "other"), "other.yaml")
    await world.write("name: small\nalias: other\n")
    await sweep(world)
    await sweep(world, after=SETTLED_AFTER)
    await sweep(world, after=HEARD_AFTER)

    assert node.stopped == ["small#0"]
    assert await world.loads.jobs() == []


async def test_a_load_whose_model_was_deleted_gives_its_place_back(world: World) -> None:
    await world.node("w1")
    await world.loads.ensure("small")
    (held,) = await world.loads.claim()
    placed = await world.loads._work.place(held, {})
    assert placed is not None
    world.loads._working.clear()
    await world.delete()
    await world.clock.advance(timedelta(minutes=1))

    assert await world.loads.claim() == []
    assert await world.control.context.serving.replicas.living() == []


async def test_a_process_that_took_the_place_while_the_node_was_asked_is_left_alone(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    replicas = world.control.context.serving.replicas

    async def other_frontend_was_faster(message: Message) -> None:
        await replicas.end(replica.id, at=world.clock.now(), events=[])
        node.running.clear()
        node.start("small", 0)
        await message.respond(msgspec.json.encode(ModelStopReply(matched=True, terminated=False)))

    subscription = await world.bus.subscribe(subjects.model_stop(node.id), other_frontend_was_faster)
    world.stack.push_async_callback(subscription.close)
    await replicas.unload(replica.id, reason="test", at=world.clock.now(), events=[])
    await sweep(world, after=HEARD_AFTER)

    assert node.stopped == []
    assert len(node.running) == 1
