import asyncio
import threading

import aiohttp
import pytest

from tests.kit.file_server import FileServer, Stall


async def _ask(url: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        await response.read()


async def test_a_server_ends_although_a_test_that_failed_let_no_stall_go() -> None:
    server, stall = FileServer().__enter__(), Stall(3)
    url = server.add("/weights", b"abcdef")
    server.faults["/weights"].append(stall)
    asking = asyncio.ensure_future(_ask(url))
    await asyncio.to_thread(stall.reached.wait, 60)

    try:
        await asyncio.wait_for(asyncio.to_thread(server.__exit__), 60)
    finally:
        stall.let_go()
        with pytest.raises(aiohttp.ClientError):
            await asking


def test_a_stall_that_is_reached_as_the_server_ends_holds_nobody() -> None:
    with FileServer() as server:
        pass
    held = threading.Event()

    server.hold(held)

    assert held.is_set()
