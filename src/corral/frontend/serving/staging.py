"""Staging: a node gets the files of a model before it loads it, and nothing that it has already.

Threads send, a few per node and a bounded number in all; the event loop only hears how far they are. A node that
shares the models directory shows a file that was just made in it; one that has the same files is told by their digests.
Nothing is sent to either.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final, TypeVar

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.tasks import task_group
from corral.files.file_peer import FilePeer, FilePeerAway, FilePeerConnection, LocalFileChanged, TransferStopped
from corral.files.sending import FileMark, FileSending, OutgoingFile, WrongDigest, is_there
from corral.frontend.models.local_files import LocalFile, LocalFiles, LocalFileUnusable
from corral.frontend.serving.decide.staging import base_of, needed_paths, own_key, shared_key

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_TRANSFERS: Final = 32
PER_NODE: Final = 4
_TELLING_SECONDS: Final = 0.2
"""A speed that was measured for a shorter time means nothing."""
_TRIES: Final = 3
"""Times that a file is sent that changes meanwhile."""


class StagingFailed(CorralError):
    """The files of a model could not be brought to a node."""

    code = "staging_failed"
    retryable = True


class ModelFilesUnusable(CorralError):
    """The files of a model cannot be read here; no other node makes a difference."""

    code = "model_files_unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingCount:
    """How far a staging is."""

    present_bytes: int = 0
    """At the node, whether they were sent or had been there."""
    total_bytes: int = 0
    sent_bytes: int = 0
    """Over the network, those included that had to be sent again."""
    present_files: int = 0
    total_files: int = 0
    file: str = ""
    """The one that was begun last."""


class StagingWatch:
    """Counts what threads do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: float | None = None
        """When the first byte was sent."""
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._present = 0
        self._sent = 0
        self._done: set[str] = set()
        self._last = ""

    def expect(self, files: Sequence[LocalFile]) -> None:
        with self._lock:
            self._sizes = {file.path: file.size for file in files}

    def begin(self, path: str) -> None:
        with self._lock:
            self._last = path

    def present(self, path: str, count: int) -> None:
        with self._lock:
            self._present += count - self._files.get(path, 0)
            self._files[path] = count

    def sent(self, path: str, count: int) -> None:
        with self._lock:
            if self._began is None:
                self._began = self._clock.monotonic()
            self._sent += count
            self._present += count
            self._files[path] = self._files.get(path, 0) + count

    def done(self, path: str) -> None:
        self.present(path, self._sizes.get(path, 0))
        with self._lock:
            self._done.add(path)

    def speed(self) -> float | None:
        """Bytes a second since the first one; None before there is anything to tell."""
        with self._lock:
            seconds = 0.0 if self._began is None else self._clock.monotonic() - self._began
            return self._sent / seconds if seconds >= _TELLING_SECONDS else None

    @property
    def count(self) -> StagingCount:
        with self._lock:
            return StagingCount(
                present_bytes=self._present,
                total_bytes=sum(self._sizes.values()),
                sent_bytes=self._sent,
                present_files=len(self._done),
                total_files=len(self._sizes),
                file=self._last,
            )


@dataclass(frozen=True, slots=True)
class _Listener:
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

    async def run_all(self, works: Sequence[Work[T]]) -> list[T]:
        """The results in the order of the work. The first failure ends all."""
        results: dict[int, T] = {}
        failures: list[CorralError] = []
        left = iter(enumerate(works))

        async def lane() -> None:
            for index, work in left:
                try:
                    results[index] = await self.run(work)
                except CorralError as error:
                    failures.append(error)
                    self._stop.set()
                if failures:
                    return

        async with task_group() as group:
            for number in range(min(PER_NODE, len(works))):
                group.create_task(lane(), name=f"staging {number}")
        if failures:
            raise failures[0]
        return [results[index] for index in range(len(works))]

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


