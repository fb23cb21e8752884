"""The gateway's tests run on the loop that the process uses."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from tests.kit.gateway import GatewayWorld, world
from tests.kit.leaks import ChildWatch, Snapshot, report, tasks_left

CHILDREN = ChildWatch()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": new_loop}


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop that has listened, dialled and resolved once: for each it opens descriptors that it keeps to its end."""
    loop = uvloop.new_event_loop()
    loop.run_until_complete(_use_once())
    return loop


async def _use_once() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    transport.abort()
    server.close()
    await server.wait_closed()


@pytest.fixture
async def no_leaks_of_the_loop() -> AsyncIterator[None]:
    """As everywhere, except for the nameless pair of sockets that this loop makes anew whenever it runs."""
    before = Snapshot.take(CHILDREN)
    yield
    leaks = [*await tasks_left(), *before.leaks()]
    if leaks := [leak for leak in leaks if not leak.endswith("  to ")]:
        pytest.fail(report(leaks), pytrace=False)


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayWorld]:
    async with world() as made:
        yield made
