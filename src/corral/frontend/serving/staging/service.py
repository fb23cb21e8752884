"""Staging: a node gets the files of a model before it loads it, and nothing that it has already.

On which way they go is not decided here: see `FileRoute` and those who offer one (`http_carrier.py`,
`object_carrier.py`). They are asked in order, and one that does not work leaves it to the next.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from pathlib import Path, PurePath
from typing import Final, Protocol

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.files.file_peer import LocalFileChanged, TransferStopped
from corral.frontend.models.local_files import LocalFile, LocalFiles, LocalFileUnusable
from corral.frontend.serving.staging.decide.paths import base_of, needed_paths
from corral.wire.backends import InstallBytes, InstallProgress, size_text

log = logging.getLogger(__name__)

STAGING: Final = "staging"
"""What a load does while files are brought to its node."""
_TELLING_SECONDS: Final = 0.2
"""A speed that was measured for a shorter time means nothing."""


class StagingFailed(CorralError):
    """The files of a model could not be brought to a node."""

    code = "staging_failed"
    retryable = True


class ModelFilesUnusable(CorralError):
    """The files of a model cannot be read here; no other node makes a difference."""

    code = "model_files_unusable"


class RouteUnusable(CorralError):
    """Files cannot get to the node on this way; another one may work."""

    code = "route_unusable"
    retryable = True


class NoRoute(RouteUnusable):
    """The node cannot be reached on this way, and need not."""

    code = "no_route"


class StagingCount(msgspec.Struct, frozen=True, kw_only=True):
    """How far a staging is."""

    present_bytes: int = 0
    """At the node, whether they were sent or had been there. Bytes that go by way of a storage count half there."""
    total_bytes: int = 0
    sent_bytes: int = 0
    """Over the network from here, those included that had to be sent again."""
    present_files: int = 0
    total_files: int = 0
    file: str = ""
    """The one that was begun last."""
    file_bytes: int = 0
    """How many bytes of `file` were sent; `file_size` is how many it has."""
    file_size: int = 0


class StagingWatch:
    """Counts the bytes of one staging, from several threads, for those who show its progress."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: float | None = None
        """When the first byte moved."""
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._present = 0
        self._sent = 0
        self._moved = 0
        """What became present by moving, and had not been there before."""
        self._waits = 0
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

    def sent(self, path: str, count: int, *, legs: int = 1) -> None:
        """Bytes went from here; on the first of so many legs of their way."""
        with self._lock:
            self._sent += count
            self._move(path, count // legs)

    def arrived(self, path: str, count: int, *, legs: int = 1) -> None:
        """Bytes arrived at the node on the last of so many legs, and not from here."""
        with self._lock:
            self._move(path, count // legs)

    def _move(self, path: str, count: int) -> None:
        if self._began is None:
            self._began = self._clock.monotonic()
        self._moved += count
        self._present += count
        self._files[path] = self._files.get(path, 0) + count

    def fetched(self, path: str, count: int) -> None:
        """The node has so many bytes of a file that it gets from elsewhere."""
        with self._lock:
            more = count - self._files.get(path, 0)
        if more > 0:
            self.sent(path, more)

    def waits(self) -> None:
        """A node that does not say how far it is may still be getting a file."""
        with self._lock:
            self._waits += 1

    @property
    def movement(self) -> int:
        """Another number whenever something has moved since, or may have."""
        with self._lock:
            return self._present + self._sent + self._waits

    def done(self, path: str) -> None:
        self.present(path, self._sizes.get(path, 0))
        with self._lock:
            self._done.add(path)

    def speed(self) -> float | None:
        """Bytes a second since the first one; None before there is anything to tell."""
        with self._lock:
            seconds = 0.0 if self._began is None else self._clock.monotonic() - self._began
            return self._moved / seconds if seconds >= _TELLING_SECONDS else None

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
                file_bytes=self._files.get(self._last, 0),
                file_size=self._sizes.get(self._last, 0),
            )


class FileRoute(Protocol):
    """A way on which files get to one node. Every call may be cancelled; what was brought so far stays there.

    All but `carry` only look, and may know nothing. `RouteUnusable` is for another way to cure; other errors are the
    node's or the file's.
    """

    async def same_directory(self) -> PurePath | None:
        """Where the node has the very models directory of this frontend; None: not as far as can be told."""

    async def found(self, model: str, path: str) -> PurePath | None:
        """Where the node has a file that this frontend does not have: what is its models directory then."""

    async def shared(self, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath | None:
        """The directory of a node that has every file where it would be if the directory were shared."""

    async def carry(self, model: str, files: Sequence[LocalFile], watch: StagingWatch) -> PurePath:
        """Have all files on the node, with exactly these bytes; returns what is the models directory there."""


class FileCarrier(Protocol):
    """Offers a way to nodes."""

    def route_to(self, node_id: NodeId) -> AbstractAsyncContextManager[FileRoute | None]:
        """The way to a node, for as long as the context lasts; None: it cannot be reached on this one."""


Finding = Callable[[str, NodeId], Awaitable[None]]
"""Hears that a node has the files of a model by itself."""
Publishing = Callable[[str, NodeId, StagingWatch], AbstractAsyncContextManager[None]]
"""Tells others how far the files of a model are on their way to a node, while the context lasts."""


class Staging:
    """Brings files of the models directory to nodes."""

    def __init__(
        self,
        models: Path,
        files: LocalFiles,
        carriers: Sequence[FileCarrier],
        publish: Publishing = lambda *_: nullcontext(),
        note_found: Finding | None = None,
    ) -> None:
        """The first carrier that can shall do it. Inside of `publish` somebody tells others how far it is."""
        self._models = PurePath(models.absolute())
        self._files = files
        self._carriers = carriers
        self._publish = publish
        self._note_found = note_found

    @property
    def models(self) -> PurePath:
        return self._models

    async def bring(
        self, model: str, options: Mapping[str, object], node_id: NodeId, watch: StagingWatch
    ) -> PurePath | None:
        """Have all files on the node that the fields of a load speak of; returns what is the models directory there.

        None: nothing is known of the files here, or no way leads there; `has_files` tells which.
        StagingFailed names the file and the reason; ModelFilesUnusable when it is not the node's fault.
        """
        needed = needed_paths(options, self._models)
        if not needed:
            return None
        async with AsyncExitStack() as stack:
            offered = [await stack.enter_async_context(carrier.route_to(node_id)) for carrier in self._carriers]
            routes = [route for route in offered if route is not None]
            try:
                return await self._brought(routes, model, needed, node_id, watch)
            except TransferStopped:
                raise
            except (LocalFileChanged, LocalFileUnusable) as error:
                raise ModelFilesUnusable(error.message) from error
            except CorralError as error:
                raise StagingFailed(f"its files could not be brought there: {error.message}") from error

    async def _brought(
        self, routes: Sequence[FileRoute], model: str, needed: Sequence[str], node_id: NodeId, watch: StagingWatch
    ) -> PurePath | None:
        for route in routes:
            if (base := await route.same_directory()) is not None:
                return base
        files = await asyncio.to_thread(self._files.below, needed)
        watch.expect(files)
        for route in routes:
            base = await route.shared(files, watch) if files else await route.found(model, needed[0])
            if base is not None:
                if self._note_found is not None:
                    await self._note_found(model, node_id)
                return base
        if not files:
            return None
        async with self._publish(model, node_id, watch):
            return await self._carried(routes, model, files, watch)

    async def _carried(
        self, routes: Sequence[FileRoute], model: str, files: Sequence[LocalFile], watch: StagingWatch
    ) -> PurePath | None:
        unusable: RouteUnusable | None = None
        for route in routes:
            try:
                return await route.carry(model, files, watch)
            except NoRoute:
                continue
            except RouteUnusable as error:
                log.warning("another way is tried: %s", error, extra={"event": "staging.detour", "model": model})
                unusable = error
        if unusable is not None:
            raise unusable
        return None

    async def has_files(self, options: Mapping[str, object]) -> bool:
        """Whether this frontend has any file that the fields of a load speak of."""
        needed = needed_paths(options, self._models)
        return bool(needed and await asyncio.to_thread(self._files.below, needed))

    async def is_shared_with(self, node_id: NodeId) -> bool:
        """Whether the node has the very models directory of this frontend. False: it has not, or cannot be asked."""
        try:
            async with AsyncExitStack() as stack:
                offered = [await stack.enter_async_context(carrier.route_to(node_id)) for carrier in self._carriers]
                bases = [await route.same_directory() for route in offered if route is not None]
        except CorralError as error:  # it may have been removed just now
            details = {"event": "staging.not_asked", "node": node_id}
            log.info("a node was not asked whether it shares the models: %s", error, extra=details)
            return False
        return any(base is not None for base in bases)


def common_base(files: Sequence[LocalFile], paths: Sequence[str]) -> PurePath:
    """What is the models directory of a node that has these files at these paths. It must be one for all of them."""
    bases = {base_of(path, file.path) for path, file in zip(paths, files, strict=True)}
    base = bases.pop() if len(bases) == 1 else None
    if base is None:
        raise StagingFailed(f"the node says that {files[0].path} is at {paths[0][:200]!r}")
    return base


def staging_report(count: StagingCount) -> InstallProgress:
    return InstallProgress(
        phase=STAGING,
        current=size_text(count.present_bytes),
        total=size_text(count.total_bytes),
        percentage=100.0 * count.present_bytes / count.total_bytes if count.total_bytes else 0.0,
        corral=InstallBytes(
            sequence=1,
            current=count.present_bytes,
            total=count.total_bytes,
            file_index=min(count.present_files + 1, count.total_files),
            total_files=count.total_files,
        ),
    )
