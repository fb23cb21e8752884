"""Readers of the live stream, as many as there are open pages, without the browsers around them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from corral.base.tasks import task_group

TOPICS: Final = "attention,nodes,operations,summary"
"""What the page of the fleet follows."""

_FRAME: Final = b"event: "
_READY: Final = b"event: ready"


@dataclass(slots=True)
class Counted:
    """What all readers got together."""

    frames: int = 0
    bytes: int = 0
    ready: int = 0


@asynccontextmanager
async def reading_pages(url: str, key: str, count: int) -> AsyncIterator[Counted]:
    """So many readers; entered when all have their first snapshot."""
    counted = Counted()
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, task_group() as group:
        all_ready = asyncio.Event()
        readers = [
            group.create_task(_read(session, url, key, counted, count, all_ready), name=f"page {number}")
            for number in range(count)
        ]
        await all_ready.wait()
        yield counted
        for reader in readers:
            reader.cancel()


async def _read(
    session: aiohttp.ClientSession, url: str, key: str, counted: Counted, count: int, all_ready: asyncio.Event
) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    async with session.get(f"{url}/api/v1/live", params={"topics": TOPICS}, headers=headers) as response:
        response.raise_for_status()
        is_ready = False
        async for piece in response.content.iter_any():
            counted.bytes += len(piece)
            counted.frames += piece.count(_FRAME)
            if not is_ready and _READY in piece:
                is_ready = True
                counted.ready += 1
                if counted.ready >= count:
                    all_ready.set()
