"""Platforms that images are built for, and their names in Python's installers."""

import re
import sys
from typing import Final

from corral.base.errors import InvalidInput
from corral.oci.manifests import ImagePlatform

_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
KNOWN: Final = tuple(f"{system}/{machine}" for system in ("linux", "darwin") for machine in _MACHINES)
GLIBC_VERSIONS: Final = ("2.17", "2.28", *(f"2.{minor}" for minor in range(31, 41)))
USUAL_GLIBC: Final = "2.28"
"""From 2018: machines that run models have at least this version, and nearly all wheels need no later one."""
OLDEST_PYTHON: Final = (3, 11)
_VERSION: Final = re.compile(r"3\.(\d{1,3})")


def read_platform(text: str) -> ImagePlatform:
    """Parse a platform. InvalidInput lists the supported ones."""
    if text not in KNOWN:
        raise InvalidInput(
            "--platform", f"{text!r} is no platform that images are made for; known are {', '.join(KNOWN)}"
        )
    system, _, machine = text.partition("/")
    return ImagePlatform(os=system, architecture=machine)


def wheel_platform(platform: ImagePlatform, glibc: str) -> str:
    """Return uv's name of a platform."""
    machine = _MACHINES[platform.architecture]
    return f"{machine}-manylinux_{glibc.replace('.', '_')}" if platform.os == "linux" else f"{machine}-apple-darwin"


def read_python_version(text: str) -> str:
    """Parse a version like 3.12; the patch level does not matter to packages."""
    match = _VERSION.fullmatch(text)
    if match is None or (3, int(match[1])) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise InvalidInput("--python-version", f"{text!r} is no version like 3.12; the oldest is {oldest}")
    return text


def this_python() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"
