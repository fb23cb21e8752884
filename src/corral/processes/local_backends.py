"""This machine without worker and frontend, for commands on the node itself: which backends fit, and those it has.

They use the worker's directory by the same rules, and change it only while no worker does.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Final, Literal

import msgspec

from corral.base.clock import Clock, SystemClock
from corral.base.errors import Conflict, CorralError, NotFound
from corral.base.settings import settings_of
from corral.base.tasks import task_group
from corral.galleries.build_uris import BuildMarks, Evidence, Freshness, judge_freshness
from corral.galleries.config import GalleriesConfig
from corral.galleries.fit import NodeTraits
from corral.oci.contents import offered_digests
from corral.oci.manifests import platform_of
from corral.oci.registry import digests_at
from corral.processes.configs import shipped_backends
from corral.processes.installing import InstallingConfig, make_installer, open_installer
from corral.processes.settings import MACHINE_SETTINGS
from corral.processes.settings_sources import SettingSources, resolve
from corral.worker.backends import CannotDelete
from corral.worker.config import WorkerConfig
from corral.worker.hardware.gpus import MachineGpus, detectors_of_this_machine
from corral.worker.hardware.machine import CapabilityRule, Cgroup, Hardware
from corral.worker.installing import switching
from corral.worker.installing.backend_directory import BackendDirectory, Located, identity_of
from corral.worker.installing.backend_metadata import Metadata, read_metadata
from corral.worker.installing.installer import Installer
from corral.worker.installing.orders import GalleryAway, InstallOrder, NoSuchBackend
from corral.worker.installing.progress import Report

_DISK_TIMEOUT: Final = timedelta(seconds=2)
_GPU_TIMEOUT: Final = timedelta(seconds=5)
_LOOKS_AT_ONCE: Final = 8
_REASONS: Final = {
    Evidence.DIGESTS: "{uri} names another image now",
    Evidence.VERSIONS: "the gallery has another version",
    Evidence.UNREPORTED_DIGEST: "its digest was not noted at its install, and the tag of {uri} may have been moved",
    Evidence.NOTHING: "neither a version nor a digest is known of {uri}",
}
UpgradeState = Literal["current", "outdated", "unknown", "unreachable"]
LocalOutcome = Literal["installed", "upgraded", "unchanged", "of the system", "deleted", "absent", "rolled back"]


class MachineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker that describe this machine."""

    capability: CapabilityRule
    backends: Path
    system_backends: Sequence[Path] = ()


def machine_config(sources: SettingSources) -> MachineConfig:
    """Resolve the settings that describe this machine, without those that only a running worker needs."""
    omitted = frozenset(setting.name for setting in settings_of(WorkerConfig)) - MACHINE_SETTINGS
    settings = resolve(WorkerConfig, sources, without=omitted)
    shipped = shipped_backends(resolve(GalleriesConfig, sources))
    return MachineConfig(
        capability=CapabilityRule(forced=settings.node.capability, run_file=settings.node.capability_run_file),
        backends=settings.backends_path,
        system_backends=(*settings.system_backends, *shipped),
    )


async def measure(config: MachineConfig) -> NodeTraits:
    """Measure the facts that a worker here would report."""
    hardware = Hardware(
        models_path=config.backends,
        disk_timeout=_DISK_TIMEOUT,
        capability=config.capability,
        gpus=MachineGpus(detectors_of_this_machine(lambda: import_module("pynvml")), timeout=_GPU_TIMEOUT),
        cgroup=Cgroup(),
    )
    measured, machine = await hardware.measure(), hardware.machine()
    directory = BackendDirectory(
        installed=config.backends, system=config.system_backends, capability=measured.capability
    )
    installed = await asyncio.to_thread(directory.listing)
    return NodeTraits(
        capability=measured.capability,
        platform=platform_of(machine.os, machine.architecture),
        gpu_vendor=measured.gpus.vendor,
        total_vram=measured.gpus.total_vram,
        disk_free=None if measured.disk is None else measured.disk.available,
        installed=frozenset(backend.name for backend in installed if not backend.is_meta),
    )


