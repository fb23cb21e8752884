"""Backends onto the disk and off it: finds a source, has it fetched beside its place, and switches."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self
from weakref import WeakValueDictionary

from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, PathNotUsable
from corral.base.tasks import first_done, in_own_thread
from corral.wire.go_json import format_time, parse_time
from corral.worker.installing import switching
from corral.worker.installing.backend_directory import BACKUP, RUN, Located, is_hidden, is_plain
from corral.worker.installing.backend_metadata import Metadata, read_metadata, replace_metadata, write_metadata
from corral.worker.installing.orders import (
    CannotInstall,
    Delivered,
    Fetching,
    InstallableBackend,
    InstallOrder,
    InstallSource,
    KeepPrevious,
    NoRoom,
    NoSuchBackend,
)
from corral.worker.installing.progress import Report, resolving

log = logging.getLogger(__name__)

_LONGEST_NAME: Final = 255 - len(BACKUP)
_AT_ONCE: Final = 16
LONGEST_LOOKUP: Final = timedelta(seconds=60)
"""How long a delete waits until the sources of earlier installs are known. Galleries answer within that; a directory on
a file server that is away may never do."""

Identify = Callable[[frozenset[str]], Awaitable[frozenset[str]]]
"""Resolves names to the keys of backends."""


class BackendLocks:
    """One lock for each backend: its own name, its alias and its meta backend share it."""

    def __init__(self, identify: Identify) -> None:
        self._identify = identify
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, *names: str) -> AsyncIterator[None]:
        """Lock the backends with these names. Locks are taken in sorted order, so that no deadlock is possible."""
        requested = frozenset(names)
        while True:
            identities = await self._identify(requested)
            async with AsyncExitStack() as stack:
                for identity in sorted(identities):
                    await stack.enter_async_context(self._locks.setdefault(identity, asyncio.Lock()))
                if await self._identify(requested) == identities:  # else a name has changed meanwhile
                    yield
                    return


class SourceLookup:
    """A request whose source is being looked for, until it has the locks of the backends that it will change."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        """All names of those backends, as soon as the source tells them."""
        self.is_named = asyncio.Event()
        self.is_locked = asyncio.Event()

    def found(self, names: frozenset[str]) -> None:
        """The source was found, or there is none: then only the name of the request matters."""
        self.names = names
        self.is_named.set()

    def end(self) -> None:
        """It has its locks, or failed."""
        self.is_named.set()
        self.is_locked.set()


class SourceLookups:
    """Lets a delete come after earlier installs of the same backend, also of those whose source is still looked for.

    Only the source tells which backend a name means, so no lock can be held meanwhile that a delete under another name
    of this backend would meet.
    """

    def __init__(self, identify: Identify) -> None:
        self._identify = identify
        self._open: set[SourceLookup] = set()

    @contextmanager
    def begin(self) -> Iterator[SourceLookup]:
        lookup = SourceLookup()
        self._open.add(lookup)
        try:
            yield lookup
        finally:
            self._open.discard(lookup)
            lookup.end()

    async def wait_for_earlier(self, *names: str) -> None:
        """Wait until all earlier requests that change the backend with these names have their locks.

        Of other backends only the search for a source is waited for, not their locks; and not longer than
        `LONGEST_LOOKUP` in all. A request whose source is not known by then is not waited for.
        """
        deadline = asyncio.get_running_loop().time() + LONGEST_LOOKUP.total_seconds()
        for lookup in list(self._open):
            try:
                async with asyncio.timeout_at(deadline):
                    await lookup.is_named.wait()
            except TimeoutError:
                log.warning(
                    "a delete or rollback goes on before an install whose source is still looked for",
                    extra={"event": "install.lookup_slow", "backends": sorted(names)},
                )
                continue
            if await self._identify(frozenset(names)) & await self._identify(lookup.names):
                await lookup.is_locked.wait()


class NoPrevious(CannotInstall):
    """There is no version before the present one."""

    code = "no_previous"


class Installer:
    """Usable during the `async with` block, whose end cancels installs in progress."""

    def __init__(
        self, folder: Path, *, sources: Sequence[InstallSource], clock: Clock, keep: KeepPrevious | None = None
    ) -> None:
        self._folder = folder
        self._sources = tuple(sources)
        self._clock = clock
        self._keep = keep or KeepPrevious()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._closing = asyncio.Event()
        self.repaired: list[str] = []
        """Names of backends that were repaired after a crash."""

    async def __aenter__(self) -> Self:
        """Repair after a crash: restore old versions that were moved aside, and remove incomplete new ones."""
        try:
            self.repaired = await asyncio.to_thread(switching.repair, self._folder)
        except OSError as error:
            raise PathNotUsable(f"backends cannot be installed into {self._folder}: {error.strerror}") from error
        if self.repaired:
            log.warning("cleaned up after a crash: %s", self.repaired, extra={"event": "install.repaired"})
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel installs in progress; their callers get an error."""
        self._closing.set()

    async def find(self, order: InstallOrder) -> InstallableBackend:
        """Ask the sources for the backend. CannotInstall says why none has it."""
        for source in self._sources:
            if (backend := await source.find(order)) is not None:
                return backend
        if order.uri:
            raise CannotInstall(f"this worker cannot install from {order.uri}: give the path of a directory")
        named = order.backend
        raise NoSuchBackend(f'no backend found with name "{named}"' if named else "backend name is empty")

    async def install(self, backend: InstallableBackend, report: Report) -> None:
        """Install the backend. An existing version stays usable until the switch. CannotInstall says what failed."""
        await self._guarded(self._put(backend, report, have=()), backend.metadata.name)

    async def upgrade(self, backend: InstallableBackend, report: Report) -> None:
        """Fetch and replace the backend. If the wanted digest is already installed, nothing is fetched."""
        place = self._place(backend.metadata.name)
        have = await asyncio.to_thread(lambda: read_metadata(place).digests if (place / RUN).is_file() else ())
        await self._guarded(self._put(backend, report, have=have), place.name)

    async def point(self, meta: Metadata) -> None:
        """Write the directory of a meta backend, which only points to an installed build."""
        await self._guarded(self._put_meta(meta), meta.name)

    async def check_previous(self, place: Path) -> None:
        """Raise NoPrevious when there is no version for a rollback."""
        if not await asyncio.to_thread(switching.has_previous, place):
            raise NoPrevious(f'there is no version of "{place.name}" before the present one')

    async def roll_back(self, place: Path) -> Metadata:
        """Swap the current and the previous version; return the latter's metadata. A second one undoes the first."""
        await self.check_previous(place)
        previous = switching.previous_of(place)
        metadata = await asyncio.to_thread(lambda: self._dated(read_metadata(previous), place))

        def swap() -> None:
            _rewrite_metadata(previous, metadata, place)
            switching.roll_back(place)

        await self._changing(swap, place, doing="rolling back")
        log.info("backend rolled back", extra={"event": "backend.rolled_back", "backend": place.name})
        return metadata

    async def remove(self, located: Located) -> None:
        """Delete a backend; for a meta backend also the build that it points to."""
        places = [place for place in (located.concrete, located.meta) if place is not None]

        def remove_all() -> None:
            for place in places:
                switching.remove(place)

        await self._changing(remove_all, located.concrete, doing="removing")
        names = [place.name for place in places]
        log.info("backend removed", extra={"event": "backend.removed", "backends": names})

    async def _guarded(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run work that is cancelled at shutdown, and convert disk errors."""
        try:
            if await first_done(self._closing.wait(), work) == 0:
                raise Conflict("this worker is shutting down and installs nothing more")
        except OSError as error:
            raise _unusable(error, self._folder / name) from error

    async def _changing(self, change: Callable[[], None], place: Path, *, doing: str) -> None:
        try:
            await in_own_thread(lambda _: change(), name=f"{doing} {place.name}")
        except OSError as error:
            raise _unusable(error, place) from error

    def _place(self, name: str) -> Path:
        if not is_plain(name) or is_hidden(name) or len(name.encode()) > _LONGEST_NAME:
            raise CannotInstall(f"{name!r} cannot be the name of a backend's directory")
        return self._folder / name

    async def _put(self, backend: InstallableBackend, report: Report, *, have: tuple[str, ...]) -> None:
        place = self._place(backend.metadata.name)
        async with self._slots:
            report(resolving(backend.metadata.uri or place.name))
            staging = await asyncio.to_thread(switching.begin, place)
            try:
                delivered = await self._fetched(backend, Fetching(into=staging, report=report, have=have), place)
                await self._settle(delivered.noted_in(backend.metadata), delivered, place)
                if backend.meta is not None:
                    await self._put_meta(backend.meta)
            finally:
                await asyncio.to_thread(switching.discard_if_possible, staging)

    async def _fetched(self, backend: InstallableBackend, fetching: Fetching, place: Path) -> Delivered:
        """Fetch. When the disk is full, delete the previous version, kept only for a rollback, and try again."""
        try:
            return await backend.fetch(fetching)
        except NoRoom:
            if not await asyncio.to_thread(switching.has_previous, place):
                raise
            await asyncio.to_thread(switching.forget_previous, place)
            await asyncio.to_thread(switching.begin, place)
            return await backend.fetch(fetching)

    async def _settle(self, metadata: Metadata, delivered: Delivered, place: Path) -> None:
        dated = await asyncio.to_thread(self._dated, metadata, place)
        if delivered.is_unchanged:
            await self._changing(lambda: _rewrite_metadata(place, dated, place), place, doing="confirming")
            log.info("backend unchanged", extra={"event": "backend.unchanged", "backend": place.name})
            return
        run = switching.staging_of(place) / RUN
        if not await asyncio.to_thread(run.is_file):
            raise CannotInstall(f'not a valid backend: run file not found "{run}"')
        await self._changing(
            lambda: _commit(place, dated, self._keep, is_settled=delivered.is_settled), place, doing="installing"
        )
        facts = {"backend": place.name, "uri": dated.uri, "digest": dated.digest}
        log.info("backend installed", extra={"event": "backend.installed", **facts})

    async def _put_meta(self, meta: Metadata) -> None:
        """Write the directory of a meta backend."""
        place = self._place(meta.name)
        dated = await asyncio.to_thread(self._dated, meta, place)
        await asyncio.to_thread(switching.begin, place)
        await self._changing(lambda: _commit(place, dated, KeepPrevious(), is_settled=True), place, doing="installing")

    def _dated(self, metadata: Metadata, place: Path) -> Metadata:
        """Return the metadata with an install time later than the previous version's, which proves the install to
        others.

        Keeps the previous alias, by which models may refer to the backend, unless there is a new one.
        """
        before = read_metadata(place)
        at = self._clock.now().replace(microsecond=0)
        with contextlib.suppress(ValueError, OverflowError):  # not installed before, or dated by another program
            at = max(at, parse_time(before.installed_at) + timedelta(seconds=1))
        return replace(metadata, installed_at=format_time(at), alias=metadata.alias or before.alias)


def _commit(place: Path, metadata: Metadata, keep: KeepPrevious, *, is_settled: bool) -> None:
    staging = switching.staging_of(place)
    write_metadata(staging, metadata)
    if is_settled:
        switching.settle_names(staging)
    else:
        switching.settle(staging)
    if not keep.is_wanted or shutil.disk_usage(place.parent).free < keep.free_bytes:
        switching.forget_previous(place)
        switching.switch(place)
    elif set(metadata.digests) & set(read_metadata(place).digests):
        switching.switch(place)  # the same version again: there is no reason to keep it for a rollback
    else:
        switching.switch_and_keep(place)


def _rewrite_metadata(directory: Path, metadata: Metadata, place: Path) -> None:
    replace_metadata(directory, metadata, scratch=switching.scratch_of(place))
    switching.settle_names(directory)


def _unusable(error: OSError, path: Path) -> CannotInstall:
    return CannotInstall(f"{error.filename or path}: {error.strerror or error}")
