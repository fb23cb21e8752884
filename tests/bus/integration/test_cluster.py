"""Three servers: losing one moves its clients on, also to servers that they were never told of."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import NoResponders
from corral.bus.port import Message
from tests.kit.nats_cluster import running_cluster
from tests.kit.plain_nats import PlainNats

LONG = timedelta(seconds=20)


async def echo(message: Message) -> None:
    await message.respond(message.data)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[list[PlainNats]]:
    async with running_cluster(tmp_path) as servers:
        yield servers


async def test_messages_cross_the_cluster(cluster: list[PlainNats], open_bus: Any) -> None:
    worker = await open_bus(cluster[0].worker_url)
    frontend = await open_bus(cluster[1].frontend_url)
    await worker.bus.subscribe("nodes.n1.backend.list", echo)
    await worker.bus.flush()
    assert await _ask(frontend.bus, "nodes.n1.backend.list") == b"?"


@pytest.mark.parametrize("told_of", [3, 1], ids=["told of all", "told of one"])
async def test_the_death_of_a_server_moves_its_clients_on(
    cluster: list[PlainNats], open_bus: Any, told_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.sample", lambda endpoints, _: list(endpoints))
    urls = ",".join(server.worker_url for server in cluster[:told_of])
    worker = await open_bus(urls)
    frontend = await open_bus(cluster[2].frontend_url)
    await worker.bus.subscribe("nodes.n1.backend.list", echo)
    assert await _ask(frontend.bus, "nodes.n1.backend.list") == b"?"
    await worker.becomes(connected=True)

    await cluster[0].kill()

    await worker.becomes(connected=False)
    await worker.becomes(connected=True)
    assert await _ask(frontend.bus, "nodes.n1.backend.list") == b"?"


async def _ask(bus: Any, subject: str) -> bytes:
    """Interest spreads between servers a moment after it is confirmed to the client: ask until somebody is there."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer: bytes = await bus.request(subject, b"?", timeout=LONG)
            except NoResponders:
                continue
            return answer
