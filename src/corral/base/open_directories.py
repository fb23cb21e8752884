"""Walks down from a directory and never leaves it, even if links are on the way or are changed meanwhile: for every
path that an archive or a peer names. Blocks: call it in a thread.

Each step opens one name relative to a directory that is already open, and the kernel never follows a link for us. Links
are read and followed by hand, from the directories that are held open, so there is no moment between a check and its
use. The way up needs no `..` of the kernel's, which knows no root: all directories from the root down stay open.
"""

import contextlib
import errno
import os
import posixpath
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import msgspec

from corral.base.errors import CorralError

DIRECTORY_MODE: Final = 0o750
HERE: Final = "."
"""The name of a directory in itself."""
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_ROOT: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_LINKS: Final = 40
"""How many links one path may lead through: the kernel's own bound."""
_NO_DIRECTORY: Final = frozenset({errno.ELOOP, errno.ENOTDIR})
"""What the kernel answers for a link, depending on its version, and for a file."""
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENAMETOOLONG})
_UNUSABLE: Final = frozenset({errno.ENAMETOOLONG, errno.EILSEQ})


class PathRefused(CorralError):
    """The path cannot be used."""

    code = "path_refused"


class PathEscapes(PathRefused):
    """The path leads out of the directory that it must stay in."""


class DirectoryUnusable(PathRefused):
    """The directory that paths must stay in is not there, or cannot be opened."""


def look(directory: int, name: str) -> os.stat_result | None:
    """The status of a name in an open directory, of a link itself; None when there is nothing by that name."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise


@contextmanager
def opened_directory(name: str, within: int) -> Iterator[int]:
    """Open a directory by its name in an open one. NotADirectoryError, or ELOOP, for a link."""
    descriptor = os.open(name, _OPEN_DIRECTORY, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class OpenDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """An open directory and the names that lead to it from the root, without links. A context that closes it."""

    descriptor: int
    parts: tuple[str, ...]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


class DirectoryWalk:
    """A walk from an open root, which it takes over. Links may lead anywhere inside; absolute ones start at it.

    A context: in the end every directory that is held is closed.
    """

    def __init__(self, root: int, *, make_mode: int | None = None) -> None:
        """With `make_mode`, directories that are missing are made."""
        self._held = [root]
        self._names: list[str] = []
        self._make_mode = make_mode
        self._links = 0
        self.made = 0
        """How many directories were made."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._held:
            os.close(self._held.pop())

    @property
    def here(self) -> int:
        """The directory that the walk has come to."""
        return self._held[-1]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names that lead here from the root, without links."""
        return tuple(self._names)

    def detach(self) -> OpenDirectory:
        """Hand the directory over that the walk has come to; the walk ends."""
        return OpenDirectory(descriptor=self._held.pop(), parts=self.parts)

    def enter(self, parts: Iterable[str]) -> None:
        """Go down to a directory. PathEscapes when a link leads out; FileNotFoundError or NotADirectoryError else."""
        pending = deque(parts)
        while pending:
            self._step(pending)

    def reach(self, parts: Iterable[str]) -> str:
        """Go to the directory of the last name, and return the name, which is no link and may not exist."""
        pending = deque(parts)
        while pending:
            if len(pending) > 1 or pending[0] in ("", HERE, ".."):
                self._step(pending)
            elif (target := self._read_link(pending[0])) is None:
                return pending[0]
            else:
                pending.popleft()
                self._follow(target, pending)
        return HERE

    def _step(self, pending: deque[str]) -> None:
        name = pending.popleft()
        if name == ".." and self._names:
            self._leave()
        elif name == "..":
            remaining = self._above_root(pending)
            pending.clear()
            pending.extend(remaining)
        elif name not in ("", HERE) and (target := self._open(name)) is not None:
            self._follow(target, pending)

    def _open(self, name: str) -> str | None:
        """Go one directory down; or return the target of the link that is there instead."""
        try:
            self._hold(name)
        except FileNotFoundError:
            if self._make_mode is None:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, self._make_mode, dir_fd=self.here)
                self.made += 1
            self._hold(name)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY or (target := self._read_link(name)) is None:
                raise
            return target
        return None

    def _hold(self, name: str) -> None:
        self._held.append(os.open(name, _OPEN_DIRECTORY, dir_fd=self.here))
        self._names.append(name)

    def _read_link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.here)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing
                return None
            raise

    def _leave(self) -> None:
        os.close(self._held.pop())
        self._names.pop()

    def _follow(self, target: str, pending: deque[str]) -> None:
        self._links += 1
        if self._links > _MAX_LINKS:
            raise PathEscapes(f"it leads through more than {_MAX_LINKS} links")
        if target.startswith("/"):
            target = self._from_root(target)
            while self._names:
                self._leave()
        pending.extendleft(reversed(target.split("/")))

    def _from_root(self, target: str) -> str:
        """An absolute target as a path from the root."""
        return target

    def _above_root(self, pending: Sequence[str]) -> Sequence[str]:
        """The path from the root that is meant by going up from it and then on; here, none."""
        raise PathEscapes("a link leads out of its root")


class _WalkBelow(DirectoryWalk):
    """A walk in a directory of the machine: absolute links mean the machine's paths, and may come back from outside."""

    def __init__(self, root: int, base: Path, *, make_mode: int | None) -> None:
        super().__init__(root, make_mode=make_mode)
        self._base = base

    @cached_property
    def _real_base(self) -> str:
        """The base without links. Only links need it, and finding it asks for the status of each directory above."""
        return os.path.realpath(self._base)

    def _from_root(self, target: str) -> str:
        for root in (str(self._base), self._real_base):
            if target == root or target.startswith(f"{root}/"):
                return target[len(root) :]
        raise PathEscapes(f"a link leads out of {self._real_base}")

    def _above_root(self, pending: Sequence[str]) -> Sequence[str]:
        """A link may lead to a neighbour by way of the parent, as `../models/x` does."""
        return self._from_root(os.path.normpath("/".join([self._real_base, "..", *pending]))).split("/")


