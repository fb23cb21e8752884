"""Walking down from a directory without ever leaving it, whatever links are on the way and whoever changes them
meanwhile: for everything that peers name a path for. May block: call it in a thread.

Every step opens one name relative to a directory that is already held open, and never follows a link; links are read
and followed by hand, from the same held directories. So there is no moment between a check and its use.
"""

import contextlib
import errno
import os
import posixpath
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral.base.errors import CorralError

DIRECTORY_MODE: Final = 0o750
HERE: Final = "."
"""The name of a place that is the directory itself."""
_MOST_LINKS: Final = 40
OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_UNUSABLE: Final = frozenset({errno.ENAMETOOLONG, errno.EILSEQ})


class PathRefused(CorralError):
    """The path cannot be used."""

    code = "path_refused"


class PathEscapes(PathRefused):
    """The path leads out of the directory that it must stay in."""


class DirectoryUnusable(PathRefused):
    """The directory that paths must stay in is not there, or cannot be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A name in a directory that is held open. The name may not exist; it was no link when it was reached."""

    directory: int
    name: str
    path: Path
    """As it was asked for, links unresolved: what backends and frontends are told."""

    @property
    def identity(self) -> tuple[int, int, str]:
        """The same for every key that leads here."""
        found = os.fstat(self.directory)
        return found.st_dev, found.st_ino, self.name


class Confined:
    """One directory. Nothing that is reached through it lies outside."""

    def __init__(self, base: Path) -> None:
        self.base = Path(os.path.normpath(base.absolute()))

    def path(self, key: str) -> Path:
        """What a relative path means by its words alone. PathEscapes when they lead out."""
        path = Path(posixpath.normpath(f"{self.base}/{key}"))
        if "\0" in key or (path != self.base and self.base not in path.parents):
            raise PathEscapes(f"{path} is outside of {self.base}")
        return path

    def parts(self, path: Path) -> tuple[str, ...] | None:
        """The way to an absolute path from here; None when it is not below."""
        for root in (self.base, Path(os.path.realpath(self.base))):
            if path == root or root in path.parents:
                return path.parts[len(root.parts) :]
        return None

    @contextmanager
    def reach(self, parts: Sequence[str], path: Path, *, create: bool = False) -> Iterator[Place]:
        """Hold the directory that a path's last part is in. FileNotFoundError when a directory is missing, unless they
        shall be created; NotADirectoryError when a file stands in the way. Links are followed if they stay inside."""
        with self._walked(_Walk(self.base, path, create=create), parts, path) as place:
            yield place

    @contextmanager
    def reach_unlinked(self, parts: Sequence[str], path: Path) -> Iterator[Place]:
        """The same where every link counts as a way out; but the last part may be one, and is not followed."""
        with self._walked(_UnlinkedWalk(self.base, path, create=False), parts, path) as place:
            yield place

    @contextmanager
    def _walked(self, walk: "_Walk", parts: Sequence[str], path: Path) -> Iterator[Place]:
        try:
            name = walk.down(parts)
            yield Place(directory=walk.here, name=name, path=path)
        except OSError as error:
            if error.errno in _UNUSABLE:
                raise PathRefused(f"the path cannot be used: {error.strerror}") from error
            raise
        finally:
            walk.close()


class _Walk:
    """The directories from the base down to where we are, all held open: the way back up needs no `..`."""

    def __init__(self, base: Path, path: Path, *, create: bool) -> None:
        self._path = path
        self._create = create
        self._real_base = os.path.realpath(base)
        self._roots = {str(base), self._real_base}
        self._links = 0
        try:
            self._held = [os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        except OSError as error:
            raise DirectoryUnusable(f"directory {base} cannot be used: {error.strerror}") from error

    @property
    def here(self) -> int:
        return self._held[-1]

    def close(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def down(self, parts: Sequence[str]) -> str:
        """Go to the directory of the last part; returns its name there."""
        pending = deque(parts)
        while pending:
            name = pending.popleft()
            if name in ("", HERE):
                continue
            if name == "..":
                self._up(pending)
            elif (target := self._link(name)) is not None:
                self._follow(target, pending)
            elif not pending:
                return name
            elif not self._enter(name):
                pending.appendleft(name)  # it became a link just now
        return HERE

    def _up(self, pending: deque[str]) -> None:
        """Above the base only to come back at once, as a link to a neighbour may: `../models/x`."""
        if len(self._held) > 1:
            os.close(self._held.pop())
            return
        rest = self._below_base(os.path.normpath("/".join([self._real_base, "..", *pending])))
        pending.clear()
        pending.extend(rest.split("/"))

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.here)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing
                return None
            raise

    def _follow(self, target: str, pending: deque[str]) -> None:
        self._count_link()
        if target.startswith("/"):
            target = self._below_base(target)
            while len(self._held) > 1:
                os.close(self._held.pop())
        pending.extendleft(reversed(target.split("/")))

    def _count_link(self) -> None:
        self._links += 1
        if self._links > _MOST_LINKS:
            raise self._escape()

    def _below_base(self, target: str) -> str:
        for root in self._roots:
            if target == root or target.startswith(f"{root}/"):
                return target[len(root) :]
        raise self._escape()

    def _escape(self) -> PathEscapes:
        return PathEscapes(f"{self._path} leads out of {self._real_base}")

    def _enter(self, name: str) -> bool:
        """False when the name is a link by now, so that it must be looked at again."""
        try:
            self._held.append(os.open(name, OPEN_DIRECTORY, dir_fd=self.here))
        except FileNotFoundError:
            if not self._create:
                raise
            self._make(name)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR) or self._link(name) is None:
                raise
            self._count_link()
            return False
        return True

    def _make(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, DIRECTORY_MODE, dir_fd=self.here)
        self._held.append(os.open(name, OPEN_DIRECTORY, dir_fd=self.here))


class _UnlinkedWalk(_Walk):
    def _link(self, name: str) -> str | None:
        """Nothing is looked at as a link, so that the last part stays what it is; on the way they cannot be entered."""
        return None

    def _enter(self, name: str) -> bool:
        try:
            return super()._enter(name)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and super()._link(name) is not None:
                raise self._escape() from error
            raise
