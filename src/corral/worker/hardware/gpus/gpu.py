"""What is known of a GPU, and reading the small files that say it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from corral.worker.hardware.readings import Space


class Vendor(StrEnum):
    """Makers by the names that LocalAI's peers use; the first one found decides which builds a machine gets."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGpu:
    """One GPU. None: could not be read, which is not the same as 0."""

    vendor: Vendor
    name: str = ""
    compute_capability: tuple[int, int] | None = None
    """NVIDIA's compute capability, as major and minor number."""
    total: int | None = None
    free: int | None = None
    shares_ram: bool = False
    """The GPU has no memory of its own and uses the machine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """All GPUs together; empty and 0 without one. None: there are GPUs, but the value cannot be read."""

    vendor: str = ""
    compute_capability: str = ""
    total_vram: int | None = 0
    available_vram: int | None = 0


class Detector(Protocol):
    """One way to find GPUs."""

    @property
    def name(self) -> str: ...

    def find(self) -> list[MeasuredGpu]:
        """Return all GPUs of one vendor; none if this method does not apply here. May block for ever, and may raise."""


class GpuReader(Protocol):
    """Where facts about GPUs come from."""

    async def read(self) -> list[MeasuredGpu]:
        """What is there now. Never blocks for long, never raises."""


class NoGpus:
    """Detector for machines without GPUs."""

    async def read(self) -> list[MeasuredGpu]:
        return []


def together(gpus: Sequence[MeasuredGpu], ram: Space | None) -> Gpus:
    """The sum over GPUs of one vendor; memory that cannot be read adds nothing, so that no sum promises too much."""
    if not gpus:
        return Gpus()
    shared = ram if any(gpu.shares_ram for gpu in gpus) else None
    return Gpus(
        vendor=gpus[0].vendor,
        compute_capability=_lowest(gpu.compute_capability for gpu in gpus),
        total_vram=_sum_of_known([*(gpu.total for gpu in gpus), shared.total if shared else None]),
        available_vram=_sum_of_known([*(gpu.free for gpu in gpus), shared.available if shared else None]),
    )


def _sum_of_known(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _lowest(capabilities: Iterable[tuple[int, int] | None]) -> str:
    """What all of them can do, since a model may be spread over them."""
    known = [capability for capability in capabilities if capability is not None]
    return "{}.{}".format(*min(known)) if known else ""


def text_in(path: Path) -> str:
    """Trimmed, also of the zero bytes in a device tree; empty when it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8", errors="replace").strip(" \t\n\0")
    except OSError:
        return ""


def number_in(path: Path) -> int | None:
    """Decimal, or hexadecimal after `0x`; None when it is neither."""
    text = text_in(path)
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        return None
