"""Room is made for models that fit nowhere: what ends, what is told, and who comes first."""

from datetime import timedelta

from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.eviction import RoomPolicy
from corral.frontend.serving.decide.load_job import LoadWhy
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.unloading import HEARD_AFTER
from corral.wire.models import LoadReason
from corral.wire.view import GatewayReport
from tests.kit.world import MODEL, FakeNode, World

MIB = 1024**2
STAY = RoomPolicy().stay
ALTERNATING = 12


async def a_model(world: World, name: str, mib: int = 100, more: str = "") -> None:
    """A model with weights of this size."""
    with (world.models / f"{name}.gguf").open("wb") as weights:
        weights.truncate(mib * MIB)
    await world.write(MODEL.replace("small", name) + more, f"{name}.yaml")


async def a_small_machine(world: World, *models: str, mib: int = 250) -> FakeNode:
    """A machine with room for two models of 100 MiB; these were loaded a while ago, the first one first."""
    node = await world.node("w1", ram=mib * MIB, stops_exactly=True)
    for model in models:
        await a_model(world, model)
        await world.loaded(model)
        await world.clock.advance(timedelta(seconds=1))
    await world.clock.advance(STAY)
    return node


async def heard(world: World, *replicas: Replica, gateway: str = "g") -> None:
    """A gateway reports a request at each of these, and nothing else."""
    report = GatewayReport(gateway=gateway, sequence=0, in_flight={replica.id: 1 for replica in replicas})
    world.control.context.serving.gateways.take(report)


async def told(world: World, model: str) -> tuple[str, LoadReason | None]:
    """What somebody who asks for the model is told, after a look for a place."""
    await world.loads.ensure(model)
    await world.loads.tick()
    status = await world.loads.ensure(model)
    return status.message or status.state, status.reason


async def sweep(world: World, after: timedelta = HEARD_AFTER) -> None:
    await world.clock.advance(after)
    await world.control.context.serving.unloading.sweep()


async def states(world: World) -> dict[str, ReplicaState]:
    return {replica.model: replica.state for replica in await world.control.context.serving.replicas.living()}


async def test_the_least_recently_used_ends_by_exact_stop_and_the_new_one_is_loaded(world: World) -> None:
    node = await a_small_machine(world, "a", "b")
    await a_model(world, "c")

    assert await told(world, "c") == ("room is made on w1: a ends there", LoadReason.ROOM_IS_MADE)
    assert await states(world) == {"a": ReplicaState.UNLOADING, "b": ReplicaState.LOADED}
    assert node.exact_stops == []
    await sweep(world)
    [stop] = node.exact_stops
    assert (stop.process_key, stop.expected_address, node.stops) == ("a#0", "127.0.0.1:7000", [])
    await world.loads.tick()

    assert await states(world) == {"b": ReplicaState.LOADED, "c": ReplicaState.LOADED}
    [event] = await world.events(EventKind.REPLICA_EVICTED)
    assert (event.data["model"], event.data["for"], event.data["node"]) == ("a", "c", "w1")
    [ended] = await world.events(EventKind.REPLICA_UNLOADED)
    assert ended.data["why"] == "makes room for c"


async def test_a_process_in_the_place_of_the_one_that_is_to_end_is_ended_by_its_key(world: World) -> None:
    node = await a_small_machine(world, "a", "b")
    node.running.clear()
    node.start("a", 0)
    await a_model(world, "c")
    await told(world, "c")
    await sweep(world)

    assert [stop.process_key for stop in node.exact_stops] == node.stopped == ["a#0"]
    assert node.running == []


async def test_requests_that_are_under_way_at_the_victim_finish(world: World) -> None:
    node = await a_small_machine(world, "a", "b")
    [victim] = [one for one in await world.control.context.serving.replicas.living() if one.model == "a"]
    await a_model(world, "c")
    await told(world, "c")
    await heard(world, victim)
    await sweep(world, HEARD_AFTER)
    assert node.exact_stops == []
    await heard(world)
    await sweep(world, timedelta(seconds=1))

    assert [stop.process_key for stop in node.exact_stops] == ["a#0"]


async def test_a_busy_model_is_not_ended_and_it_is_told_who_is_waited_for(world: World) -> None:
    await a_small_machine(world, "a", mib=150)
    living = await world.control.context.serving.replicas.living()
    await heard(world, *living)
    await a_model(world, "c")

    assert await told(world, "c") == ("waits for its turn: a is busy on w1", LoadReason.WAITS_FOR_TURN)
    await heard(world)
    await world.clock.advance(timedelta(seconds=2))
    await heard(world)
    assert await told(world, "c") == ("room is made on w1: a ends there", LoadReason.ROOM_IS_MADE)


