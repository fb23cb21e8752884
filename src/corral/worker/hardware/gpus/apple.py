"""Apple's own chips: one GPU that shares the machine's memory. macOS only."""

import subprocess
import sys
from collections.abc import Callable
from typing import Final

from corral.worker.hardware.gpus.gpu import MeasuredGpu, Vendor

_SYSCTL: Final = "/usr/sbin/sysctl"
_WITHIN_SECONDS: Final = 2


class Apple:
    name = "apple"

    def __init__(self, *, system: str = sys.platform, sysctl: "Callable[[str], str] | None" = None) -> None:
        self._system = system
        self._sysctl = sysctl or read_sysctl
        self._found: list[MeasuredGpu] | None = None

    def find(self) -> list[MeasuredGpu]:
        """Asked once: a chip does not change, and its memory is the machine's."""
        if self._found is None:
            self._found = self._look() if self._system == "darwin" else []
        return self._found

    def _look(self) -> list[MeasuredGpu]:
        if self._sysctl("hw.optional.arm64") != "1":
            return []
        return [MeasuredGpu(vendor=Vendor.APPLE, name=self._sysctl("machdep.cpu.brand_string"), shares_ram=True)]


def read_sysctl(name: str) -> str:
    """A value of the kernel; empty when it has none of that name, as Macs with Intel's processors."""
    command = [_SYSCTL, "-n", name]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_SECONDS, check=False)  # noqa: S603
    return answer.stdout.strip() if answer.returncode == 0 else ""
