"""The SQLite file on disk: where it is, who may read it, and the lock that keeps a second frontend out."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corral.base.errors import DatabaseInUse, PathNotUsable
from corral.base.private_files import make_private_directory


def prepare_file(path: Path) -> None:
    """Create the file, readable by its owner only; SQLite gives its companions the same mode."""
    make_private_directory(path.parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PathNotUsable(f"cannot use {path} as the database: {error.strerror}") from error


@contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Hold `<file>.lock`, with our process id in it. The kernel lets go when the process ends, however it ends."""
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PathNotUsable(f"cannot lock the database {path}: {error.strerror}") from error
    try:
        _take(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", errors="replace").strip()
        who = f"process {holder}" if holder else "another process"
        raise DatabaseInUse(
            f"{path} is already in use by {who}; an SQLite file serves one frontend, several frontends need PostgreSQL",
            path=str(path),
            holder=holder,
        ) from error
