"""Files to nodes through an object storage: a file is stored once, under its digest, and every node fetches it itself.

Workers of Corral fetch by digest to where their file server has files, so what was brought on one way is found on the
other. Workers of LocalAI keep what they fetched under its key and never look again whether it changed; so an object
that one of them may have is never replaced, and a changed file gets another key.
"""

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import PurePath
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from corral.base.clock import Clock
from corral.base.errors import BusUnavailable, CorralError
from corral.base.ids import NodeId
from corral.base.tasks import first_failure, in_thread, task_group
from corral.files.file_peer import LocalFileChanged
from corral.files.sending import FileMark, PeerDiskFull, WrongDigest
from corral.files.storage import FileToStore, ObjectMissing, SharedStorage, StorageUnavailable
from corral.frontend.models.local_files import LocalFile, LocalFiles
from corral.frontend.nodes.client import NodeBusy
from corral.frontend.nodes.contacts import NodeUnreachable
from corral.frontend.nodes.node_storage import NodeStorage
from corral.frontend.serving.staging.decide.paths import content_key, own_key, version_of
from corral.frontend.serving.staging.http_carrier import Keeping, keep_no_record
from corral.frontend.serving.staging.service import FileRoute, NoRoute, RouteUnusable, StagingWatch, common_base
from corral.wire.files import BUSY, EnsureRequest, EnsureWish, LocalPathReply
from corral.wire.go_json import format_time

log = logging.getLogger(__name__)

PER_NODE: Final = 4
_TRIES: Final = 3
"""Times that a file is brought that changes meanwhile, or whose object turns out to be damaged."""
_ASK_SECONDS: Final = 2.0
"""How often a node of Corral tells how far it is."""
_ANSWER_WITHIN: Final = timedelta(seconds=30)
_PATIENCE_SECONDS: Final = 60.0
"""So long a node may get nothing, whatever is tried."""
_HASHED: Final = 50 * 1024 * 1024
"""Bytes a second that a node hashes at least; it may have to look at a file that it has."""
_SLOWEST: Final = 2 * 1024 * 1024
"""Bytes a second that are expected of a node of LocalAI's at least, which does not say how far it is."""
_REST_SECONDS: Final = 30.0
"""So long nobody tries a storage that does not work."""
_PAUSE_SECONDS: Final = 1.0
_SHOWN: Final = 300
_PASSING: Final = frozenset({"", BUSY, StorageUnavailable.code})
"""What a worker may say that asking again can cure."""


class DigestedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the models directory with exactly these bytes."""

    path: str
    mark: FileMark
    digest: str


class _StoringListener(msgspec.Struct, frozen=True):
    """Hears of the first of two legs."""

    watch: StagingWatch
    path: str

    def present(self, count: int) -> None:
        self.watch.present(self.path, count // 2)

    def sent(self, count: int) -> None:
        self.watch.sent(self.path, count, legs=2)


class ObjectCarrier:
    """Reaches the nodes that were told of the same storage."""

    def __init__(
        self,
        files: LocalFiles,
        storage: SharedStorage,
        nodes: NodeStorage,
        fetches_by_digest: Callable[[NodeId], Awaitable[bool]],
        clock: Clock,
        keeping: Keeping = keep_no_record,
    ) -> None:
        """`fetches_by_digest` tells workers of Corral from others. What those get is kept as what came over HTTP."""
        self.keeping = keeping
        self.files = files
        self.nodes = nodes
        self._storage = storage
        self._fetches_by_digest = fetches_by_digest
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._rests_until = 0.0

    @asynccontextmanager
    async def route_to(self, node_id: NodeId) -> AsyncIterator[FileRoute | None]:
        yield None if time.monotonic() < self._rests_until else ObjectRoute(self, node_id)

    async def way_to(self, node_id: NodeId) -> "_ObjectWay":
        """How this node fetches objects. NoRoute: it was not told of any storage."""
        if not await self.nodes.is_known(node_id):
            raise NoRoute("the worker was told of no object storage")
        return DigestWay(self, node_id) if await self._fetches_by_digest(node_id) else KeyWay(self, node_id)

    async def digested(self, path: str) -> DigestedFile:
        """The file as it is now. Its digest may have to be computed."""
        stop = threading.Event()

        def work() -> DigestedFile:
            with self.files.opened(path) as (descriptor, mark):
                return DigestedFile(path=path, mark=mark, digest=self.files.digest(path, descriptor, mark, stop=stop))

        return await in_thread(work, stop=stop.set)

    async def stored_digest(self, key: str) -> str | None:
        """The digest of an object; None: there is none."""
        with self._unusable():
            try:
                return (await self._storage.look(key)).digest
            except ObjectMissing:
                return None

    async def store(self, key: str, file: DigestedFile, watch: StagingWatch) -> bool:
        """Have the file in the storage; whether anything had to be sent. Several callers send it once."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock, AsyncExitStack() as stack:
            if await self.stored_digest(key) == file.digest:
                return False
            opened = self.files.opened(file.path)
            descriptor, mark = await in_thread(lambda: stack.enter_context(opened))
            if mark != file.mark:
                raise LocalFileChanged(f"{file.path} changed while it was sent")
            listener = _StoringListener(watch, file.path)
            outgoing = FileToStore(name=file.path, descriptor=descriptor, mark=mark, listener=listener)
            created_at = format_time(self._clock.now())
            with self._unusable():
                await self._storage.store(outgoing, key, digest=file.digest, created_at=created_at)
        return True

    async def discard(self, key: str) -> None:
        """Remove an object that turned out to be damaged."""
        with self._unusable():
            await self._storage.delete([key])

    def _unusable(self) -> "_StorageFailures":
        return _StorageFailures(self)

    def rest(self) -> None:
        self._rests_until = time.monotonic() + _REST_SECONDS


