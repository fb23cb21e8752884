"""NATS servers on loopback that form one cluster."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from corral.bus.server import free_port
from tests.kit.plain_nats import Passwords, PlainNats

_HOST: Final = "127.0.0.1"
_READY_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.002


class _Member(PlainNats):
    """A server that shares its passwords with its peers."""

    def __init__(self, directory: Path, passwords: Passwords, *, route_port: int, peers: Collection[int]) -> None:
        cluster = {
            "name": "corral",
            "host": _HOST,
            "port": route_port,
            "authorization": {"user": "route", "password": passwords.route},
            "routes": [f"nats://route:{passwords.route}@{_HOST}:{port}" for port in peers],
            "pool_size": -1,  # one route to each peer is enough, and is up sooner
        }
        super().__init__(directory, host=_HOST, port=free_port(_HOST), extra={"cluster": cluster}, passwords=passwords)


@asynccontextmanager
async def running_cluster(directory: Path, *, size: int = 3) -> AsyncIterator[list[PlainNats]]:
    """Servers that know each other, with the same users."""
    passwords = Passwords()
    ports = [free_port(_HOST) for _ in range(size)]
    async with AsyncExitStack() as stack:
        servers: list[PlainNats] = [
            await stack.enter_async_context(
                _Member(directory / str(number), passwords, route_port=port, peers=set(ports) - {port})
            )
            for number, port in enumerate(ports)
        ]
        for server in servers:
            await _until_it_knows(server, size)
        yield servers


async def _until_it_knows(server: PlainNats, size: int) -> None:
    """Members tell clients of each other as soon as they are linked."""
    async with asyncio.timeout(_READY_SECONDS):
        while True:
            urls = (await server.greeting() or {}).get("connect_urls")
            if isinstance(urls, list) and len(urls) >= size:
                return
            await asyncio.sleep(_LOOK_SECONDS)