class Staging:
    """Brings files of the models directory to nodes."""

    def __init__(self, models: Path, file_server: Callable[[NodeId], Awaitable[FilePeer | None]]) -> None:
        """`file_server` finds that of a node; None: it has none."""
        self._models = PurePath(models.absolute())
        self._files = LocalFiles(models)
        self._file_server = file_server
        self._turns = asyncio.Semaphore(MOST_TRANSFERS)

    @property
    def models(self) -> PurePath:
        return self._models

    async def bring(
        self, model: str, options: Mapping[str, object], node_id: NodeId, watch: StagingWatch
    ) -> PurePath | None:
        """Have all files on the node that the fields of a load speak of; returns what is the models directory there.

        None: nothing is known of the files here, or the node has no file server; then the paths stay as they are.
        StagingFailed names the file and the reason; ModelFilesUnusable when it is not the node's fault.
        """
        needed = needed_paths(options, self._models)
        peer = await self._file_server(node_id) if needed else None
        if peer is None:
            return None
        lanes = _Lanes(peer, self._turns)
        try:
            if (base := await lanes.run(self._same_directory)) is not None:
                return base
            files = await asyncio.to_thread(self._files.below, needed)
            watch.expect(files)
            if not files:
                return await self._found(lanes, model, needed[0])
            return await self._shared(lanes, files, watch) or await self._sent(lanes, model, files, watch)
        except TransferStopped:
            raise
        except (LocalFileChanged, LocalFileUnusable) as error:
            raise ModelFilesUnusable(error.message) from error
        except CorralError as error:
            raise StagingFailed(f"its files could not be brought there: {error.message}") from error
        finally:
            lanes.close()

    def _same_directory(self, connection: FilePeerConnection, _: threading.Event) -> PurePath | None:
        """Where the node has the very directory of this frontend; None: it does not share it, as far as can be told.

        Nothing has to be hashed for it, and everything is there by itself.
        """
        with contextlib.suppress(LocalFileUnusable, FilePeerAway), self._files.proof() as (path, digest):
            remote = connection.head(shared_key(path), 0)
            if remote is not None and remote.digest == digest:
                return base_of(remote.path, path)
        return None

    async def _found(self, lanes: _Lanes, model: str, path: str) -> PurePath | None:
        """Where the node has a file that this frontend does not have."""

        def look(connection: FilePeerConnection, _: threading.Event) -> PurePath | None:
            for key in (own_key(model, path), shared_key(path)):
                remote = connection.head(key, 0)
                if remote is not None and remote.digest and (base := base_of(remote.path, path)) is not None:
                    return base
            return None

        return await lanes.run(look)

    async def _shared(self, lanes: _Lanes, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath | None:
        """The directory of a node that has every file where it would be if the directory were shared."""

        def check(file: LocalFile) -> Work[str]:
            def work(connection: FilePeerConnection, stop: threading.Event) -> str:
                try:
                    remote = connection.head(shared_key(file.path), file.size)
                except FilePeerAway:
                    return ""  # sending has the patience for it
                if remote is None or remote.size != file.size:
                    return ""
                with self._files.opened(file.path) as (descriptor, mark):
                    outgoing = self._outgoing(file.path, descriptor, mark, stop, watch)
                    return remote.path if is_there(remote, outgoing) else ""

            return work

        first, *others = files
        path = await lanes.run(check(first))
        base = base_of(path, first.path) if path else None
        if base is None:
            return None
        found = await lanes.run_all([check(file) for file in others])
        for file, remote in zip(others, found, strict=True):
            if base_of(remote, file.path) != base:
                return None
        for file in files:
            watch.done(file.path)
        return base

    async def _sent(
        self, lanes: _Lanes, model: str, files: Sequence[LocalFile], watch: StagingWatch
    ) -> PurePath | None:
        def send(file: LocalFile) -> Work[str]:
            return lambda connection, stop: self._send(connection, stop, model, file, watch)

        paths = await lanes.run_all([send(file) for file in files])
        bases = {base_of(path, file.path) for path, file in zip(paths, files, strict=True)}
        if len(bases) != 1 or None in bases:
            raise StagingFailed(f"its file server says that {files[0].path} is at {paths[0][:200]!r}")
        return bases.pop()

    def _send(
        self, connection: FilePeerConnection, stop: threading.Event, model: str, file: LocalFile, watch: StagingWatch
    ) -> str:
        key = own_key(model, file.path)
        for left in reversed(range(_TRIES)):
            watch.begin(file.path)
            with self._files.opened(file.path) as (descriptor, mark):
                outgoing = self._outgoing(file.path, descriptor, mark, stop, watch)
                listener = _Listener(watch, file.path)
                try:
                    path = FileSending(connection, key, outgoing, stop=stop, listener=listener).run()
                except (LocalFileChanged, WrongDigest):
                    self._files.forget(file.path, mark)
                    if not left:
                        raise
                else:
                    watch.done(file.path)
                    return path
        raise AssertionError("not reached")

    def _outgoing(
        self, path: str, descriptor: int, mark: FileMark, stop: threading.Event, watch: StagingWatch
    ) -> OutgoingFile:
        known: list[str] = []

        def digest() -> str:
            if not known:
                known.append(self._files.digest(path, descriptor, mark, stop=stop))
            return known[0]

        return OutgoingFile(descriptor=descriptor, mark=mark, digest=digest)
