"""Writes an image's files into one directory and never outside it.

Every step is relative to an open directory (`base/open_directories.py`), so no link leads out: neither one of this
archive, nor of an earlier layer, nor one that another process creates meanwhile. Existing files are never written
to, only replaced. Violations raise UnpackRefused; file system errors raise OSError.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from corral.base.open_directories import DirectoryWalk, OpenDirectory, PathEscapes, look, opened_directory
from corral.oci.errors import TargetUnusable, UnpackRefused

_MODE: Final = 0o750
"""Mode of backend directories, as in LocalAI."""


def prepare_target(target: Path) -> Callable[[], None]:
    """Create the directory, or accept an empty one. Return a function that restores the previous state."""
    try:
        os.mkdir(target, _MODE)
    except FileExistsError:
        if not is_directory(target):
            raise TargetUnusable(f"{target} is there, and is not a directory") from None
        if os.listdir(target):
            raise TargetUnusable(f"{target} is not empty") from None
        return lambda: empty(target)
    except OSError as error:
        raise TargetUnusable(f"{target} cannot be made: {error.strerror}") from error
    return lambda: shutil.rmtree(target, ignore_errors=True)


def is_directory(target: Path) -> bool:
    return target.is_dir() and not target.is_symlink()


def empty(target: Path) -> None:
    """Remove the content of a directory, best effort."""
    for path in target.iterdir():
        if is_directory(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


Parts = tuple[str, ...]

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})
_LEADS_NOWHERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL})
"""The path is missing, is a file, or a link on it was replaced."""
_PLAIN_DIRECTORY: Final = 0o755


class Tree:
    """A context manager. Names are sequences of parts without dots; `unpack.py` makes them."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _DIRECTORY)
        self._last: tuple[Parts, OpenDirectory] | None = None
        self._is_last_good = False
        self._unproven: set[Parts] = set()
        self.implied = 0
        """Number of directories that were created only because an entry lies in them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_last()
        os.close(self._root)

    def locate(self, parts: Parts) -> OpenDirectory:
        """Return the parent directory of a name; create it if missing. Valid until the next call."""
        folder_parts = parts[:-1]
        if self._last is not None and self._is_last_good and self._last[0] == folder_parts:
            return self._last[1]
        place = self._make_way(folder_parts)
        self._close_last()
        self._last, self._is_last_good = (folder_parts, place), True
        return place

    def make_directory(self, place: OpenDirectory, name: str, mode: int) -> None:
        """Create a directory; an existing one gets the new mode."""
        try:
            os.mkdir(name, _PLAIN_DIRECTORY, dir_fd=place.descriptor)
        except FileExistsError:
            if not stat.S_ISDIR(_mode(place, name)):
                os.unlink(name, dir_fd=place.descriptor)
                self._is_last_good = False
                os.mkdir(name, _PLAIN_DIRECTORY, dir_fd=place.descriptor)
        with opened_directory(name, place.descriptor) as descriptor:
            os.fchmod(descriptor, mode)

    def make_file(self, place: OpenDirectory, name: str) -> int:
        """Create an empty file that only its owner can read, and return its descriptor."""
        try:
            return os.open(name, _NEW_FILE, 0o600, dir_fd=place.descriptor)
        except FileExistsError:
            self.remove(place, name)
            return os.open(name, _NEW_FILE, 0o600, dir_fd=place.descriptor)

    def make_symlink(self, place: OpenDirectory, name: str, target: str) -> None:
        """Create a link. Refuse a target outside the tree. An absolute target means the image's root and is made
        relative."""
        written, is_proven = _contained(target, place.parts)
        link_parts = (*place.parts, name)
        if look(place.descriptor, name) is not None:
            self.remove(place, name)
        os.symlink(written, name, dir_fd=place.descriptor)
        (self._unproven.discard if is_proven else self._unproven.add)(link_parts)

    def make_hard_link(self, place: OpenDirectory, name: str, target: Parts) -> None:
        """Create another name for an existing file. A symlink is created again, since its target is relative."""
        link_parts = (*place.parts, name)
        with self._existing_parent(target) as folder:
            if (*folder.parts, target[-1]) == link_parts:
                return
            mode = _mode(folder, target[-1])
            if stat.S_ISLNK(mode):
                symlink_target = os.readlink(target[-1], dir_fd=folder.descriptor)
                is_absolute = symlink_target.startswith("/")
                self.make_symlink(
                    place, name, symlink_target if is_absolute else "/" + "/".join((*folder.parts, symlink_target))
                )
            elif stat.S_ISREG(mode):
                if look(place.descriptor, name) is not None:
                    self.remove(place, name)
                self._link(folder, target[-1], place, name)
            else:
                raise UnpackRefused(f"a hard link to {'/'.join(target)!r}, which is not a file")

    def remove(self, place: OpenDirectory, name: str) -> None:
        """Remove a file, a link, or a whole directory. Idempotent."""
        try:
            os.unlink(name, dir_fd=place.descriptor)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # Linux returns the first, other systems the second
            shutil.rmtree(name, dir_fd=place.descriptor)
        self._is_last_good = False  # the cached directory may lie below the removed one; its holders may keep it

    def hide(self, place: OpenDirectory, name: str, *, keep: Callable[[Parts], bool]) -> None:
        """Remove what earlier layers created under this name, except names in `keep` and the directories on the way to
        them."""
        hidden_parts = (*place.parts, name)
        if not keep(hidden_parts):
            self.remove(place, name)
        elif stat.S_ISDIR(_mode(place, name)):
            with opened_directory(name, place.descriptor) as inner:
                self.hide_all(OpenDirectory(descriptor=inner, parts=hidden_parts), keep=keep)

    def hide_all(self, place: OpenDirectory, *, keep: Callable[[Parts], bool]) -> None:
        for name in os.listdir(place.descriptor):
            self.hide(place, name, keep=keep)

    def prove_links(self) -> None:
        """Refuse links that lead out through other links. Call it after all links exist."""
        for link_parts in sorted(self._unproven):
            try:
                with self._walk(link_parts[:-1]) as place:
                    target = os.readlink(link_parts[-1], dir_fd=place.descriptor)
                    os.close(self._walk((*place.parts, *_split(target))).descriptor)
            except OSError as error:
                if error.errno not in _LEADS_NOWHERE:
                    raise

    def _walk(self, parts: Iterable[str]) -> OpenDirectory:
        with DirectoryWalk(os.dup(self._root)) as walk, _refusing_escapes():
            walk.enter(parts)
            return walk.detach()

    def _make_way(self, parts: Iterable[str]) -> OpenDirectory:
        """Open a directory; create missing parents."""
        with DirectoryWalk(os.dup(self._root), make_mode=_PLAIN_DIRECTORY) as walk, _refusing_escapes():
            try:
                walk.enter(parts)
            except NotADirectoryError as error:
                whole = "/".join((*walk.parts, str(error.filename)))
                raise UnpackRefused(f"something lies below {whole!r}, which is not a directory") from error
            finally:
                self.implied += walk.made
            return walk.detach()

    def _existing_parent(self, target: Parts) -> OpenDirectory:
        try:
            place = self._walk(target[:-1])
        except (FileNotFoundError, NotADirectoryError):
            raise UnpackRefused(f"a hard link to {'/'.join(target)!r}, which is not there") from None
        if look(place.descriptor, target[-1]) is None:
            os.close(place.descriptor)
            raise UnpackRefused(f"a hard link to {'/'.join(target)!r}, which is not there")
        return place

    def _link(self, folder: OpenDirectory, target: str, place: OpenDirectory, name: str) -> None:
        """Link a file, or copy it on file systems without hard links."""
        try:
            os.link(target, name, src_dir_fd=folder.descriptor, dst_dir_fd=place.descriptor, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
        else:
            return
        with (
            open(os.open(target, _OLD_FILE, dir_fd=folder.descriptor), "rb") as source,
            open(self.make_file(place, name), "wb") as copy,
        ):
            shutil.copyfileobj(source, copy)
            os.fchmod(copy.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))

    def _close_last(self) -> None:
        if self._last is not None:
            os.close(self._last[1].descriptor)
            self._last = None


@contextmanager
def _refusing_escapes() -> Iterator[None]:
    try:
        yield
    except PathEscapes as error:
        raise UnpackRefused(f"a link cannot be followed inside of the image: {error.message}") from error


def _mode(place: OpenDirectory, name: str) -> int:
    """Return the mode of an entry; 0 if it does not exist."""
    status = look(place.descriptor, name)
    return 0 if status is None else status.st_mode


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _contained(target: str, parent: Parts) -> tuple[str, bool]:
    """Return the target as it is written into a link in `parent`, and whether it certainly stays inside.

    Going up is safe only at the start, from where the link lies: after a name, which may be a link itself, it
    depends on the final tree.
    """
    parts = _split(target)
    depth = 0 if target.startswith("/") else len(parent)
    for part in parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            raise UnpackRefused(f"a link to {target!r}, which is outside of the image")
    names = [number for number, part in enumerate(parts) if part != ".."]
    is_proven = ".." not in parts[names[0] :] if names else True
    if not target.startswith("/"):
        return target, is_proven
    return "/".join([*[".."] * len(parent), *parts]) or ".", is_proven
