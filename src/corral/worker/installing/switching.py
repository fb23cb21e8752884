"""Replaces a directory by a new version, so that after a crash at any step there is the old or the new one, never a
mixture. Blocking: call it in a thread.

A new version is made beside its place, under a name that is not a backend's. The old one is moved aside, the new
one moved in; the old one is deleted, or kept for a rollback. A directory is renamed before it is deleted, so that a
partly deleted one is never used. `repair` cleans up after a crash at the next start.
"""

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import Final

from corral.worker.installing.backend_directory import BACKUP, RUN, STAGING, UNFINISHED

log = logging.getLogger(__name__)

DIRECTORY_MODE: Final = 0o750
OWN: Final = ".corral"
"""Directory for Corral's own files among the backends. LocalAI ignores it, because it has no `run.sh`."""
_PREVIOUS: Final = "previous"
_SCRATCH: Final = "scratch"
_HOMES: Final = "homes"


def staging_of(place: Path) -> Path:
    """Return where the next version of a backend is made."""
    return place.with_name(place.name + STAGING)


def previous_of(place: Path) -> Path:
    """Return where the previous version is kept."""
    return place.parent / OWN / _PREVIOUS / place.name


def home_of(place: Path) -> Path:
    """Return the directory that a backend's processes have as their HOME, and that stays as long as the backend."""
    return place.parent / OWN / _HOMES / place.name


def scratch_of(place: Path) -> Path:
    """Return the path of a temporary file that will be moved into the backend's directory."""
    folder = place.parent / OWN / _SCRATCH
    folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    return folder / place.name


def _backup_of(place: Path) -> Path:
    return place.with_name(place.name + BACKUP)


def has_previous(place: Path) -> bool:
    """Whether there is a previous version."""
    return (previous_of(place) / RUN).is_file()


def begin(place: Path) -> Path:
    """Return an empty directory for the next version; remove what an earlier attempt left."""
    place.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    _restore(place)
    staging = staging_of(place)
    discard(staging)
    staging.mkdir(mode=DIRECTORY_MODE)
    return staging


def settle(tree: Path) -> None:
    """Flush a tree to disk, so that the new version is complete after a power cut."""
    for folder, _, files in os.walk(tree):
        for name in files:
            _sync(Path(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        settle_names(Path(folder))


def settle_names(folder: Path) -> None:
    """Flush the names in one directory to disk."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def switch(place: Path) -> None:
    """Put the prepared version in place. On failure the old version is back in place."""
    _exchange(place, staging_of(place))
    discard_if_possible(_backup_of(place))


def switch_and_keep(place: Path) -> None:
    """Put the prepared version in place, and keep the replaced one for a rollback instead of an older one."""
    _exchange(place, staging_of(place))
    backup = _backup_of(place)
    try:
        if (backup / RUN).is_file():
            _move(backup, _cleared(previous_of(place)))
    except OSError as error:
        log.warning("cannot keep what was in %s: %s", place, error.strerror, extra={"event": "install.not_kept"})
    discard_if_possible(backup)
    discard_if_possible(staging_of(previous_of(place)))


def roll_back(place: Path) -> None:
    """Swap the previous and the current version. Raise FileNotFoundError without a previous one."""
    previous = previous_of(place)
    _exchange(place, previous)
    settle_names(previous.parent)
    backup = _backup_of(place)
    if _exists(backup):
        _move(backup, previous)


def forget_previous(place: Path) -> None:
    """Delete the previous version: no rollback is possible afterwards."""
    previous = previous_of(place)
    if _exists(previous):
        _cleared(previous)
        discard_if_possible(staging_of(previous))


def remove(place: Path) -> None:
    """Remove a backend, its previous version and its HOME: rename first, then delete. Idempotent."""
    forget_previous(place)
    discard_if_possible(home_of(place))
    if not _exists(place):
        return
    staging = staging_of(place)
    discard(staging)
    _move(place, staging)
    discard_if_possible(staging)


def repair(folder: Path) -> list[str]:
    """Repair after a crash; return the names of the backends that were restored or cleaned up."""
    folder.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    unfinished = [path for path in sorted(folder.iterdir()) if path.name.endswith(UNFINISHED)]
    for path in unfinished:
        if path.name.endswith(BACKUP):
            _restore(path.with_name(path.name.removesuffix(BACKUP)))
        discard_if_possible(path)
    # Unfinished versions, and what is kept for backends that do not exist any more.
    scratch = _listed(folder / OWN / _SCRATCH)
    for path in (*_listed(folder / OWN / _PREVIOUS), *_listed(folder / OWN / _HOMES)):
        if path.name.endswith(UNFINISHED) or not _exists(folder / path.name):
            scratch.append(path)
    for path in scratch:
        discard_if_possible(path)
    return [path.name for path in unfinished + scratch]


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def discard(path: Path) -> None:
    """Remove a path of any kind, without following a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def discard_if_possible(path: Path) -> None:
    """Delete where a failure is harmless, because the next start tries again."""
    try:
        discard(path)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror, extra={"event": "install.leftover"})


def _exchange(place: Path, new: Path) -> None:
    """Move the new version in place, and the old one next to it."""
    backup = _backup_of(place)
    discard(backup)
    had_one = _exists(place)
    if had_one:
        place.rename(backup)
    try:
        new.rename(place)
    except BaseException:
        if had_one:
            backup.rename(place)
        raise
    settle_names(place.parent)


def _cleared(previous: Path) -> Path:
    """Return the free path for the previous version; an older one is moved away before it is deleted."""
    previous.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    if _exists(previous):
        doomed = staging_of(previous)
        discard(doomed)
        _move(previous, doomed)
    return previous


def _move(path: Path, target: Path) -> None:
    path.rename(target)
    settle_names(target.parent)
    if path.parent != target.parent:
        settle_names(path.parent)


def _restore(place: Path) -> None:
    """Move the old version back, if a crash happened between the two moves."""
    backup = _backup_of(place)
    if _exists(backup) and not _exists(place):
        backup.rename(place)


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _sync(path: Path, flags: int) -> None:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EACCES}:
            return  # links are part of their directory; unreadable files are skipped
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