class LocalBackend(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a listing."""

    name: str
    kind: Literal["build", "meta", "system"]
    alias: str = ""
    build: str = ""
    """The build that a meta backend points to."""
    version: str = ""
    uri: str = ""
    gallery: str = ""
    digest: str = ""
    platform_digest: str = ""
    installed_at: str = ""
    previous_installed_at: str = ""
    """Install time of the version for a rollback; empty when there is none."""


class Newer(msgspec.Struct, frozen=True, kw_only=True):
    """How an installed backend compares with the offered one."""

    name: str
    state: UpgradeState
    installed: str = ""
    """Installed version or digest."""
    available: str = ""
    reason: str = ""
    """Why it is outdated, or why this is unknown."""


class LocalChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a command did to one backend."""

    name: str
    """Its own name, even if another one was given."""
    outcome: LocalOutcome
    version: str = ""
    digest: str = ""
    installed_at: str = ""


class LocalConfig(msgspec.Struct, frozen=True, kw_only=True):
    machine: MachineConfig
    installing: InstallingConfig


async def list_local(config: LocalConfig) -> list[LocalBackend]:
    """Return all backends including the system's. Read-only, so it needs no lock."""
    directory = _directory(config, (await measure(config.machine)).capability)
    return await asyncio.to_thread(lambda: [_row(backend.name, directory) for backend in directory.listing()])


@asynccontextmanager
async def open_local(config: LocalConfig, *, lock: bool = True) -> AsyncIterator["LocalBackends"]:
    """Open the directory exclusively, or raise DataInUse when a worker uses it. Comparisons need no lock."""
    make, clock = open_installer if lock else make_installer, SystemClock()
    async with AsyncExitStack() as stack:
        capability = (await measure(config.machine)).capability
        installer = await make(stack, config.installing, capability=capability, clock=clock)
        yield LocalBackends(config, installer, _directory(config, capability), clock)


class LocalBackends:
    """Operations on the backends of this machine."""

    def __init__(self, config: LocalConfig, installer: Installer, directory: BackendDirectory, clock: Clock) -> None:
        self._config = config
        self._installer = installer
        self._directory = directory
        self._clock = clock

    @property
    def repaired(self) -> Sequence[str]:
        """What was repaired after a crash when the directory was opened."""
        return self._installer.repaired

    async def install(self, order: InstallOrder, report: Report, *, force: bool) -> LocalChange:
        """Install a backend. An installed one stays unless `force` is set."""
        if not force and order.backend and (located := await self._located(order.backend)) is not None:
            return _changed(located.concrete, "of the system" if located.is_system else "unchanged")
        backend = await self._installer.find(order)
        place = self._directory.place(backend.metadata.name)
        if not force and (home := await asyncio.to_thread(self._directory.find, backend.key)) is not None:
            if backend.meta is not None:
                await self._installer.point(backend.meta)
            return _changed(home.directory, "unchanged")
        await self._installer.install(backend, report)
        return _changed(place, "installed")

    async def upgrade(self, name: str, report: Report) -> LocalChange:
        """Install the newest version, from the original source."""
        located = await self._changeable(name, doing="upgraded")
        backend = await self._installer.find(_order_again(name, read_metadata(located.concrete)))
        place = self._directory.place(backend.metadata.name)
        before = identity_of(place)
        await self._installer.upgrade(backend, report)
        return _changed(place, "unchanged" if identity_of(place) == before else "upgraded")

    async def delete(self, name: str) -> LocalChange:
        """Delete a backend with its previous version. Idempotent."""
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
        """Return every installed build."""
        backends = await asyncio.to_thread(self._directory.listing)
        return [backend.name for backend in backends if not backend.is_system and not backend.is_meta]

    async def compared(self) -> list[Newer]:
        """Compare installed backends with the offered ones, several in parallel."""
        slots = asyncio.Semaphore(_LOOKS_AT_ONCE)

        async def compare(name: str) -> Newer:
            async with slots:
                installed = await asyncio.to_thread(read_metadata, self._directory.place(name))
                try:
                    offered = (await self._installer.find(_order_again(name, installed))).metadata
                    return compare_build(name, installed, offered, await self._offered_digests(offered))
                except CorralError as error:
                    is_gone = isinstance(error, NoSuchBackend) and not isinstance(error, GalleryAway)
                    state: UpgradeState = "unknown" if is_gone else "unreachable"
                    return Newer(
                        name=name, state=state, installed=installed.version or installed.digest, reason=error.message
                    )

        names = await self.upgradeable()
        async with task_group() as group:
            looks = [group.create_task(compare(name), name=f"look at {name}") for name in names]
        return [look.result() for look in looks]

    async def _offered_digests(self, offered: Metadata) -> tuple[str, ...]:
        """Return the digests that the source has now: a registry, or a layout on this machine. Raise ImageError if
        unknown."""
        if offered.uri.startswith("/") and not offered.version:
            return await asyncio.to_thread(offered_digests, Path(offered.uri))
        return await digests_at(offered.uri, self._config.installing.images, self._clock)

    async def _located(self, name: str) -> Located | None:
        return await asyncio.to_thread(self._directory.locate, name)

    async def _changeable(self, name: str, *, doing: str) -> Located:
        located = await self._located(name)
        if located is None:
            installed = ", ".join(await self.upgradeable()) or "none"
            raise NotFound(f'backend "{name}": backend not found; installed here: {installed}')
        if located.is_system:
            raise Conflict(f'system backend "{name}" cannot be {doing}: it changes with the system')
        return located


def compare_build(name: str, installed: Metadata, offered: Metadata, digests: Sequence[str]) -> Newer:
    """Compare by the same rule as frontends. `digests` are those of the offered build, the index's first."""
    freshness, evidence = judge_freshness(
        BuildMarks(version=installed.version, digests=frozenset(installed.digests)),
        BuildMarks(version=offered.version, digests=frozenset(digests)),
    )
    by_digest = evidence is Evidence.DIGESTS
    return Newer(
        name=name,
        state=freshness.value,
        installed=installed.digest if by_digest else installed.version,
        available=digests[0] if by_digest else offered.version,
        reason="" if freshness is Freshness.CURRENT else _REASONS[evidence].format(uri=offered.uri),
    )


def _order_again(name: str, metadata: Metadata) -> InstallOrder:
    """Return the order that installs a backend again: from its gallery, or from its uri."""
    if metadata.gallery_url or not metadata.uri:
        return InstallOrder(backend=metadata.name or name, wants_newest=True)
    return InstallOrder(backend=name, uri=metadata.uri, name=metadata.name or name, alias=metadata.alias)


def _directory(config: LocalConfig, capability: str) -> BackendDirectory:
    return BackendDirectory(
        installed=config.installing.backends, system=config.machine.system_backends, capability=capability
    )


def _row(name: str, directory: BackendDirectory) -> LocalBackend:
    located = directory.locate(name)
    if located is None or located.is_system:
        return LocalBackend(name=name, kind="system")
    place = located.meta or located.concrete
    metadata = read_metadata(place)
    return LocalBackend(
        name=name,
        kind="build" if located.meta is None else "meta",
        alias=metadata.alias,
        build=metadata.meta_backend_for,
        version=metadata.version,
        uri=metadata.uri,
        gallery=metadata.gallery or metadata.gallery_url,
        digest=metadata.digest,
        platform_digest=metadata.corral.platform_digest if metadata.corral is not None else "",
        installed_at=metadata.installed_at,
        previous_installed_at=read_metadata(switching.previous_of(place)).installed_at
        if switching.has_previous(place)
        else "",
    )


def _changed(place: Path, outcome: LocalOutcome) -> LocalChange:
    metadata = read_metadata(place)
    return LocalChange(
        name=place.name,
        outcome=outcome,
        version=metadata.version,
        digest=metadata.digest,
        installed_at=metadata.installed_at,
    )
