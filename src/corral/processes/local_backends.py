"""The backends of this machine without a worker and without a frontend: what commands do on the node itself.

They work on the directory of the worker, by the same rules, and only while no worker does.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from corral.base.clock import Clock, SystemClock
from corral.base.errors import Conflict, CorralError, NotFound
from corral.base.tasks import task_group
from corral.galleries.build_uris import BuildMarks, Evidence, Freshness, judge_freshness
from corral.oci.layout import offered_digests
from corral.oci.looks import digests_at
from corral.processes.installing import InstallingConfig, make_installer, open_installer
from corral.processes.this_machine import MachineConfig, measure
from corral.worker.backends import CannotDelete
from corral.worker.installing import switching
from corral.worker.installing.backend_directory import BackendDirectory, Located, identity_of
from corral.worker.installing.backend_metadata import Metadata, read_metadata
from corral.worker.installing.installer import Installer
from corral.worker.installing.orders import GalleryAway, InstallOrder, NoSuchBackend
from corral.worker.installing.progress import Report

_LOOKS_AT_ONCE: Final = 8

_REASONS: Final = {
    Evidence.DIGESTS: "{uri} names another image now",
    Evidence.VERSIONS: "the gallery has another version",
    Evidence.UNREPORTED_DIGEST: "its digest was not noted at its install, and the tag of {uri} may have been moved",
    Evidence.NOTHING: "neither a version nor a digest is known of {uri}",
}

UpgradeState = Literal["current", "outdated", "unknown", "unreachable"]
LocalOutcome = Literal["installed", "upgraded", "unchanged", "of the system", "deleted", "absent", "rolled back"]


class _MakeInstaller(Protocol):
    async def __call__(
        self, stack: AsyncExitStack, config: InstallingConfig, *, capability: str, clock: Clock
    ) -> Installer: ...


class LocalBackend(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a listing."""

    name: str
    kind: Literal["build", "meta", "system"]
    alias: str = ""
    build: str = ""
    """What a meta backend points to."""
    version: str = ""
    uri: str = ""
    gallery: str = ""
    digest: str = ""
    platform_digest: str = ""
    installed_at: str = ""
    previous_installed_at: str = ""
    """Of the version that a roll-back leads to; empty when there is none."""


class Newer(msgspec.Struct, frozen=True, kw_only=True):
    """How a backend compares with what is to be had."""

    name: str
    state: UpgradeState
    installed: str = ""
    """The version or the digest that is here."""
    available: str = ""
    reason: str = ""
    """Why it is outdated, or why nobody can tell."""


class LocalChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a command did to one backend."""

    name: str
    """Its own name, whatever it was asked for by."""
    outcome: LocalOutcome
    version: str = ""
    digest: str = ""
    installed_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    machine: MachineConfig
    installing: InstallingConfig


def listed(config: LocalConfig, capability: str) -> list[LocalBackend]:
    """All backends, those of the system too. Reads only, and so needs nobody's leave. May block."""
    directory = _directory(config, capability)
    return [_row(config.installing.backends, one.name, directory) for one in directory.listing()]


@asynccontextmanager
async def open_local(config: LocalConfig) -> AsyncIterator["LocalBackends"]:
    """Nobody else changes the directory meanwhile; DataInUse when a worker does."""
    async with _local(config, open_installer) as local:
        yield local


@asynccontextmanager
async def look_at_local(config: LocalConfig) -> AsyncIterator["LocalBackends"]:
    """Only to compare: others may go on."""
    async with _local(config, make_installer) as local:
        yield local


@asynccontextmanager
async def _local(config: LocalConfig, make: _MakeInstaller) -> AsyncIterator["LocalBackends"]:
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        capability = (await measure(config.machine)).capability
        installer = await make(stack, config.installing, capability=capability, clock=clock)
        yield LocalBackends(config, installer, _directory(config, capability), clock)