class _UnlinkedWalk(_WalkBelow):
    """A walk on which every link counts as a way out."""

    def _follow(self, target: str, pending: deque[str]) -> None:
        raise PathEscapes("there is a link on the way")


class ConfinedPath(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a directory that is held open. The name may not exist; it was no link when it was reached."""

    directory: int
    name: str
    path: Path
    """The requested path, with links unresolved. Backends and frontends get this form."""

    @property
    def identity(self) -> tuple[int, int, str]:
        """Equal for all paths that lead to this entry."""
        status = os.fstat(self.directory)
        return status.st_dev, status.st_ino, self.name


class Confined:
    """One directory of the machine. Nothing that is reached through it lies outside."""

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

    def open(self) -> int:
        """A descriptor of the directory itself, which may be a link. DirectoryUnusable when it cannot be opened."""
        try:
            return os.open(self.base, _OPEN_ROOT)
        except OSError as error:
            raise DirectoryUnusable(f"directory {self.base} cannot be used: {error.strerror}") from error

    @contextmanager
    def reach(self, parts: Sequence[str], path: Path, *, create: bool = False) -> Iterator[ConfinedPath]:
        """Hold the directory that a path's last part is in. FileNotFoundError when a directory is missing, unless they
        shall be created; NotADirectoryError when a file stands in the way. Links are followed if they stay inside."""
        mode = DIRECTORY_MODE if create else None
        with _usable_names(), _WalkBelow(self.open(), self.base, make_mode=mode) as walk:
            name = walk.reach(parts)
            yield ConfinedPath(directory=walk.here, name=name, path=path)

    @contextmanager
    def reach_unlinked(self, parts: Sequence[str], path: Path) -> Iterator[ConfinedPath]:
        """Hold the directory that a path's last part is in, where every link on the way counts as a way out. The last
        part may be a link, and is not followed."""
        with _usable_names(), _UnlinkedWalk(self.open(), self.base, make_mode=None) as walk:
            walk.enter(parts[:-1])
            yield ConfinedPath(directory=walk.here, name=parts[-1] if parts else HERE, path=path)


@contextmanager
def _usable_names() -> Iterator[None]:
    """PathRefused for names that no file system takes."""
    try:
        yield
    except OSError as error:
        if error.errno in _UNUSABLE:
            raise PathRefused(f"the path cannot be used: {error.strerror}") from error
        raise
