"""Asks every way to find GPUs, each in its own thread and in time. The first that finds some is believed."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from types import ModuleType

from corral.base.tasks import task_group
from corral.worker.hardware.gpus.apple import Apple
from corral.worker.hardware.gpus.gpu import Detector, MeasuredGpu
from corral.worker.hardware.gpus.nvidia import Nvidia
from corral.worker.hardware.gpus.sysfs import Sysfs
from corral.worker.hardware.gpus.tegra import Tegra
from corral.worker.hardware.readings import BoundedReading

log = logging.getLogger(__name__)


def detectors_of_this_machine(load_nvml: Callable[[], ModuleType]) -> list[Detector]:
    """Return detectors in order of trust: those that know most about a GPU first."""
    return [Nvidia(load_nvml), Tegra(), Sysfs(), Apple()]


class MachineGpus:
    """The GPUs of this machine, as far as they can be read now."""

    def __init__(self, detectors: Sequence[Detector], *, timeout: timedelta) -> None:
        self._ways = [_Way(detector, timeout) for detector in detectors]
        self._told: list[str] = []

    async def read(self) -> list[MeasuredGpu]:
        async with task_group() as group:
            tasks = [group.create_task(way.read(), name=f"gpus {number}") for number, way in enumerate(self._ways)]
        found = next((gpus for task in tasks if (gpus := task.result())), [])
        self._tell(found)
        return found

    def _tell(self, gpus: list[MeasuredGpu]) -> None:
        """Once, and again when there are others."""
        names = [f"{gpu.vendor} {gpu.name}".strip() for gpu in gpus]
        if names != self._told:
            self._told = names
            log.info("GPUs: %s", ", ".join(names) or "none", extra={"event": "hardware.gpus_found"})


class _Way:
    """One detector, and what it last said: a driver that hangs does not make its GPUs disappear."""

    def __init__(self, detector: Detector, timeout: timedelta) -> None:
        self._reading = BoundedReading(detector.find, timeout=timeout, name=f"gpus.{detector.name}")
        self._last: list[MeasuredGpu] = []

    async def read(self) -> list[MeasuredGpu]:
        found = await self._reading.read()
        if found is None:
            return [replace(gpu, free=None) for gpu in self._last]
        self._last = found
        return found
