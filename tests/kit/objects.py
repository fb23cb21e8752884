"""Object storage without a server: a dictionary that counts, and can be held, emptied and taken away."""

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO

from corral.files.storage import ObjectMissing, ObjectTooLarge, StorageUnavailable, StoredObject


class MemoryStorage:
    """One bucket. A download says when half of it is written, and waits there while `gate` is clear."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.created: dict[str, str] = {}
        self.downloads: list[str] = []
        self.is_away = False
        self.inside = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def look(self, key: str) -> StoredObject:
        content = self._get(key)
        return StoredObject(size=len(content), etag=f"{hash(content)}")

    async def download(self, key: str, target: BinaryIO, *, most: int | None = None) -> None:
        content = self._get(key)
        if most is not None and len(content) > most:
            raise ObjectTooLarge(f"{key} has {len(content)} bytes")
        self.downloads.append(key)
        half = len(content) // 2
        await asyncio.to_thread(target.write, content[:half])
        self.inside.set()
        await self.gate.wait()
        await asyncio.to_thread(target.write, content[half:])

    async def read(self, key: str, offset: int) -> AsyncIterator[bytes]:
        content = self._get(key)
        half = (len(content) + offset) // 2
        yield content[offset:half]
        self.inside.set()
        await self.gate.wait()
        self._reach()
        yield content[half:]

    async def upload(self, source: BinaryIO, key: str, *, created_at: str) -> None:
        self._reach()
        self.objects[key] = await asyncio.to_thread(source.read)
        self.created[key] = created_at

    def _get(self, key: str) -> bytes:
        self._reach()
        if key not in self.objects:
            raise ObjectMissing(f"there is no object {key}")
        return self.objects[key]

    def _reach(self) -> None:
        if self.is_away:
            raise StorageUnavailable("nobody answers")
