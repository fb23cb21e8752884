"""Which of the images of an index is for this machine."""

import platform
import sys
from collections.abc import Iterable
from typing import Final

import msgspec

from corral.oci.errors import PlatformMissing

_ARCHITECTURES: Final = {
    "x86_64": ("amd64", ""),
    "amd64": ("amd64", ""),
    "aarch64": ("arm64", ""),
    "arm64": ("arm64", ""),
    "armv8l": ("arm", "v8"),
    "armv7l": ("arm", "v7"),
    "armv6l": ("arm", "v6"),
    "i386": ("386", ""),
    "i686": ("386", ""),
}
_PLAIN: Final = {("arm64", "v8"): "", ("amd64", "v1"): "", ("arm", ""): "v7"}
"""Variants that say no more than their absence, and the one that is meant by it."""
_UNKNOWN: Final = "unknown"


class ImagePlatform(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As images state it."""

    # Made anew each time, so that they are always written: readers need both.
    os: str = msgspec.field(default_factory=lambda: "linux")
    architecture: str = msgspec.field(default_factory=lambda: "amd64")
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))

    @property
    def level(self) -> int:
        """The variant as a number: within one architecture, a machine runs what is not above its own."""
        variant = _PLAIN.get((self.architecture, self.variant), self.variant)
        digits = variant.removeprefix("v").partition(".")[0]
        return int(digits) if digits.isdigit() else 0


ASSUMED: Final = ImagePlatform()
"""What an entry without a platform is taken for, as LocalAI does it."""


def this_platform() -> ImagePlatform:
    machine = platform.machine().lower()
    architecture, variant = _ARCHITECTURES.get(machine, (machine, ""))
    return ImagePlatform(os=sys.platform, architecture=architecture, variant=variant)


def choose(offered: Iterable[ImagePlatform | None], wanted: ImagePlatform) -> int:
    """The number of the best fitting one; PlatformMissing tells which there are."""
    platforms = [one or ASSUMED for one in offered]
    fitting = [number for number, one in enumerate(platforms) if _fits(one, wanted)]
    if not fitting:
        there = sorted({str(one) for one in platforms if one.os != _UNKNOWN})
        raise PlatformMissing(f"there is no image for {wanted}; there are images for {', '.join(there) or 'nothing'}")
    return max(fitting, key=lambda number: (platforms[number].level, -number))


def _fits(one: ImagePlatform, wanted: ImagePlatform) -> bool:
    is_alike = (one.os, one.architecture) == (wanted.os, wanted.architecture)
    return is_alike and one.level <= wanted.level
