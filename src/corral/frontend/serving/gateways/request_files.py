"""Files of single requests to nodes without a file server: sounds that are sent, results that are fetched, and the
removal of what is left of them.

They go through the object storage, under the keys that LocalAI's frontends use, and stay there no longer than it takes.
The adapter of this frontend asks for it; both see the files of this machine.
"""

import logging
import os
import secrets
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.tasks import in_thread
from corral.files.storage import SharedStorage, StorageUnavailable
from corral.frontend.nodes.client import NodeRefused
from corral.frontend.nodes.node_storage import FILE_WITHIN, NodeStorage
from corral.frontend.store.leases import Leader
from corral.wire.adapter import PASSED_BYTES, FilePassed, FileVerb, FileWish
from corral.wire.files import EnsureRequest, StageRequest
from corral.wire.go_json import format_time

log = logging.getLogger(__name__)


class RequestFiles:
    def __init__(self, storage: SharedStorage | None, nodes: NodeStorage, clock: Clock) -> None:
        self._storage = storage
        self._nodes = nodes
        self._clock = clock

    async def passed(self, node_id: NodeId | None, wish: FileWish) -> FilePassed:
        """Pass a file; the answer says why it could not be, without addresses: clients read it."""
        try:
            path = await self._pass(node_id, wish)
        except (CorralError, OSError) as error:
            log.warning("a file was not passed: %s", error, extra={"event": "request.file_not_passed", "node": node_id})
            problem = "there is no way to it" if self._storage is None else "the object storage or the machine failed"
            return FilePassed(number=wish.number, error=problem)
        return FilePassed(number=wish.number, path=path)

    async def _pass(self, node_id: NodeId | None, wish: FileWish) -> str:
        if self._storage is None or node_id is None:
            raise CorralError("there is neither a file server nor an object storage")
        match wish.verb:
            case FileVerb.GIVE:
                return await self._give(self._storage, node_id, Path(wish.path))
            case FileVerb.PLACE:
                return await self._nodes.temporary(node_id)
            case FileVerb.FETCH:
                return await self._fetch(self._storage, node_id, wish)

    async def _give(self, storage: SharedStorage, node_id: NodeId, file: Path) -> str:
        key = f"ephemeral/inputs/{secrets.token_hex(4)}/{file.name}"
        try:
            with await in_thread(lambda: file.open("rb")) as source:
                await storage.upload(source, key, created_at=format_time(self._clock.now()))
            reply = await self._nodes.ensure(node_id, EnsureRequest(key=key), timeout=FILE_WITHIN)
        finally:
            await self._forget(storage, key)
        if not reply.local_path:
            raise NodeRefused(reply.error or "the node did not say why", node_id=node_id)
        return reply.local_path

    async def _fetch(self, storage: SharedStorage, node_id: NodeId, wish: FileWish) -> str:
        key = f"ephemeral/fetch/{wish.path}/output"
        try:
            await self._nodes.stage(node_id, StageRequest(local_path=wish.path, key=key))
            with await in_thread(lambda: os.fdopen(_created(wish.target), "wb")) as target:
                await storage.download(key, target, most=PASSED_BYTES)
        finally:
            await self._forget(storage, key)
        return wish.target

    async def _forget(self, storage: SharedStorage, key: str) -> None:
        """What cannot be removed now is removed by `LeftObjects`."""
        with suppress(CorralError):
            await storage.delete([key])


def _created(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


LEFT_PERIOD: Final = timedelta(minutes=15)
_OLD: Final = timedelta(hours=1)
_PREFIX: Final = "ephemeral/"


class LeftObjects:
    def __init__(self, storage: SharedStorage, leader: Leader, clock: Clock) -> None:
        self._storage = storage
        self._leader = leader
        self._clock = clock

    async def sweep(self) -> None:
        """Remove what is older than any request. A storage that is away is for the next time."""
        if not await self._leader.holds("left objects", duration=LEFT_PERIOD * 2, renew_below=LEFT_PERIOD / 2):
            return
        count = 0
        try:
            async for keys in self._storage.older_than(_PREFIX, self._clock.now() - _OLD):
                await self._storage.delete(keys)
                count += len(keys)
        except StorageUnavailable as error:
            log.info("the object storage was not swept: %s", error, extra={"event": "objects.not_swept"})
        if count:
            log.info("removed %d objects of requests", count, extra={"event": "objects.swept", "count": count})