class _StorageFailures:
    """Turns the failures of the storage into RouteUnusable; for a while nobody tries it again."""

    def __init__(self, carrier: ObjectCarrier) -> None:
        self._carrier = carrier

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, StorageUnavailable):
            self._carrier.rest()
            raise RouteUnusable(error.message) from error


class ObjectRoute:
    """To one node, whose directories nobody sees on this way."""

    def __init__(self, carrier: ObjectCarrier, node_id: NodeId) -> None:
        self._carrier = carrier
        self._node_id = node_id

    async def same_directory(self) -> PurePath | None:
        return None

    async def found(self, model: str, path: str) -> PurePath | None:
        return None

    async def shared(self, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath | None:
        return None

    async def carry(self, model: str, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath:
        return await (await self._carrier.way_to(self._node_id)).carry(model, files, watch)


class _ObjectWay(ABC):
    """How a node gets files, by what it is."""

    def __init__(self, carrier: ObjectCarrier, node_id: NodeId) -> None:
        self._carrier = carrier
        self._node_id = node_id

    @abstractmethod
    async def carry(self, model: str, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath: ...

    async def _all(self, files: Sequence[LocalFile], bring: Callable[[LocalFile], Awaitable[str]]) -> PurePath:
        """Bring several at once; the first failure ends all."""
        paths: dict[str, str] = {}
        left = iter(files)

        async def lane() -> None:
            for file in left:
                paths[file.path] = await bring(file)

        with first_failure(CorralError):
            async with task_group() as group:
                for number in range(min(PER_NODE, len(files))):
                    group.create_task(lane(), name=f"objects {number}")
        return common_base(files, [paths[file.path] for file in files])

    async def _ask(
        self, request: EnsureRequest, patience: "_NodePatience", *, still_silent: Callable[[], None] = lambda: None
    ) -> LocalPathReply | None:
        """The answer; None: none came, and another attempt makes sense. `still_silent`: the node was asked, works on
        it for all that is known, and may do so for longer."""
        try:
            return await self._carrier.nodes.ensure(self._node_id, request, timeout=_ANSWER_WITHIN)
        except (NodeUnreachable, NodeBusy, BusUnavailable) as error:
            await patience.failed(error.message)
            if isinstance(error, NodeBusy):
                still_silent()
            return None


class _NodePatience:
    """Gives a node up that gets nothing for a while."""

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._furthest = 0

    def heard(self, present: int) -> int:
        """How many bytes are new."""
        news = max(0, present - self._furthest)
        if news:
            self._furthest, self._until = present, time.monotonic() + self._seconds
        return news

    async def failed(self, why: str) -> None:
        if time.monotonic() > self._until:
            raise RouteUnusable(f"{self._path}: the node got nothing for {self._seconds:.0f} s: {why[:_SHOWN]}")
        await asyncio.sleep(_PAUSE_SECONDS)


class DigestWay(_ObjectWay):
    """To a worker of Corral."""

    async def carry(self, model: str, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath:
        async with self._carrier.keeping(model, self._node_id, files, watch):
            return await self._all(files, lambda file: self._bring(model, file, watch))

    async def _bring(self, model: str, file: LocalFile, watch: StagingWatch) -> str:
        for left in reversed(range(_TRIES)):
            watch.begin(file.path)
            digested = await self._carrier.digested(file.path)
            try:
                path = await self._have(own_key(model, file.path), digested, watch)
            except (LocalFileChanged, WrongDigest):
                self._carrier.files.forget(file.path, digested.mark)
                if not left:
                    raise
            else:
                watch.done(file.path)
                return path
        raise AssertionError("not reached")

    async def _have(self, place: str, file: DigestedFile, watch: StagingWatch) -> str:
        """Ask until the node has it. What it does not find in the storage is put there, once."""
        key, patience, legs = (
            content_key(file.digest),
            _NodePatience(file.path, _PATIENCE_SECONDS + file.mark.size / _HASHED),
            1,
        )
        wish = EnsureWish(digest=file.digest, size=file.mark.size, place=place, wait=_ASK_SECONDS)
        is_stored = False
        while True:
            reply = await self._ask(EnsureRequest(key=key, corral=wish), patience)
            if reply is None:
                continue
            if reply.local_path:
                return reply.local_path
            if (corral_reply := reply.corral) is not UNSET and corral_reply.is_missing and not is_stored:
                legs, is_stored = (2 if await self._carrier.store(key, file, watch) else 1), True
                continue
            if corral_reply is not UNSET and corral_reply.code == WrongDigest.code:
                await self._carrier.discard(key)
            if (refusal := _refusal(file.path, reply)) is not None:
                raise refusal
            if corral_reply is not UNSET and (news := patience.heard(corral_reply.present)):
                watch.arrived(file.path, news, legs=legs)
            else:
                await patience.failed(reply.error or "it does not say why")


def _refusal(path: str, reply: LocalPathReply) -> CorralError | None:
    """What is wrong for longer than a moment; None: asking again makes sense."""
    corral_reply, text = reply.corral, f"{path}: the worker answers {reply.error[:_SHOWN] or 'nothing'}"
    if corral_reply is UNSET:
        return RouteUnusable(text)
    if corral_reply.is_missing:
        return RouteUnusable(
            f"{path} is in the object storage, but the worker does not see it: has it the same bucket?"
        )
    if corral_reply.code in _PASSING:
        return None
    kinds: dict[str, type[CorralError]] = {WrongDigest.code: WrongDigest, PeerDiskFull.code: PeerDiskFull}
    return kinds.get(corral_reply.code, RouteUnusable)(text)


class KeyWay(_ObjectWay):
    """To a worker of LocalAI's, which knows nothing of digests."""

    async def carry(self, model: str, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath:
        for left in reversed(range(_TRIES)):
            digested = {file.path: await self._carrier.digested(file.path) for file in files}
            folder = await self._folder(model, digested)
            try:
                return await self._all(files, lambda file: self._bring(folder, digested[file.path], watch))  # noqa: B023
            except LocalFileChanged:
                if not left:
                    raise
        raise AssertionError("not reached")

    async def _folder(self, model: str, files: Mapping[str, DigestedFile]) -> str:
        """The name of the model, unless somebody stored other files under it; then one with their version."""
        for path, file in files.items():
            if await self._carrier.stored_digest(own_key(model, path)) not in (None, file.digest):
                return f"{model}@{version_of({path: file.digest for path, file in files.items()})}"
        return model

    async def _bring(self, folder: str, file: DigestedFile, watch: StagingWatch) -> str:
        watch.begin(file.path)
        key = own_key(folder, file.path)
        await self._carrier.store(key, file, watch)
        patience = _NodePatience(file.path, _PATIENCE_SECONDS + file.mark.size / _SLOWEST)
        while True:
            reply = await self._ask(EnsureRequest(key=key), patience, still_silent=watch.waits)
            if reply is not None and reply.local_path:
                watch.done(file.path)
                return reply.local_path
            if reply is not None:
                raise RouteUnusable(f"{file.path}: the worker answers {reply.error[:_SHOWN] or 'nothing'}")
