"""A machine with a GPU, for workers that are real processes: what NVIDIA's management library would say of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

CARD_NAME: Final = "Test GPU 24G"
CARD_GIB: Final = 24
FREE_CARD_GIB: Final = 20
_LIBRARY: Final = f"""
NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9


class NVMLError(Exception):
    value = 0


class Memory:
    total, free = {CARD_GIB} << 30, {FREE_CARD_GIB} << 30


def nvmlInit():
    pass


def nvmlDeviceGetCount():
    return 1


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(card):
    return "GPU-of-the-test"


def nvmlDeviceGetName(card):
    return {CARD_NAME!r}


def nvmlDeviceGetMemoryInfo(card):
    return Memory


def nvmlDeviceGetCudaComputeCapability(card):
    return (8, 6)
"""
_DRIVER: Final = """
import corral.worker.hardware.gpus

corral.worker.hardware.gpus.SIGNS = ("proc",)
"""
"""The signs of a loaded driver are files of the system, which a test cannot make: any file will do."""


def write_gpu_machine(folder: Path) -> Mapping[str, str]:
    """Write the library of such a machine; the variables that a worker needs to be on it."""
    folder.mkdir(parents=True)
    (folder / "pynvml.py").write_text(_LIBRARY, encoding="utf-8")
    (folder / "sitecustomize.py").write_text(_DRIVER, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}
