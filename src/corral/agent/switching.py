"""Putting a whole directory in the place of another, so that after a crash at any step there is the old one or the new
one, never a mixture. May block: call it in a thread.

A new version is made beside its place, under a name that is no backend's. The old one is moved aside, the new one moved
in, the old one removed. What a crash leaves is put right by `repair` at the next start.
"""

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import Final

from corral.agent.backend_directory import BACKUP, STAGING, UNFINISHED

log = logging.getLogger(__name__)

DIRECTORY_MODE: Final = 0o750


def staging_of(place: Path) -> Path:
    """Where the next version of a backend is made."""
    return place.with_name(place.name + STAGING)


def _backup_of(place: Path) -> Path:
    return place.with_name(place.name + BACKUP)


def begin(place: Path) -> Path:
    """An empty directory for the next version; what an earlier attempt left is gone."""
    place.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    _restore(place)
    staging = staging_of(place)
    discard(staging)
    staging.mkdir(mode=DIRECTORY_MODE)
    return staging


def settle(tree: Path) -> None:
    """Have everything below on the disk itself, so that a power cut after the switch finds the new version whole."""
    for folder, _, files in os.walk(tree):
        for name in files:
            _sync(Path(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        _sync(Path(folder), os.O_RDONLY | os.O_DIRECTORY)


def switch(place: Path) -> None:
    """Put what was made beside it into its place. When that fails, what was there is there again."""
    backup = _backup_of(place)
    discard(backup)
    had_one = _exists(place)
    if had_one:
        place.rename(backup)
    try:
        staging_of(place).rename(place)
    except BaseException:
        if had_one:
            backup.rename(place)
        raise
    _sync(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    discard_if_possible(backup)


def remove(place: Path) -> None:
    """Take a directory away at once, and then its content. Nothing there is as good."""
    if not _exists(place):
        return
    staging = staging_of(place)
    discard(staging)
    place.rename(staging)
    _sync(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    discard_if_possible(staging)


def repair(folder: Path) -> list[str]:
    """Put right what a crash left; the names of the backends that were put back or cleaned up after."""
    folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    left = [path for path in sorted(folder.iterdir()) if path.name.endswith(UNFINISHED)]
    for path in left:
        if path.name.endswith(BACKUP):
            _restore(path.with_name(path.name.removesuffix(BACKUP)))
        discard_if_possible(path)
    return [path.name for path in left]


def discard(path: Path) -> None:
    """Remove whatever is there, without following a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def discard_if_possible(path: Path) -> None:
    """The same where failing harms nobody: the next start tries again."""
    try:
        discard(path)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror, extra={"event": "install.leftover"})


def _restore(place: Path) -> None:
    """A crash between the two moves leaves only the old version, moved aside."""
    backup = _backup_of(place)
    if _exists(backup) and not _exists(place):
        backup.rename(place)


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _sync(path: Path, flags: int) -> None:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {
            errno.ELOOP,
            errno.EACCES,
        }:  # links are part of their directory; what we may not read came so
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
