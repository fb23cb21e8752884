"""Files to nodes over HTTP: from here straight to the file server that a worker of Corral's or of LocalAI's has.

Threads send, a few per node and a bounded number in all; the event loop only hears how far they are. A node that
shares the models directory shows a file that was just made in it; one that has the same files is told by their digests.
Nothing is sent to either.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import PurePath
from typing import Final, Protocol, TypeVar

import msgspec

from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.tasks import first_failure, task_group
from corral.files.file_peer import FilePeer, FilePeerAway, FilePeerConnection, FilePeerUnreachable, LocalFileChanged
from corral.files.sending import (
    FileDigest,
    FileSending,
    OutgoingFile,
    WrongDigest,
    is_hashed_meanwhile,
    is_there,
)
from corral.frontend.models.local_files import LocalFile, LocalFiles, LocalFileUnusable
from corral.frontend.serving.staging.decide.paths import base_of, own_key, shared_key
from corral.frontend.serving.staging.decide.sources import WantedFile
from corral.frontend.serving.staging.service import FileRoute, StagingWatch, common_base

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_TRANSFERS: Final = 32
PER_NODE: Final = 4
_TRIES: Final = 3
"""Times that a file is sent that changes meanwhile."""
_UNKNOWN_SIZE: Final = 12 * 1024**3
"""Bytes that a file is taken to have which only the node has. It may hash them before it says that it has the file, and
is waited for nearly as long as a staging may stand still."""


class _Listener(msgspec.Struct, frozen=True):
    watch: StagingWatch
    path: str

    def present(self, count: int) -> None:
        self.watch.present(self.path, count)

    def sent(self, count: int) -> None:
        self.watch.sent(self.path, count)


Work = Callable[[FilePeerConnection, threading.Event], T]
"""What a thread does with a connection, until it is done or shall stop."""


class _Lanes:
    """The transfers to one node: a few threads, each with a connection that is used again."""

    def __init__(self, peer: FilePeer, turns: asyncio.Semaphore) -> None:
        self._peer = peer
        self._turns = turns
        self._threads = ThreadPoolExecutor(PER_NODE, thread_name_prefix="corral-staging")
        self._free: list[FilePeerConnection] = []
        self._stop = threading.Event()

    async def run(self, work: Work[T]) -> T:
        """A cancelled caller waits for the end of its thread, which comes within a moment."""
        async with self._turns:
            connection = self._free.pop() if self._free else FilePeerConnection(self._peer, self._stop)
            running = asyncio.wrap_future(self._threads.submit(work, connection, self._stop))
            try:
                await _ended(running, self._stop)
            finally:
                self._free.append(connection)
            return running.result()

    async def run_all(self, jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
        """The results in the order of the jobs, of which a few run at a time. The first failure ends all."""
        results: dict[int, T] = {}
        left = iter(enumerate(jobs))

        async def lane() -> None:
            for index, job in left:
                results[index] = await job()

        with first_failure(CorralError):
            async with task_group() as group:
                for number in range(min(PER_NODE, len(jobs))):
                    group.create_task(lane(), name=f"staging {number}")
        return [results[index] for index in range(len(jobs))]

    def close(self) -> None:
        self._stop.set()
        self._threads.shutdown(wait=False)
        for connection in self._free:
            connection.close()


async def _ended(running: "asyncio.Future[T]", stop: threading.Event) -> None:
    """Wait for a thread's work, however it ends. A cancellation stops it, and takes effect when it has ended."""
    cancellation: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancellation = error
            stop.set()
    if cancellation is not None:
        running.exception()
        raise cancellation


class OtherSources(Protocol):
    """Where nodes may get a file from, besides from here."""

    def is_shared_out(self, size: int) -> bool:
        """Whether a file of this size may come from elsewhere."""

    async def deliver(
        self, file: WantedFile, node: FilePeer, *, send: Callable[[], Awaitable[str]], heard: Callable[[int], None]
    ) -> str:
        """Have the file on the node, by `send` or from elsewhere; returns its path there."""

    def has_now(self, file: WantedFile) -> None:
        """A node got the file without `deliver`, and others may get it from there."""


