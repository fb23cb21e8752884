"""NVIDIA's management library in the form of its Python package, with cards that a test describes."""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pynvml  # type: ignore[import-untyped]

MIB = 1024**2


@dataclass(frozen=True)
class Memory:
    total: int
    free: int


@dataclass
class Device:
    """Answers, or the number of an error."""

    name: str | int
    memory: Memory | int
    capability: tuple[int, int] | int = (8, 6)
    handle_error: int | None = None
    uuid: str | int = "GPU-1"


@dataclass
class Library:
    """The part of `pynvml` that we use, with its real errors."""

    devices: list[Device] = field(default_factory=list)
    init_error: int | None = None
    count_error: int | None = None
    calls: list[str] = field(default_factory=list)

    NVMLError = pynvml.NVMLError
    NVML_ERROR_LIBRARY_NOT_FOUND = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    NVML_ERROR_DRIVER_NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED

    def nvmlInit(self) -> None:  # noqa: N802
        self.calls.append("init")
        answered(self.init_error)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.calls.append("shutdown")
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        answered(self.count_error)
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        answered(self.devices[index].handle_error)
        return self.devices[index]

    def nvmlDeviceGetUUID(self, device: Device) -> Any:  # noqa: N802
        return answered(device.uuid)

    def nvmlDeviceGetName(self, device: Device) -> Any:  # noqa: N802
        return answered(device.name)

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:  # noqa: N802
        return answered(device.memory)

    def nvmlDeviceGetCudaComputeCapability(self, device: Device) -> Any:  # noqa: N802
        return answered(device.capability)


def answered(answer: object) -> object:
    if isinstance(answer, int):
        raise pynvml.NVMLError(answer)
    return answer


def as_module(library: Library) -> ModuleType:
    return library  # type: ignore[return-value]
