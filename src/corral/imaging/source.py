"""Reads a backend's directory for `corral backend build`: its own files, and what it needs."""

from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.imaging.description import BackendDescription, read_description
from corral.imaging.entries import RUNNABLE, Entry, entries_of, in_order, is_left_over
from corral.imaging.errors import BuildFailed
from corral.imaging.requirements import FILE as LOCK
from corral.imaging.requirements import read_lock

RUN: Final = "run.sh"
PYTHON: Final = "python"
LIBRARIES: Final = "lib"
SDK: Final = "sdk"
_SDK_PACKAGE: Final = "corral_backend_sdk"
_RESERVED: Final = {"packages": "the Python packages", PYTHON: "the interpreter"}
_NOT_OURS: Final = frozenset({"venv", "metadata.json"})
_MOST_SCRIPT_BYTES: Final = 1024 * 1024


class BackendSource(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that can become an image."""

    directory: Path
    description: BackendDescription
    lock: Path
    packages: tuple[str, ...]
    """Names of the packages; empty if it needs none."""
    own: tuple[Entry, ...]
    """Its files and the SDK's, as entries of the image."""


def read_source(directory: Path, *, sdk: Path | None = None) -> BackendSource:
    """Read and check everything before the build. BuildFailed names the file and what to do. Blocking."""
    if not directory.is_dir():
        raise BuildFailed(f"there is no directory {directory}")
    run = directory / RUN
    if not run.is_file():
        raise BuildFailed(f"{run} is missing: a backend is a directory with an executable {RUN}")
    for name, use in _RESERVED.items():
        if (directory / name).exists():
            raise BuildFailed(f"{directory / name} is in the way: in an image this name is for {use}; rename it")
    description = read_description(directory)
    lock = directory / LOCK
    own = entries_of(directory, skip=_is_not_ours)
    own += _sdk_entries(directory, sdk)
    return BackendSource(
        directory=directory,
        description=description,
        lock=lock,
        packages=read_lock(lock),
        own=tuple(map(_runnable, in_order(own))),
    )


def _is_not_ours(path: PurePosixPath) -> bool:
    is_top = len(path.parts) == 1
    return (
        path.name.startswith(".") or path.suffix == ".in" or is_left_over(path) or (is_top and path.name in _NOT_OURS)
    )


def _runnable(entry: Entry) -> Entry:
    """Make the start script executable: a checkout on some file systems loses the bit."""
    return replace(entry, mode=RUNNABLE) if entry.name == RUN else entry


def _sdk_entries(directory: Path, named: Path | None) -> list[Entry]:
    """Return the files of the given SDK, of the backend's own, or of the one beside it. Other languages need none."""
    if named is not None and not (named / _SDK_PACKAGE).is_dir():
        raise BuildFailed(f"--sdk: there is no {_SDK_PACKAGE} in {named}")
    if named is None and (directory / SDK).is_dir():
        return []
    beside = named or directory.resolve().parent / SDK
    if (beside / _SDK_PACKAGE).is_dir():
        return entries_of(beside, below=SDK, skip=_is_not_ours)
    if _mentions_sdk(directory):
        raise BuildFailed(f"{directory / SDK} is missing, and so is {beside}: say with --sdk where the SDK is")
    return []


def _mentions_sdk(directory: Path) -> bool:
    for name, word in ((RUN, b"sdk/start.sh"), ("backend.py", _SDK_PACKAGE.encode())):
        try:
            with (directory / name).open("rb") as file:
                if word in file.read(_MOST_SCRIPT_BYTES):
                    return True
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BuildFailed(f"{directory / name} cannot be read: {error.strerror}") from error
    return False
