"""The door of a worker: a real process that ends TLS, with real callers of a fleet and strangers."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from corral.base.accepting import Acceptor
from corral.base.clock import SystemClock
from corral.base.errors import AddressInUse
from corral.base.tasks import running
from corral.wire.fleet_tls import FleetRole, file_server_name, port_name
from corral.worker.callers import CallerLimits
from corral.worker.door.keeper import Door, listen
from corral.worker.door.relay import DoorRelay
from corral.worker.membership.addresses import HostPort
from tests.kit.certificates import Authority
from tests.kit.fleet_tls import NODE, OTHER_NODE, TestFleet, door_command, greeter, heard
from tests.kit.waiting import eventually

FILES = file_server_name(NODE)


@dataclass(kw_only=True)
class OpenDoor:
    fleet: TestFleet
    door: Door
    port: int
    replica: int
    closed: int
    """A port of this machine that the worker did not open."""

    async def hear(self, tls: ssl.SSLContext, name: str) -> bytes:
        return await heard(self.port, b"hi", tls=tls, name=name)


@asynccontextmanager
async def opened() -> AsyncIterator[OpenDoor]:
    async with AsyncExitStack() as stack:
        files = await stack.enter_async_context(greeter(b"files"))
        health = await stack.enter_async_context(greeter(b"health"))
        replica = await stack.enter_async_context(greeter(b"replica"))
        closed = await stack.enter_async_context(greeter(b"closed"))
        listener = listen(HostPort("127.0.0.1", 0))
        door = Door(listener, door_command, SystemClock())
        door.serve(file_server=files, health=health)
        door.open_ports([replica])
        port = listener.getsockname()[1]
        await stack.enter_async_context(running(door.run(), name="door"))
        await door.until_open()
        yield OpenDoor(fleet=TestFleet(), door=door, port=port, replica=replica, closed=closed)


async def until_it_has(door: Door, wanted: bool) -> None:
    async def is_so() -> bool:
        return door.has_certificate is wanted

    await eventually(is_so, "the door's certificate")


async def shown(world: OpenDoor, *, lasts: timedelta = timedelta(hours=1)) -> None:
    world.door.show(world.fleet.identity(FleetRole.NODE, node_id=NODE, lifetime=lasts))
    await until_it_has(world.door, True)


@pytest.fixture
async def door() -> AsyncIterator[OpenDoor]:
    async with opened() as world:
        await shown(world)
        yield world


@pytest.mark.parametrize(
    ("role", "files", "replica"),
    [
        (FleetRole.CONTROL, b"files: hi", b"replica: hi"),
        (FleetRole.GATEWAY, b"", b"replica: hi"),
        (FleetRole.NODE, b"files: hi", b""),
    ],
)
async def test_each_role_reaches_what_it_needs_and_nothing_else(
    door: OpenDoor, role: FleetRole, files: bytes, replica: bytes
) -> None:
    caller = door.fleet.caller(role, node_id=OTHER_NODE if role is FleetRole.NODE else "")
    assert await door.hear(caller, FILES) == files
    assert await door.hear(caller, port_name(NODE, door.replica)) == replica
    assert await door.hear(caller, port_name(NODE, door.closed)) == b""


async def test_a_name_of_another_node_is_noticed_by_the_caller(door: OpenDoor) -> None:
    control = door.fleet.caller(FleetRole.CONTROL)
    assert await door.hear(control, port_name(OTHER_NODE, door.replica)) == b""
    assert await door.hear(control, file_server_name(OTHER_NODE)) == b""


async def test_strangers_get_no_byte(door: OpenDoor, tmp_path: Path) -> None:
    other_fleet = TestFleet().caller(FleetRole.CONTROL)
    other_fleet.check_hostname, other_fleet.verify_mode = False, ssl.CERT_NONE
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    foreign = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    foreign.check_hostname, foreign.verify_mode = False, ssl.CERT_NONE
    foreign.load_cert_chain(*Authority(tmp_path / "ca").issue("stranger"))
    for context in (other_fleet, nobody, foreign):
        for name in (FILES, port_name(NODE, door.replica)):
            assert await door.hear(context, name) == b""


async def test_callers_without_tls_reach_health_alone(door: OpenDoor) -> None:
    assert await heard(door.port, b"hi") == b"health: hi"


async def test_without_a_certificate_only_health_answers() -> None:
    async with opened() as world:
        assert await world.hear(world.fleet.caller(FleetRole.CONTROL), FILES) == b""
        assert await heard(world.port, b"hi") == b"health: hi"


async def test_an_open_connection_outlives_a_renewal_and_new_ones_see_the_new_certificate(door: OpenDoor) -> None:
    caller = door.fleet.caller(FleetRole.GATEWAY)
    name = port_name(NODE, door.replica)
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port, ssl=caller, server_hostname=name)
    first = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    door.door.show(door.fleet.identity(FleetRole.NODE, node_id=NODE))
    serials = set()
    while serials <= {first}:
        _, again = await asyncio.open_connection("127.0.0.1", door.port, ssl=caller, server_hostname=name)
        serials.add(again.get_extra_info("ssl_object").getpeercert()["serialNumber"])
        again.transport.abort()
    writer.write(b"still there\n")
    assert await reader.readline() == b"replica: still there\n"
    writer.transport.abort()


async def test_a_port_that_the_worker_closes_is_closed_here(door: OpenDoor) -> None:
    caller, name = door.fleet.caller(FleetRole.CONTROL), port_name(NODE, door.replica)
    door.door.open_ports([])
    while await door.hear(caller, name):
        pass


async def test_a_door_that_is_killed_is_followed_by_another_and_nobody_is_refused(door: OpenDoor) -> None:
    caller = door.fleet.caller(FleetRole.CONTROL)
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    await until_it_has(door.door, False)
    assert await heard(door.port, b"hi") == b"health: hi"  # it waited in the kernel's queue
    await until_it_has(door.door, True)
    assert await door.hear(caller, FILES) == b"files: hi"


async def test_large_bodies_pass_unchanged(door: OpenDoor) -> None:
    caller, name = door.fleet.caller(FleetRole.GATEWAY), port_name(NODE, door.replica)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", door.port, ssl=caller, server_hostname=name, limit=1 << 24
    )
    lines = [os.urandom(30_000).hex().encode() + b"\n" for _ in range(40)]

    async def send() -> None:
        for line in lines:
            writer.write(line)
            await writer.drain()

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        for line in lines:
            assert await reader.readline() == b"replica: " + line
    writer.transport.abort()


@pytest.mark.parametrize("said", [b"", b"\x16"], ids=["silent", "stalled"])
@pytest.mark.parametrize("sources", [1, 7])
async def test_strangers_who_say_nothing_shut_nobody_out(door: OpenDoor, said: bytes, sources: int) -> None:
    strangers = []
    try:
        for number in range(700):
            source = (f"127.0.0.{number % sources + 1}", 0)
            strangers.append(socket.create_connection(("127.0.0.1", door.port), source_address=source))
            strangers[-1].sendall(said)
        for _ in range(20):
            assert await door.hear(door.fleet.caller(FleetRole.CONTROL), FILES) == b"files: hi"
        assert await heard(door.port, b"hi") == b"health: hi"
    finally:
        for stranger in strangers:
            stranger.close()


@asynccontextmanager
async def relayed(limits: CallerLimits) -> AsyncIterator[int]:
    """A door without a certificate in this process; yields its port."""
    relay, listener = DoorRelay(limits), listen(HostPort("127.0.0.1", 0))
    port = listener.getsockname()[1]
    acceptor = Acceptor(listener, relay.take, failed=lambda error: pytest.fail(str(error)))
    try:
        yield port
    finally:
        acceptor.close()
        await relay.close()


async def ended(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


async def test_a_gateway_may_open_many_connections_at_once(door: OpenDoor) -> None:
    caller, name = door.fleet.caller(FleetRole.GATEWAY), port_name(NODE, door.replica)
    answers = await asyncio.gather(*(door.hear(caller, name) for _ in range(300)))
    assert set(answers) == {b"replica: hi"}


async def test_the_first_byte_has_a_time_out_of_its_own() -> None:
    async with relayed(CallerLimits(first_byte_seconds=0.05, opening_seconds=3600)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await ended(reader)
        writer.close()


@pytest.mark.parametrize("limits", [CallerLimits(most_opening=3), CallerLimits(most_from_one=3)])
async def test_the_oldest_caller_that_said_nothing_makes_room(limits: CallerLimits) -> None:
    async with relayed(replace(limits, first_byte_seconds=3600, opening_seconds=3600)) as port:
        callers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for reader, _ in callers[:2]:
            await ended(reader)
        assert not any(reader.at_eof() for reader, _ in callers[2:])
        for _, writer in callers:
            writer.close()


async def test_a_source_that_takes_its_share_costs_others_nothing() -> None:
    limits = CallerLimits(most_opening=9, most_from_one=3, first_byte_seconds=3600, opening_seconds=3600)
    async with relayed(limits) as port:
        other, kept = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        callers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for reader, _ in callers[:17]:
            await ended(reader)
        assert not other.at_eof()
        kept.close()
        for _, writer in callers:
            writer.close()


async def test_a_taken_address_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(AddressInUse, match="taken by another program"):
        listen(HostPort("127.0.0.1", taken.getsockname()[1]))


def children() -> list[int]:
    """The doors that this process has started."""
    return [child.pid for child in psutil.Process().children() if "corral.processes.door" in child.cmdline()]
