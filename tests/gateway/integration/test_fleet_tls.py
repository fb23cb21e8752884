"""A gateway asks replicas through the TLS doors of their workers, and only those that prove which node they are."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from corral.base.tls_keys import PrivateKey
from corral.gateway.dialling import FleetDialler
from corral.wire.fleet_tls import FleetRole, IssuedCertificate
from corral.wire.view import ReplicaEntry
from tests.kit.clock import ManualClock
from tests.kit.fleet_tls import NODE, OTHER_NODE, TestFleet, node_door
from tests.kit.gateway import GatewayWorld, chat, replicas, request

FLEET = TestFleet()


def sign(csr: str) -> IssuedCertificate:
    return FLEET.authority.issue(csr, FleetRole.GATEWAY, lifetime=timedelta(hours=1))


def behind(world: GatewayWorld, port: int, *, node_id: str = NODE) -> dict[str, ReplicaEntry]:
    (entry,) = replicas(world.engine).values()
    return {entry.id: msgspec.structs.replace(entry, node_id=node_id, door=f"127.0.0.1:{port}")}


def engine_port(world: GatewayWorld) -> int:
    return int(world.engine.url.rpartition(":")[2])


async def tell(world: GatewayWorld, entries: dict[str, ReplicaEntry]) -> None:
    """Change the view, and wait until the gateway knows."""
    world.control.change(replicas=entries)
    await world.until(lambda: world.gateway.services.directory.version == world.control.view.version)


def ask() -> bytes:
    return request(chat(stream=False))


async def test_requests_go_through_the_door_of_the_node(gateway: GatewayWorld) -> None:
    gateway.control.sign = sign
    identity = FLEET.identity(FleetRole.NODE, node_id=NODE)
    async with node_door(identity, [engine_port(gateway)]) as port:
        await tell(gateway, behind(gateway, port))
        for _ in range(3):
            assert (await gateway.ask(ask())).status == 200
        (kept,) = [origin for origin in gateway.gateway.services.pool._idle if origin.door]
        assert (kept.door, kept.node) == (f"127.0.0.1:{port}", NODE)
        assert gateway.control.signed == 1  # not one for each connection
        gateway.control.change(replicas={})
        await gateway.until_quiet()


async def test_another_node_with_a_good_certificate_gets_no_prompt(gateway: GatewayWorld) -> None:
    gateway.control.sign = sign
    impostor = FLEET.identity(FleetRole.NODE, node_id=OTHER_NODE)
    async with node_door(impostor, [engine_port(gateway)]) as port:
        await tell(gateway, behind(gateway, port))
        answer = await gateway.ask(ask())
        assert answer.status == 502
        assert not gateway.engine.requests
        gateway.control.change(replicas={})


async def test_a_node_of_another_fleet_gets_no_prompt(gateway: GatewayWorld) -> None:
    gateway.control.sign = sign
    stranger = TestFleet().identity(FleetRole.NODE, node_id=NODE)
    async with node_door(stranger, [engine_port(gateway)]) as port:
        await tell(gateway, behind(gateway, port))
        assert (await gateway.ask(ask())).status == 502
        assert not gateway.engine.requests
        gateway.control.change(replicas={})


async def test_a_certificate_is_renewed_in_time_and_serving_goes_on_without_control(gateway: GatewayWorld) -> None:
    gateway.control.sign = sign
    fleet = gateway.gateway.services.fleet
    identity = FLEET.identity(FleetRole.NODE, node_id=NODE)
    async with node_door(identity, [engine_port(gateway)]) as port:
        await tell(gateway, behind(gateway, port))
        assert (await gateway.ask(ask())).status == 200
        await fleet.renew()
        assert gateway.control.signed == 2
        await gateway.control.stop()
        gateway.gateway.services.pool.keep_only(())  # so that the next request opens a connection
        assert (await gateway.ask(ask())).status == 200
        assert await fleet.step() > 0  # it is not due, and control is not asked


async def test_a_clock_that_is_set_back_does_not_put_off_the_renewal() -> None:
    clock, asked = ManualClock(), []

    async def ask(csr: str) -> IssuedCertificate:
        asked.append(csr)
        return sign(csr)

    fleet = FleetDialler(asyncio.get_running_loop(), ask=ask, new_key=PrivateKey, clock=clock)
    await fleet.step()
    clock.jump(-timedelta(days=30))
    await clock.advance(timedelta(minutes=29))
    assert await fleet.step() == pytest.approx(60, abs=1)
    await clock.advance(timedelta(minutes=1))
    await fleet.step()
    assert len(asked) == 2
