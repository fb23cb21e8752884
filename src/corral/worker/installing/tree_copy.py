"""Copies a backend's directory. All of it is checked first, so that forbidden content is refused before the first byte
is copied. Blocking: call it in a thread.

Links that lead out of the directory, devices and the like are refused; setuid and setgid bits are dropped.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral.base.errors import CorralError

MOST_ENTRIES: Final = 1_000_000
"""Far more than any engine has; notices a directory named by mistake, such as the whole disk."""
_CHUNK_BYTES: Final = 1024 * 1024
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SourceRefused(CorralError):
    """The directory holds what must not be installed."""

    code = "source_refused"


@dataclass(frozen=True, slots=True)
class _Folder:
    path: Path
    mode: int


@dataclass(frozen=True, slots=True)
class _TreeFile:
    path: Path


@dataclass(frozen=True, slots=True)
class _TreeLink:
    path: Path
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTree:
    """The content of a directory, folders before their content."""

    root: Path
    entries: tuple[_Folder | _TreeFile | _TreeLink, ...]
    size: int
    """Total size of all files in bytes."""


def look(source: Path, check: Callable[[], None]) -> SourceTree:
    """Read a directory tree. SourceRefused names what cannot be installed. `check` is called often, and may raise."""
    root = Path(os.path.realpath(source))
    entries: list[_Folder | _TreeFile | _TreeLink] = []
    size = 0
    for entry in _walk(root, check):
        path = Path(entry.path).relative_to(root)
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            size += status.st_size
        entries.append(_entry(root, path, status))
        if len(entries) > MOST_ENTRIES:
            raise SourceRefused(f"{source} has more than {MOST_ENTRIES} files: it can hardly be a backend")
    return SourceTree(root=root, entries=tuple(entries), size=size)


def copy(tree: SourceTree, into: Path, *, check: Callable[[], None], copied: Callable[[int], None]) -> None:
    """Copy into an empty directory. `copied` is called for every piece of a file."""
    for entry in tree.entries:
        check()
        match entry:
            case _Folder(path=path, mode=mode):
                (into / path).mkdir()
                (into / path).chmod(mode & 0o777 | 0o700)
            case _TreeLink(path=path, target=target):
                (into / path).symlink_to(target)
            case _TreeFile(path=path):
                _copy_file(tree.root / path, into / path, check, copied)


def _walk(folder: Path, check: Callable[[], None]) -> Iterator["os.DirEntry[str]"]:
    pending = [str(folder)]
    while pending:
        check()
        with os.scandir(pending.pop()) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def _entry(root: Path, path: Path, status: os.stat_result) -> _Folder | _TreeFile | _TreeLink:
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        return _Folder(path, mode)
    if stat.S_ISREG(mode):
        return _TreeFile(path)
    if stat.S_ISLNK(mode):
        return _TreeLink(path, _inner_target(root, path))
    raise SourceRefused(f"{root / path} is a {_kind(mode)}: only files, directories and links can be installed")


def _inner_target(root: Path, path: Path) -> str:
    """Return a link's target. Refuse one that leads out of the directory, also through other links."""
    target = os.readlink(root / path)
    real = os.path.realpath(root / path)
    if os.path.isabs(target) or not (real == str(root) or real.startswith(f"{root}{os.sep}")):
        raise SourceRefused(f"the link {root / path} leads out of the backend's directory, to {target}")
    return target


def _copy_file(source: Path, target: Path, check: Callable[[], None], copied: Callable[[int], None]) -> None:
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with os.fdopen(os.open(source, _READ_FLAGS), "rb", buffering=0) as reader:
        status = os.fstat(reader.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise SourceRefused(f"{source} was replaced while it was copied")
        with os.fdopen(os.open(target, _WRITE_FLAGS, 0o600), "wb", buffering=0) as writer:
            while count := reader.readinto(buffer):
                check()
                _write_all(writer.fileno(), buffer[:count])
                copied(count)
            os.fchmod(writer.fileno(), status.st_mode & 0o777 | 0o600)
            os.utime(writer.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))  # checked by byte code


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _kind(mode: int) -> str:
    kinds = {stat.S_ISFIFO: "named pipe", stat.S_ISSOCK: "socket", stat.S_ISBLK: "device", stat.S_ISCHR: "device"}
    return next((name for is_one, name in kinds.items() if is_one(mode)), "special file")
