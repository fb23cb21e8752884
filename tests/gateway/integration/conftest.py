"""The gateway's tests run on the loop that the process uses."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from tests.kit.gateway import GatewayWorld, world
from tests.kit.leaks import ChildWatch, Snapshot, describe_descriptor, report, tasks_left

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


class _SnapshotOfLoop(Snapshot):
    """Does not count the nameless pair of sockets that this loop makes anew whenever it runs.

    Left out before anything else is done about new descriptors: each of them would be a reason to collect garbage, and
    at the end of the whole suite that takes a tenth of a second for every test.
    """

    def _new_descriptors(self) -> list[tuple[int, str]]:
        new = super()._new_descriptors()
        return [(number, what) for number, what in new if not describe_descriptor(number, what).endswith("  to ")]


@pytest.fixture
async def no_leaks_of_the_loop() -> AsyncIterator[None]:
    """As everywhere, on the loop of these tests."""
    before = _SnapshotOfLoop.take(CHILDREN)
    yield
    if leaks := [*await tasks_left(), *before.leaks()]:
        pytest.fail(report(leaks), pytrace=False)


@pytest.fixture
async def gateway() -> AsyncIterator[GatewayWorld]:
    async with world() as made:
        yield made
