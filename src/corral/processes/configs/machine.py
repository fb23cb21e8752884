"""What commands are configured with that look at this machine and run no worker."""

from corral.processes.own_program import shipped_backends
from corral.processes.settings_sources import SettingSources, resolve, settings_of
from corral.processes.settings_table import MACHINE_SETTINGS, GallerySettings, WorkerSettings
from corral.processes.this_machine import MachineConfig
from corral.worker.hardware.machine import CapabilityRule


def machine_config(sources: SettingSources) -> MachineConfig:
    """This machine as a worker with the same settings would see it; what else a worker needs is not asked for."""
    others = frozenset(one.name for one in settings_of(WorkerSettings)) - MACHINE_SETTINGS
    settings = resolve(WorkerSettings, sources, without=others)
    return MachineConfig(
        capability=CapabilityRule(forced=settings.capability, run_file=settings.capability_run_file),
        backends=settings.backends or settings.data / "backends",
        system_backends=(settings.system_backends, *shipped_backends(resolve(GallerySettings, sources))),
    )
