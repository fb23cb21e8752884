"""The facts that decide which backends fit this machine, for commands without a worker."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Final

from corral.base.settings import settings_of
from corral.galleries.config import GalleriesConfig
from corral.galleries.fit import NodeTraits
from corral.oci.manifests import platform_of
from corral.processes.configs import shipped_backends
from corral.processes.settings import MACHINE_SETTINGS
from corral.processes.settings_sources import SettingSources, resolve
from corral.worker.config import WorkerConfig
from corral.worker.hardware.cgroup import Cgroup
from corral.worker.hardware.gpus.detection import MachineGpus, detectors_of_this_machine
from corral.worker.hardware.machine import CapabilityRule, Hardware
from corral.worker.installing.backend_directory import BackendDirectory

_DISK_TIMEOUT: Final = timedelta(seconds=2)
_GPU_TIMEOUT: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfig:
    """The settings of a worker that describe this machine."""

    capability: CapabilityRule
    backends: Path
    system_backends: Sequence[Path] = ()


def machine_config(sources: SettingSources) -> MachineConfig:
    """Resolve the settings that describe this machine, without those that only a running worker needs."""
    others = frozenset(setting.name for setting in settings_of(WorkerConfig)) - MACHINE_SETTINGS
    settings = resolve(WorkerConfig, sources, without=others)
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
