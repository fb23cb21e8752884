"""Cold loads beside operations: what was deleted may come back, what is being deleted does not."""

import asyncio
from datetime import timedelta

import pytest

from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation, OperationState
from corral.galleries.build_uris import BackendRef
from tests.kit.frontend import TRUSTED_TOKEN
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.world import World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""


async def operated(world: World, verb: Verb) -> None:
    await world.control.context.backends.operations.start(Ask(verb=verb, ref=BackendRef(backend="echo"), by="me"))
    await world.control.context.operations.dispatcher.tick()
    await world.clock.advance(timedelta(seconds=1))


async def with_a_deleted_backend(world: World) -> SimulatedBackends:
    node = await world.backends("w")
    await operated(world, Verb.INSTALL)
    await operated(world, Verb.DELETE)
    return node


async def test_a_load_wants_a_deleted_backend_again(world: World) -> None:
    node = await with_a_deleted_backend(world)
    await world.loads.ensure("small")
    await world.loads.tick()
    newest = (await world.control.context.operations.stores.operations.newest(limit=1))[0]
    assert (newest.verb, newest.asked_by, newest.state) == (Verb.INSTALL, "control", OperationState.RUNNING)
    assert "echo" in node.disk


async def test_an_install_is_over_as_soon_as_the_node_reports_what_the_load_installed(world: World) -> None:
    """It waits for a minute, so that the load does it, and was shown as running for as long."""
    node = await with_a_deleted_backend(world)
    await world.loads.ensure("small")
    await world.loads.tick()
    backends, operations = world.control.context.backends, world.control.context.operations
    asked = len(node.requests)

    await backends.inventory.refresh([node.node_id])
    await operations.dispatcher.tick()

    newest = (await operations.stores.operations.newest(limit=1))[0]
    assert (newest.verb, newest.state, len(node.requests)) == (Verb.INSTALL, OperationState.DONE, asked)


async def test_a_load_does_not_hinder_a_delete(world: World) -> None:
    node = await world.backends("w")
    await operated(world, Verb.INSTALL)
    node.faults.refusal = "busy"
    await operated(world, Verb.DELETE)
    asked = len(node.requests)
    await world.loads.ensure("small")
    await world.loads.tick()
    status = await world.loads.ensure("small")
    assert (status.state, len(node.requests)) == ("failed", asked)
    assert "about to be deleted" in status.message


async def test_a_delete_waits_for_the_install_of_a_load(world: World) -> None:
    """The backend is not there yet, which proves nothing: without a delete it would stay."""
    node = await world.backends("w")
    node.gate.clear()
    await world.loads.ensure("small")
    load = asyncio.create_task(world.loads.tick())
    await node.begun.wait()

    operations = world.control.context.operations
    ask = Ask(verb=Verb.DELETE, ref=BackendRef(backend="echo"), by="me")
    delete = await world.control.context.backends.operations.start(ask)
    node.looked_at.clear()
    deleting = asyncio.create_task(operations.dispatcher.tick())
    await node.looked_at.wait()
    node.gate.set()
    await load
    await deleting
    await world.clock.advance(timedelta(minutes=1))
    await operations.dispatcher.tick()

    assert "echo" not in node.disk
    assert (await operations.stores.operations.get(delete.id)).state is OperationState.DONE


async def asked_to_delete(world: World) -> Operation:
    ask = Ask(verb=Verb.DELETE, ref=BackendRef(backend="echo"), by="me")
    return await world.control.context.backends.operations.start(ask)


async def outcome(world: World, operation: Operation) -> OperationState:
    return (await world.control.context.operations.stores.operations.get(operation.id)).state


async def in_a_minute(world: World) -> None:
    await world.clock.advance(timedelta(minutes=1))
    await world.control.context.operations.dispatcher.tick()


@pytest.mark.parametrize("is_corral", [True, False], ids=["corral", "localai"])
async def test_a_delete_outlasts_the_install_of_a_load_that_was_given_up(world: World, is_corral: bool) -> None:
    """The worker knows nothing of the end of the load, and installs the backend all the same."""
    node = await world.backends("w", is_corral=is_corral)
    node.gate.clear()
    await world.loads.ensure("small")
    load = asyncio.create_task(world.loads.tick())
    await node.begun.wait()
    serving = world.control.context.serving
    (replica,) = await serving.replicas.living()
    await serving.replicas.lose([replica.id], reason="offline", at=world.clock.now(), events=[])
    load.cancel()

    delete = await asked_to_delete(world)
    node.looked_at.clear()
    deleting = asyncio.create_task(world.control.context.operations.dispatcher.tick())
    await node.looked_at.wait()
    if not is_corral:
        await deleting  # it is not asked while the install might overtake the delete
        assert await outcome(world, delete) is OperationState.RUNNING
    node.gate.set()
    await deleting
    await node.finished.wait()
    await in_a_minute(world)

    assert "echo" not in node.disk
    assert await outcome(world, delete) is OperationState.DONE


async def test_an_absence_that_was_reported_before_an_install_landed_proves_no_delete(world: World) -> None:
    node = await world.backends("w")
    node.gate.clear()
    await world.loads.ensure("small")
    load = asyncio.create_task(world.loads.tick())
    await node.begun.wait()
    delete = await asked_to_delete(world)

    async def land() -> None:
        node.outdates = None
        node.gate.set()
        await load

    node.outdates = land
    await world.control.context.operations.dispatcher.tick()
    await in_a_minute(world)

    assert "echo" not in node.disk
    assert await outcome(world, delete) is OperationState.DONE


async def test_a_refused_install_of_a_load_does_not_delay_a_delete(world: World) -> None:
    node = await world.backends("w", is_corral=False)
    node.faults.refusal = "no such backend"
    await world.loads.ensure("small")
    await world.loads.tick()
    delete = await asked_to_delete(world)
    await world.control.context.operations.dispatcher.tick()
    assert await outcome(world, delete) is OperationState.DONE


async def test_the_restart_of_a_worker_ends_what_loads_asked_of_it(world: World) -> None:
    node = await world.backends("w", is_corral=False)
    node.faults.silent = True
    await world.loads.ensure("small")
    load = asyncio.create_task(world.loads.tick())
    await node.finished.wait()
    load.cancel()
    node.disk.clear()
    await world.frontend.register({"name": "w", "address": "127.0.0.1:50051"}, token=TRUSTED_TOKEN)
    delete = await asked_to_delete(world)
    await world.control.context.operations.dispatcher.tick()
    assert await outcome(world, delete) is OperationState.DONE
