"""The content of a layer: which files, under which names, without anything that only this machine has.

Modes are reduced to whether a file can be run, since a checkout's umask is nobody's business. Owners and times are
not kept at all.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from corral.imaging.errors import BuildFailed

PLAIN: Final = 0o644
RUNNABLE: Final = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file, a link or a directory of an image."""

    name: str
    """From the image's root, with slashes and without one at either end."""
    file: Path | None = None
    """Where its content is; None for links and directories."""
    link: str = ""
    """Where a link leads."""
    mode: int = RUNNABLE


Skip = Callable[[PurePosixPath], bool]
"""Whether something does not go into the image, by its path below the folder. What is below it does not either."""


def is_left_over(path: PurePosixPath) -> bool:
    """What Python writes beside its sources: it would differ from build to build."""
    return path.name == "__pycache__" or path.suffix in (".pyc", ".pyo")


def entries_of(folder: Path, *, below: str = "", skip: Skip = is_left_over) -> list[Entry]:
    """Everything of a folder in a fixed order, as it stands below that name in the image. BuildFailed: what cannot."""
    found = list(_walk(folder, PurePosixPath(), PurePosixPath(below), skip))
    return [*(Entry(name=name) for name in _parents(below)), *found]


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Each name once, directories before what is in them."""
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
    """A link that leads out of the folder would lead anywhere on the machine that installs it."""
    target = os.readlink(folder / path)
    led_to = os.path.normpath(path.parent / target)
    if os.path.isabs(target) or led_to == ".." or led_to.startswith("../"):
        raise BuildFailed(f"{folder / path} is a link to {target}, which is not inside {folder}")
    return target
