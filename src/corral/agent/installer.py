"""Backends onto the disk and off it: finds out where one can be had, has it fetched beside its place, and switches.

Whoever calls holds the lock of the backend. Sources know how to fetch; they are asked in order.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol, Self

from msgspec.structs import replace

from corral.agent import switching
from corral.agent.backend_directory import BACKUP, RUN, Located, is_hidden, is_plain
from corral.agent.backend_metadata import Metadata, read_metadata, write_metadata
from corral.agent.install_progress import Report
from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError, PathNotUsable
from corral.base.tasks import first_done
from corral.base.threads import in_own_thread
from corral.protocol.install import Gallery
from corral.protocol.times import format_time, parse_time

log = logging.getLogger(__name__)

_LONGEST_NAME: Final = 255 - len(BACKUP)
_IMAGE: Final = "oci://"
_AT_ONCE: Final = 16


class CannotInstall(CorralError):
    """This worker has no way to get that backend."""

    code = "cannot_install"


class NoSuchBackend(CannotInstall):
    """No source has a backend of that name."""

    code = "no_such_backend"


class NoRoom(CannotInstall):
    """The backend does not fit on the disk."""

    code = "no_room"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOrder:
    """What somebody wants to have installed."""

    backend: str
    """The name it is asked for by."""
    uri: str = ""
    """Where to have it from, instead of a gallery."""
    name: str = ""
    """Its name once it is installed from a URI; empty: as the source calls it."""
    alias: str = ""
    galleries: Sequence[Gallery] | None = None
    """For this order alone; None: the worker's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A backend that can be had."""

    metadata: Metadata
    """Its name is that of its directory."""
    fetch: Callable[[Path, Report], Awaitable[None]]
    """Fills an empty directory."""
    meta: Metadata | None = None
    """When a meta backend was asked for: what its own directory says."""


class Source(Protocol):
    async def find(self, order: InstallOrder) -> Found | None:
        """None when the order is not for this source. CannotInstall when it is, and cannot be met."""


class Installer:
    """Runs from the beginning to the end of the `async with` block, which ends what is under way."""

    def __init__(self, folder: Path, *, sources: Sequence[Source], clock: Clock) -> None:
        self._folder = folder
        self._sources = tuple(sources)
        self._clock = clock
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._closing = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Old versions that a crash had moved aside are back, half-made new ones gone."""
        try:
            repaired = await asyncio.to_thread(switching.repair, self._folder)
        except OSError as error:
            raise PathNotUsable(f"backends cannot be installed into {self._folder}: {error.strerror}") from error
        if repaired:
            log.warning("cleaned up after a crash: %s", repaired, extra={"event": "install.repaired"})
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what is under way; whoever waits for it is told."""
        self._closing.set()

    async def places(self, order: InstallOrder) -> frozenset[str]:
        """Names of the directories that an order with a URI would change. CannotInstall when it cannot be met."""
        if not order.uri:
            return frozenset()
        found = await self._find(order)
        return frozenset(one.name for one in (found.metadata, found.meta) if one is not None)

    async def install(self, order: InstallOrder, report: Report) -> None:
        """Install, over what is there. Until the last moment that stays as it is. CannotInstall says why not."""
        found = await self._find(order)
        place = self._place(found.metadata.name)
        try:
            if await first_done(self._closing.wait(), self._put(found, place, report)) == 0:
                raise Conflict("this worker is shutting down and installs nothing more")
        except OSError as error:
            raise _unusable(error, place) from error
        log.info(
            "backend installed", extra={"event": "backend.installed", "backend": place.name, "uri": found.metadata.uri}
        )

    async def remove(self, located: Located) -> None:
        """Off the disk, and with a meta backend the build that it points to."""
        places = [place for place in (located.concrete, located.meta) if place is not None]
        try:
            await in_own_thread(lambda _: _remove_all(places), name=f"removing {located.concrete.name}")
        except OSError as error:
            raise _unusable(error, located.concrete) from error
        names = [place.name for place in places]
        log.info("backend removed", extra={"event": "backend.removed", "backends": names})

    async def _find(self, order: InstallOrder) -> Found:
        for source in self._sources:
            if (found := await source.find(order)) is not None:
                return found
        if not order.uri:
            raise NoSuchBackend(_no_backend(order.backend))
        if order.uri.startswith(_IMAGE) and not order.name:
            raise CannotInstall("specifying a name is required for OCI images")
        raise CannotInstall(f"this worker cannot install from {order.uri}: give the path of a directory")

    def _place(self, name: str) -> Path:
        if not is_plain(name) or is_hidden(name) or len(name.encode()) > _LONGEST_NAME:
            raise CannotInstall(f"{name!r} cannot be the name of a backend's directory")
        return self._folder / name

    async def _put(self, found: Found, place: Path, report: Report) -> None:
        async with self._slots:
            staging = await asyncio.to_thread(switching.begin, place)
            try:
                await found.fetch(staging, report)
                if not await asyncio.to_thread((staging / RUN).is_file):
                    raise CannotInstall(f'not a valid backend: run file not found "{staging / RUN}"')
                metadata = await asyncio.to_thread(self._dated, found.metadata, place)
                await in_own_thread(lambda _: _commit(place, metadata), name=f"installing {place.name}")
                if found.meta is not None:
                    await self._put_meta(found.meta)
            finally:
                await asyncio.to_thread(switching.discard_if_possible, staging)

    async def _put_meta(self, meta: Metadata) -> None:
        """A directory that only points to another one."""
        place = self._place(meta.name)
        dated = await asyncio.to_thread(self._dated, meta, place)
        await asyncio.to_thread(switching.begin, place)
        await in_own_thread(lambda _: _commit(place, dated), name=f"installing {place.name}")

    def _dated(self, metadata: Metadata, place: Path) -> Metadata:
        """With a time later than that of the version before, by which others see that there was an install; and with
        its alias, by which models may know the backend, unless there is a new one."""
        before = read_metadata(place)
        at = self._clock.now().replace(microsecond=0)
        with contextlib.suppress(ValueError, OverflowError):  # never installed, or dated by somebody else
            at = max(at, parse_time(before.installed_at) + timedelta(seconds=1))
        return replace(metadata, installed_at=format_time(at), alias=metadata.alias or before.alias)


def _commit(place: Path, metadata: Metadata) -> None:
    staging = switching.staging_of(place)
    write_metadata(staging, metadata)
    switching.settle(staging)
    switching.switch(place)


def _remove_all(places: Sequence[Path]) -> None:
    for place in places:
        switching.remove(place)


def _no_backend(name: str) -> str:
    return f'no backend found with name "{name}"' if name else "backend name is empty"


def _unusable(error: OSError, path: Path) -> CannotInstall:
    return CannotInstall(f"{error.filename or path}: {error.strerror or error}")
