"""Collects the files of a layer, without anything specific to this machine.

Modes are reduced to whether a file is executable, because the other bits depend on the umask. Owners and times are
dropped.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from corral.imaging.errors import BuildFailed

PLAIN: Final = 0o644
RUNNABLE: Final = 0o755


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file, a link or a directory of an image."""

    name: str
    """Path from the image's root, without leading and trailing slash."""
    file: Path | None = None
    """The file with its content; None for links and directories."""
    link: str = ""
    """Target of a link."""
    mode: int = RUNNABLE


Skip = Callable[[PurePosixPath], bool]
"""Whether a path below the folder, and everything below it, is left out of the image."""


def is_left_over(path: PurePosixPath) -> bool:
    """Whether Python wrote this file beside its sources: it differs between builds."""
    return path.name == "__pycache__" or path.suffix in (".pyc", ".pyo")


def entries_of(folder: Path, *, below: str = "", skip: Skip = is_left_over) -> list[Entry]:
    """Return the entries of a folder in a fixed order, placed below a name in the image. BuildFailed names an invalid
    one."""
    entries = list(_walk(folder, PurePosixPath(), PurePosixPath(below), skip))
    return [*(Entry(name=name) for name in _parents(below)), *entries]


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Sort entries: each name once, directories before their content."""
    return [entry for _, entry in sorted({entry.name: entry for entry in entries}.items())]


def _parents(below: str) -> Iterator[str]:
    path = PurePosixPath(below)
    for place in (*reversed(path.parents), path):
        if place.name:
            yield str(place)


def _walk(folder: Path, inside: PurePosixPath, below: PurePosixPath, skip: Skip) -> Iterator[Entry]:
    try:
        names = sorted(os.listdir(folder / inside))
    except OSError as error:
        raise BuildFailed(f"{folder / inside} cannot be read: {error.strerror}") from error
    for name in names:
        path = inside / name
        if skip(path):
            continue
        entry = _entry(folder, path, str(below / path))
        yield entry
        if entry.file is None and not entry.link:
            yield from _walk(folder, path, below, skip)


def _entry(folder: Path, path: PurePosixPath, name: str) -> Entry:
    place = folder / path
    mode = os.lstat(place).st_mode
    if stat.S_ISDIR(mode):
        return Entry(name=name)
    if stat.S_ISLNK(mode):
        return Entry(name=name, link=_checked_link(folder, path))
    if stat.S_ISREG(mode):
        return Entry(name=name, file=place, mode=RUNNABLE if mode & 0o111 else PLAIN)
    raise BuildFailed(f"{place} is neither a file, nor a directory, nor a link: it cannot be part of an image")


def _checked_link(folder: Path, path: PurePosixPath) -> str:
    """Return a link's target. Refuse one outside the folder: it would lead anywhere on the installing machine."""
    target = os.readlink(folder / path)
    led_to = os.path.normpath(path.parent / target)
    if os.path.isabs(target) or led_to == ".." or led_to.startswith("../"):
        raise BuildFailed(f"{folder / path} is a link to {target}, which is not inside {folder}")
    return target