class LocalBackends:
    """One command's worth of changes."""

    def __init__(self, config: LocalConfig, installer: Installer, directory: BackendDirectory, clock: Clock) -> None:
        self._config = config
        self._installer = installer
        self._directory = directory
        self._clock = clock

    @property
    def repaired(self) -> Sequence[str]:
        """What a crash had left, and is put right since the directory was opened."""
        return self._installer.repaired

    async def install(self, order: InstallOrder, report: Report, *, force: bool) -> LocalChange:
        """Have it on the disk. What is there stays as it is, unless it is forced."""
        if not force and order.backend and (there := await self._located(order.backend)) is not None:
            return _changed(there.concrete, "of the system" if there.is_system else "unchanged")
        found = await self._installer.find(order)
        place = self._directory.place(found.metadata.name)
        if not force and (home := await asyncio.to_thread(self._directory.find, found.key)) is not None:
            if found.meta is not None:
                await self._installer.point(found.meta)
            return _changed(home.directory, "unchanged")
        await self._installer.install(found, report)
        return _changed(place, "installed")

    async def upgrade(self, name: str, report: Report) -> LocalChange:
        """The newest there is. What came from a uri comes from there again."""
        located = await self._changeable(name, doing="upgraded")
        found = await self._installer.find(_order_again(name, read_metadata(located.concrete)))
        place = self._directory.place(found.metadata.name)
        before = identity_of(place)
        await self._installer.upgrade(found, report)
        return _changed(place, "unchanged" if identity_of(place) == before else "upgraded")

    async def delete(self, name: str) -> LocalChange:
        """Gone, with its version before; one that is not there has reached that already."""
        located = await self._located(name)
        if located is None:
            return LocalChange(name=name, outcome="absent")
        if located.is_system:
            raise CannotDelete(f'system backend "{name}" cannot be deleted')
        await self._installer.remove(located)
        return LocalChange(name=located.concrete.name, outcome="deleted")

    async def roll_back(self, name: str) -> LocalChange:
        located = await self._changeable(name, doing="rolled back")
        await self._installer.roll_back(located.concrete)
        return _changed(located.concrete, "rolled back")

    async def upgradeable(self) -> list[str]:
        """Every build that was installed."""
        found = await asyncio.to_thread(self._directory.listing)
        return [one.name for one in found if not one.is_system and not one.is_meta]

    async def compared(self) -> list[Newer]:
        """What is installed against what is to be had, several at a time."""
        slots = asyncio.Semaphore(_LOOKS_AT_ONCE)

        async def one(name: str) -> Newer:
            async with slots:
                return await self._compare(name)

        names = await self.upgradeable()
        async with task_group() as group:
            looks = [group.create_task(one(name), name=f"look at {name}") for name in names]
        return [look.result() for look in looks]

    async def _compare(self, name: str) -> Newer:
        here = await asyncio.to_thread(read_metadata, self._directory.place(name))
        try:
            offered = (await self._installer.find(_order_again(name, here))).metadata
            digests = await self._offered_digests(offered)
        except CorralError as error:
            is_gone = isinstance(error, NoSuchBackend) and not isinstance(error, GalleryAway)
            state: UpgradeState = "unknown" if is_gone else "unreachable"
            return Newer(name=name, state=state, installed=here.version or here.digest, reason=error.message)
        return compare_build(name, here, offered, digests)

    async def _offered_digests(self, offered: Metadata) -> tuple[str, ...]:
        """What the source has now: a registry, or a layout on this machine. ImageError when nobody can tell."""
        if offered.uri.startswith("/") and not offered.version:
            return await asyncio.to_thread(offered_digests, Path(offered.uri))
        return await digests_at(offered.uri, self._config.installing.images, self._clock)

    async def _located(self, name: str) -> Located | None:
        return await asyncio.to_thread(self._directory.locate, name)

    async def _changeable(self, name: str, *, doing: str) -> Located:
        located = await self._located(name)
        if located is None:
            there = ", ".join(await self.upgradeable()) or "none"
            raise NotFound(f'backend "{name}": backend not found; installed here: {there}')
        if located.is_system:
            raise Conflict(f'system backend "{name}" cannot be {doing}: it changes with the system')
        return located


def compare_build(name: str, here: Metadata, offered: Metadata, digests: Sequence[str]) -> Newer:
    """Compare by the rule that frontends have too. `digests` are those of the offered build, the index's first."""
    freshness, evidence = judge_freshness(
        BuildMarks(version=here.version, digests=frozenset(here.digests)),
        BuildMarks(version=offered.version, digests=frozenset(digests)),
    )
    by_digest = evidence is Evidence.DIGESTS
    return Newer(
        name=name,
        state=freshness.value,
        installed=here.digest if by_digest else here.version,
        available=digests[0] if by_digest else offered.version,
        reason="" if freshness is Freshness.CURRENT else _REASONS[evidence].format(uri=offered.uri),
    )


def _order_again(name: str, metadata: Metadata) -> InstallOrder:
    """How to have an installed backend anew: from its gallery, or from where it came without one."""
    if metadata.gallery_url or not metadata.uri:
        return InstallOrder(backend=metadata.name or name, wants_newest=True)
    return InstallOrder(backend=name, uri=metadata.uri, name=metadata.name or name, alias=metadata.alias)


def _directory(config: LocalConfig, capability: str) -> BackendDirectory:
    return BackendDirectory(
        installed=config.installing.backends, system=config.machine.system_backends, capability=capability
    )


def _row(folder: Path, name: str, directory: BackendDirectory) -> LocalBackend:
    located = directory.locate(name)
    if located is None or located.is_system:
        return LocalBackend(name=name, kind="system")
    place = located.meta or located.concrete
    told = read_metadata(place)
    previous = switching.previous_of(place)
    return LocalBackend(
        name=name,
        kind="build" if located.meta is None else "meta",
        alias=told.alias,
        build=told.meta_backend_for,
        version=told.version,
        uri=told.uri,
        gallery=told.gallery or told.gallery_url,
        digest=told.digest,
        platform_digest=told.corral.platform_digest if told.corral is not None else "",
        installed_at=told.installed_at,
        previous_installed_at=read_metadata(previous).installed_at if switching.has_previous(place) else "",
    )


def _changed(place: Path, outcome: LocalOutcome) -> LocalChange:
    told = read_metadata(place)
    return LocalChange(
        name=place.name, outcome=outcome, version=told.version, digest=told.digest, installed_at=told.installed_at
    )
