"""What callers without a valid key cannot do to a gateway: hold its memory, its connections or its time."""

import gc
import weakref

import pytest

from corral.gateway.relay import ClientConnection
from corral.testing.gateway import World, chat, request


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


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_pages_that_control_cannot_give_are_refused_with_the_headers_of_pages(
    gateway: World, version: str, method: str
) -> None:
    await gateway.control.stop()
    data = request(method=method, path="/", key=None, version=version)
    answer = await gateway.ask(data, is_head=method == "HEAD")
    assert answer.status == 503
    assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
