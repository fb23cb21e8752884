"""Installs the packages of a lock file into a folder, for any platform, without running their code.

Uses uv, or pip if there is no uv. Only wheels are accepted: building one would run its author's code here, for this
machine's platform.
"""

import importlib.util
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from corral.base.errors import InvalidInput
from corral.base.processes import ChildCommand, Output, start_process
from corral.imaging.entries import Entry, entries_of, is_left_over
from corral.imaging.errors import BuildFailed, PackagesMissing
from corral.imaging.targets import this_python, wheel_platform
from corral.oci.manifests import ImagePlatform, this_platform

FOLDER: Final = "packages"
_LAST_LINES: Final = 12
_SCRIPT: Final = b"#!"

# What installers record about themselves and this machine: it differs between builds.
_TRACES: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
_COMMON: Final = ("install", "--no-deps", "--only-binary", ":all:", "--require-hashes")

# pip's variables, and their names in uv.
_HANDED_ON: Final = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
    "PIP_CERT": "SSL_CERT_FILE",
}


class InstallerKind(StrEnum):
    UV = "uv"
    PIP = "pip"


class PackageInstaller(msgspec.Struct, frozen=True, kw_only=True):
    """A program that installs Python packages."""

    kind: InstallerKind
    words: Sequence[str]
    """Command line prefix."""


class PackageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which packages to install, for which platform, and where."""

    lock: Path
    target: Path
    platform: ImagePlatform
    python_version: str
    glibc: str
    wheels: Path | None = None
    """A folder with all wheels; no index is used then."""


def find_installer(named: Path | None, candidates: Iterable[Path], path: str) -> PackageInstaller:
    """Return the named installer, or the first available: uv at one of the candidates, uv on the PATH, pip."""
    if named is not None:
        if not named.is_file():
            raise InvalidInput("--installer", f"there is no program {named}")
        kind = InstallerKind.UV if named.name.startswith("uv") else InstallerKind.PIP
        return PackageInstaller(kind=kind, words=[str(named)])
    for place in (*candidates, shutil.which("uv", path=path)):
        if place is not None and Path(place).is_file():
            return PackageInstaller(kind=InstallerKind.UV, words=[str(place)])
    if importlib.util.find_spec("pip") is not None:
        return PackageInstaller(kind=InstallerKind.PIP, words=[sys.executable, "-m", "pip"])
    raise BuildFailed("there is neither uv nor pip to get packages with: install uv, or name one with --installer")


async def install(installer: PackageInstaller, wish: PackageRequest, environment: Mapping[str, str]) -> None:
    """Install the packages. PackagesMissing has the end of the installer's output. Cancelling stops the installer."""
    words = _uv_words(wish) if installer.kind is InstallerKind.UV else _pip_words(wish)
    command = ChildCommand(
        argv=[*installer.words, *words],
        env=_environment(installer.kind, environment),
        output=Output.TAIL,
    )
    async with start_process(command) as process:
        code = await process.wait()
        if code != 0:
            raise _failure(installer, wish, process.tail)


def entries_in(target: Path, python_version: str) -> list[Entry]:
    """Return the installed files as entries of an image."""
    return [
        entry
        for entry in entries_of(target, below=f"{FOLDER}/{python_version}", skip=_is_trace)
        if not _is_script(entry, python_version)
    ]


def _is_trace(path: PurePosixPath) -> bool:
    is_record = path.name in _TRACES and path.parent.suffix == ".dist-info"
    return is_record or is_left_over(path) or (len(path.parts) == 1 and path.name.startswith("."))


def _is_script(entry: Entry, python_version: str) -> bool:
    """Whether this is a script whose first line names a Python of this machine. Other programs stay."""
    if entry.file is None or not entry.name.startswith(f"{FOLDER}/{python_version}/bin/"):
        return False
    with entry.file.open("rb") as file:
        return file.read(len(_SCRIPT)) == _SCRIPT


def _uv_words(wish: PackageRequest) -> list[str]:
    return [
        *("pip", *_COMMON, "--quiet", "--no-progress", "--python", sys.executable),
        *("--python-version", wish.python_version),
        *("--python-platform", wheel_platform(wish.platform, wish.glibc)),
        *_only_from(wish),
        *("--target", str(wish.target), "-r", str(wish.lock)),
    ]


def _pip_words(wish: PackageRequest) -> list[str]:
    """Return pip's command line. pip evaluates the lock's conditions for its own machine whatever platform is
    requested."""
    if wish.platform != this_platform() or wish.python_version != this_python():
        target = f"{wish.platform} and Python {wish.python_version}"
        raise BuildFailed(f"pip cannot get packages for {target} here: install uv, or name it with --installer")
    return [
        *(*_COMMON, "--quiet", "--no-compile", "--disable-pip-version-check", "--no-input"),
        *_only_from(wish),
        *("--target", str(wish.target), "-r", str(wish.lock)),
    ]


def _only_from(wish: PackageRequest) -> list[str]:
    return ["--no-index", "--find-links", str(wish.wheels)] if wish.wheels is not None else []


def _environment(kind: InstallerKind, environment: Mapping[str, str]) -> dict[str, str]:
    """Translate pip's variables for uv, which ignores them; uv's own variables take precedence."""
    if kind is InstallerKind.PIP:
        return {**environment, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    handed_on = {new: environment[old] for old, new in _HANDED_ON.items() if environment.get(old)}
    if "SSL_CERT_FILE" not in handed_on:
        handed_on["UV_SYSTEM_CERTS"] = "1"
    return {**handed_on, **environment, "UV_PYTHON_DOWNLOADS": "never"}


def _failure(installer: PackageInstaller, wish: PackageRequest, tail: Sequence[str]) -> PackagesMissing:
    last_output = " ".join(" ".join(tail[-_LAST_LINES:]).split()) or "it said nothing"
    target = f"{wish.platform} and Python {wish.python_version}"
    if wish.platform.os == "linux":
        target += f" with glibc {wish.glibc}"
    knobs = "--platform, --python-version and --glibc say for whom wheels are wanted, --wheels where they are"
    return PackagesMissing(
        f"{wish.lock}: {installer.kind} cannot get its packages for {target} ({knobs}): {last_output}"
    )
