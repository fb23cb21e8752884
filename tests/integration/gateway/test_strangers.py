"""What callers without a valid key cannot do to a gateway: hold its memory, its connections or its time."""

import gc
import weakref

import pytest

from corral.gateway.relay import ClientConnection
from corral.testing.gateway import KEY, World, chat, request


@pytest.mark.parametrize("is_whole", [False, True], ids=["broken off", "answered"])
async def test_a_closed_connection_leaves_no_cycle_behind(gateway: World, is_whole: bool) -> None:
    """Bodies must be freed by reference counting: the process lets the garbage collector run rarely."""
    clients: list[weakref.ref[object]] = []
    gc.collect()
    gc.disable()
    try:
        async with gateway.client() as client:
            await client.send(request(chat(text="x" * 200_000))[: None if is_whole else -5])
            if is_whole:
                await client.read_answer()
            else:
                await gateway.until(lambda: gateway.gateway.services.bodies.held > 100_000)
            connected: list[ClientConnection] = list(gateway.gateway.server._clients)
            clients = [weakref.ref(one) for one in connected] + [weakref.ref(one._reader) for one in connected]
            del connected
        assert len(clients) == 2
        await gateway.until(lambda: all(client() is None for client in clients))
    finally:
        gc.enable()