class NoOtherSources:
    """The sources of files where only this frontend sends: no node and no public server is asked."""

    def is_shared_out(self, size: int) -> bool:
        return False

    async def deliver(
        self, file: WantedFile, node: FilePeer, *, send: Callable[[], Awaitable[str]], heard: Callable[[int], None]
    ) -> str:
        return await send()

    def has_now(self, file: WantedFile) -> None:
        """Nobody is asked for it."""


Keeping = Callable[[str, NodeId, Sequence[LocalFile], StagingWatch], AbstractAsyncContextManager[None]]
"""Has room for the files of a model on a node while they are brought there, and records them afterwards."""


def keep_no_record(*_: object) -> AbstractAsyncContextManager[None]:
    return contextlib.nullcontext()


class HttpCarrier:
    """Reaches the nodes that have a file server."""

    def __init__(
        self,
        files: LocalFiles,
        file_server: Callable[[NodeId], Awaitable[FilePeer | None]],
        sources: OtherSources | None = None,
        keeping: Keeping = keep_no_record,
    ) -> None:
        """`file_server` finds that of a node; None: it has none."""
        self._files = files
        self._file_server = file_server
        self._sources = sources or NoOtherSources()
        self._keeping = keeping
        self._turns = asyncio.Semaphore(MOST_TRANSFERS)

    @asynccontextmanager
    async def route_to(self, node_id: NodeId) -> AsyncIterator[FileRoute | None]:
        peer = await self._file_server(node_id)
        if peer is None:
            yield None
            return
        lanes = _Lanes(peer, self._turns)
        try:
            yield HttpRoute(self._files, lanes, node_id, peer, sources=self._sources, keeping=self._keeping)
        finally:
            lanes.close()


def _is_of_corral(peer: FilePeer) -> bool:
    """Whether a worker of Corral's has this file server: LocalAI's have none of this."""
    return peer.tls is not None or peer.can_fetch or peer.takes_late_digests


