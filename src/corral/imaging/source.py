"""Reads a backend's directory for `corral backend build`: its own files, and what it needs."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.imaging.description import BackendDescription, read_description
from corral.imaging.entries import RUNNABLE, Entry, entries_of, in_order, is_left_over
from corral.imaging.errors import BuildFailed

RUN: Final = "run.sh"
PYTHON: Final = "python"
LIBRARIES: Final = "lib"
SDK: Final = "sdk"
_SDK_PACKAGE: Final = "corral_backend_sdk"
_RESERVED: Final = {"packages": "the Python packages", PYTHON: "the interpreter"}
_NOT_OURS: Final = frozenset({"venv", "metadata.json"})
_MOST_SCRIPT_BYTES: Final = 1024 * 1024
LOCK: Final = "requirements.txt"
_MOST_LOCK_BYTES: Final = 16 * 1024 * 1024
_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_PINNED: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*==\s*[A-Za-z0-9][A-Za-z0-9.!+_-]*\s*(?:;|\s|$)"
)
_HASH: Final = re.compile(r"\s--hash[= ]sha(?:256|384|512):[0-9a-f]{64,128}(?=\s|$)")
_ADVICE: Final = "make the file with `uv pip compile --universal --generate-hashes`"


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


def read_lock(path: Path) -> tuple[str, ...]:
    """Return the names of the packages in a lock file, in order; empty when there is none. BuildFailed names the line.

    Each package must be pinned and have hashes. That is checked before anything is fetched, so that the error names the
    line; the installer verifies the hashes.
    """
    try:
        content = read_bounded(path, _MOST_LOCK_BYTES)
    except FileNotFoundError:
        return ()
    except (InvalidInput, OSError) as error:
        raise BuildFailed(f"{path} cannot be read: {error}") from error
    if content is None:
        raise BuildFailed(f"{path} is larger than {_MOST_LOCK_BYTES} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise BuildFailed(f"{path} is not text in UTF-8") from error
    return tuple(_checked(requirement, path, line) for line, requirement in _requirements(text))


def _requirements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each requirement with the number of its first line; a backslash joins lines."""
    first, gathered = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _COMMENT.sub("", raw).rstrip()
        goes_on = line.endswith("\\")
        first = first if gathered else number
        gathered += line.removesuffix("\\") + " "
        if not goes_on:
            if gathered.strip():
                yield first, gathered.strip()
            gathered = ""
    if gathered.strip():
        yield first, gathered.strip()


def _checked(requirement: str, path: Path, line: int) -> str:
    excerpt = requirement.partition(" --hash")[0][:100]
    if requirement.startswith("-"):
        raise BuildFailed(f"{path}: line {line}: {excerpt!r} is an option, and a lock has none: {_ADVICE}")
    pinned = _PINNED.match(requirement)
    if pinned is None:
        raise BuildFailed(f"{path}: line {line}: {excerpt!r} is not pinned with ==; {_ADVICE}")
    if not _HASH.search(requirement):
        raise BuildFailed(f"{path}: line {line}: {excerpt!r} has no hash; {_ADVICE}")
    return pinned[1].lower()