async def test_a_model_that_was_just_loaded_stays_for_its_turn(world: World) -> None:
    await a_small_machine(world, "a", mib=150)
    await a_model(world, "c")
    await told(world, "c")
    await sweep(world)
    await world.loads.tick()

    message, reason = await told(world, "a")
    assert message.startswith("waits for its turn: c stays on w1 until ")
    assert reason is LoadReason.WAITS_FOR_TURN
    await world.clock.advance(STAY)
    assert (await told(world, "a"))[0] == "room is made on w1: c ends there"


async def test_a_pinned_model_makes_no_room(world: World) -> None:
    await a_small_machine(world, "a", mib=150)
    await world.control.context.models.changes.pin("a", by="test")
    await world.control.context.models.catalogue.refresh()
    await a_model(world, "c")

    message, reason = await told(world, "c")

    assert (message, reason) == ("w1 has 40 MiB free and needs 0.1 GiB", LoadReason.NO_PLACE)
    assert await world.events(EventKind.REPLICA_EVICTED) == []


async def test_a_rival_of_the_same_concurrency_group_ends_when_it_is_idle(world: World) -> None:
    await world.node("w1", stops_exactly=True)
    group = "concurrency_groups: [big]\n"
    await a_model(world, "a", more=group)
    await world.loaded("a")
    await a_model(world, "c", more=group)

    assert (await told(world, "c"))[0].startswith("waits for its turn: a stays on w1 until ")
    await world.clock.advance(STAY)
    assert (await told(world, "c"))[0] == "room is made on w1: a ends there"
    await sweep(world)
    await world.loads.tick()
    assert await states(world) == {"c": ReplicaState.LOADED}


async def test_who_waits_longest_gets_the_place(world: World) -> None:
    await a_small_machine(world, "a", mib=150)
    await heard(world, *await world.control.context.serving.replicas.living())
    for name in ("first", "second"):
        await a_model(world, name)
        await told(world, name)
        await world.clock.advance(timedelta(seconds=1))
    await heard(world)
    await world.clock.advance(timedelta(seconds=2))
    await heard(world)
    await world.loads.tick()
    await sweep(world)
    await world.loads.tick()
    await world.clock.advance(timedelta(seconds=2))
    await world.loads.tick()

    assert await states(world) == {"first": ReplicaState.LOADED}
    [status] = [job for job in await world.loads.jobs() if job.model == "second"]
    assert status.message.startswith("waits for its turn: first stays on w1 until ")


async def test_who_only_wants_one_more_ends_nothing_until_somebody_asks(world: World) -> None:
    await a_small_machine(world, "a", mib=150)
    await a_model(world, "c")
    spec = world.control.context.models.catalogue.find("c")
    await world.loads.add(spec, why=LoadWhy.BUSY)
    await world.loads.tick()
    [job] = await world.loads.jobs()
    assert (job.why, job.reason) == (LoadWhy.BUSY, LoadReason.NO_PLACE)
    await world.clock.advance(timedelta(seconds=2))

    assert (await told(world, "c"))[0] == "room is made on w1: a ends there"


async def test_nothing_is_ended_while_the_brake_holds(world: World) -> None:
    await a_small_machine(world, "a", mib=150)
    await a_model(world, "c")
    brake = world.control.context.nodes.brake
    brake.reason = "many nodes are silent"

    assert (await told(world, "c"))[1] is LoadReason.NO_PLACE
    assert await world.events(EventKind.REPLICA_EVICTED) == []


async def test_another_frontend_goes_on_with_what_was_begun(world: World) -> None:
    await a_small_machine(world, "a", mib=150)
    await a_model(world, "c")
    await told(world, "c")
    other = await world.again()
    await other.context.models.catalogue.refresh()
    await world.clock.advance(HEARD_AFTER)
    await other.context.serving.unloading.sweep()
    await other.context.serving.loads.tick()

    assert await states(world) == {"c": ReplicaState.LOADED}


async def test_three_models_with_room_for_two_are_all_answered_in_turn(world: World) -> None:
    await world.node("w1", ram=250 * MIB, stops_exactly=True)
    for model in "abc":
        await a_model(world, model)
    refused, order = 0, []
    for number in range(ALTERNATING):
        model = "abc"[number % 3]
        for _ in range(40):
            if (await world.loads.ensure(model)).state == ReplicaState.LOADED:
                break
            refused += 1
            await world.loads.tick()
            await sweep(world)
            await world.loads.tick()
        else:
            raise AssertionError(f"{model} was not answered")
        order.append(model)
        living = [one for one in await world.control.context.serving.replicas.living() if one.model == model]
        await heard(world, *living)
        await heard(world)

    loaded = [event.data["model"] for event in await world.events(EventKind.MODEL_LOADED)]
    evicted = [event.data["model"] for event in await world.events(EventKind.REPLICA_EVICTED)]
    assert len(order) == ALTERNATING
    assert loaded == [model for model in "abc" * ALTERNATING][: len(loaded)], "each in its turn"
    assert len(evicted) == len(loaded) - 2, "one ends for each that comes"
    assert [event.data for event in await world.events(EventKind.MODEL_LOAD_FAILED)] == []