class HttpRoute:
    """The way to the file server of one node."""

    def __init__(
        self,
        files: LocalFiles,
        lanes: _Lanes,
        node_id: NodeId,
        peer: FilePeer,
        *,
        sources: OtherSources,
        keeping: Keeping,
    ) -> None:
        self._files = files
        self._lanes = lanes
        self._node_id = node_id
        self._peer = peer
        self._sources = sources
        self._keeping = keeping

    async def same_directory(self) -> PurePath | None:
        """Nothing has to be hashed for it, and everything is there by itself."""

        def look(connection: FilePeerConnection, _: threading.Event) -> PurePath | None:
            with contextlib.suppress(LocalFileUnusable, FilePeerAway), self._files.proof() as (path, digest):
                remote = connection.head(shared_key(path), 0)
                if remote is not None and remote.digest == digest:
                    return base_of(remote.path, path)
            return None

        return await self._lanes.run(look)

    async def found(self, model: str, path: str) -> PurePath | None:
        def look(connection: FilePeerConnection, _: threading.Event) -> PurePath | None:
            for key in (own_key(model, path), shared_key(path)):
                remote = connection.head(key, _UNKNOWN_SIZE)
                if remote is not None and remote.digest and (base := base_of(remote.path, path)) is not None:
                    return base
            return None

        try:
            return await self._lanes.run(look)
        except FilePeerUnreachable as error:
            if _is_of_corral(self._peer):  # it may be the only one with the files
                raise
            # Often only the ports of backends are open on LocalAI's workers, and models that are fetched by their names
            # need no files.
            details = {"event": "staging.unknown_there", "model": model, "node": self._node_id}
            log.warning("a node was not asked for the files of a model: %s", error, extra=details)
            return None

    async def shared(self, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath | None:
        def check(file: LocalFile) -> Work[str]:
            def work(connection: FilePeerConnection, stop: threading.Event) -> str:
                try:
                    remote = connection.head(shared_key(file.path), file.size)
                except FilePeerAway:
                    return ""  # sending has the patience for it
                if remote is None or remote.size != file.size:
                    return ""
                with self._outgoing(file.path, stop) as outgoing:
                    return remote.path if is_there(remote, outgoing) else ""

            return work

        first, *others = files
        path = await self._lanes.run(check(first))
        base = base_of(path, first.path) if path else None
        if base is None:
            return None
        checks = await self._lanes.run_all([partial(self._lanes.run, check(file)) for file in others])
        for file, remote in zip(others, checks, strict=True):
            if base_of(remote, file.path) != base:
                return None
        for file in files:
            watch.done(file.path)
        return base

    async def carry(self, model: str, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath:
        jobs = [partial(self._deliver, model, file, watch) for file in files]
        async with self._keeping(model, self._node_id, files, watch):
            return common_base(files, await self._lanes.run_all(jobs))

    async def _deliver(self, model: str, file: LocalFile, watch: StagingWatch) -> str:
        """Have one file on the node, from here or from elsewhere; returns its path there."""

        async def send() -> str:
            path, _ = await self._lanes.run(lambda connection, stop: self._send(connection, stop, model, file, watch))
            return path

        if not self._peer.can_fetch or not self._sources.is_shared_out(file.size):
            return await send()
        key = own_key(model, file.path)
        wanted_file = WantedFile(
            node_id=self._node_id,
            model=model,
            path=file.path,
            key=key,
            digest="",
            size=file.size,
        )
        path, digest = await self._lanes.run(lambda connection, stop: self._look(connection, stop, key, file))
        if not path and not digest:  # no other node is known to have it
            with self._files.sending_unhashed(file.path) as is_first:
                if is_first:
                    path, digest = await self._lanes.run(
                        lambda connection, stop: self._send(connection, stop, model, file, watch)
                    )
                    self._sources.has_now(msgspec.structs.replace(wanted_file, digest=digest))
                else:
                    digest = await self._lanes.run(lambda _, stop: self._digest(stop, file))
        if not path:
            watch.begin(file.path)
            wanted_file = msgspec.structs.replace(wanted_file, digest=digest)
            heard = partial(watch.fetched, file.path)
            path = await self._sources.deliver(wanted_file, self._peer, send=send, heard=heard)
        watch.done(file.path)
        return path

    def _look(
        self, connection: FilePeerConnection, stop: threading.Event, key: str, file: LocalFile
    ) -> tuple[str, str]:
        """Where the node has the file, if it has; and the digest of the file.

        Both are empty for a file that nobody has hashed or is hashing, and that should be sent at once. Only one
        transfer does that; others wait for the digest, by which they find the first node that has the file.
        """
        with self._outgoing(file.path, stop) as outgoing:
            try:
                remote = connection.head(key, file.size)
            except FilePeerAway:
                remote = None  # sending has the patience for it
            if remote is not None and is_there(remote, outgoing):
                return remote.path, outgoing.digest.get()
            is_first = not self._files.is_hashing(file.path, outgoing.mark)
            if is_first and is_hashed_meanwhile(self._peer, outgoing):
                return "", ""
            return "", outgoing.digest.get()

    def _digest(self, stop: threading.Event, file: LocalFile) -> str:
        with self._outgoing(file.path, stop) as outgoing:
            return outgoing.digest.get()

    def _send(
        self, connection: FilePeerConnection, stop: threading.Event, model: str, file: LocalFile, watch: StagingWatch
    ) -> tuple[str, str]:
        """Send the file; returns its path on the node, and its digest."""
        key = own_key(model, file.path)
        for left in reversed(range(_TRIES)):
            watch.begin(file.path)
            with self._outgoing(file.path, stop) as outgoing:
                listener = _Listener(watch, file.path)
                try:
                    path = FileSending(connection, key, outgoing, stop=stop, listener=listener).run()
                except (LocalFileChanged, WrongDigest):
                    self._files.forget(file.path, outgoing.mark)
                    if not left:
                        raise
                else:
                    watch.done(file.path)
                    return path, outgoing.digest.get()
        raise AssertionError("not reached")

    @contextmanager
    def _outgoing(self, path: str, stop: threading.Event) -> Iterator[OutgoingFile]:
        """A file that is open and can be hashed."""
        with self._files.opened(path) as (descriptor, mark):
            digest = FileDigest(
                lambda: self._files.known_digest(path, descriptor, mark),
                lambda end: self._files.digest(path, descriptor, mark, stop=end),
                stop,
            )
            with contextlib.closing(digest):
                yield OutgoingFile(descriptor=descriptor, mark=mark, digest=digest)
