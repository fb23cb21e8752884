"""Installs a backend by copying a directory of this machine. Directories with an image are left to `image_source.py`.

All of a directory is checked first, so that forbidden content is refused before the first byte is copied: links that
lead out of it, devices and the like. Setuid and setgid bits are dropped.
"""

import asyncio
import os
import shutil
import stat
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import CorralError
from corral.base.tasks import CancelSignal, in_own_thread
from corral.oci.contents import is_layout
from corral.wire.backends import size_text
from corral.worker.installing.backend_metadata import Metadata
from corral.worker.installing.orders import CannotInstall, Delivered, Fetching, InstallableBackend, InstallOrder, NoRoom
from corral.worker.installing.progress import InstallStep

MOST_ENTRIES: Final = 1_000_000
"""Far more than any engine has; notices a directory named by mistake, such as the whole disk."""
_SCHEME: Final = "file://"
_ROOM_TO_SPARE: Final = 16 * 1024 * 1024
"""Free space in addition to the files: for directories, and for other writers on that disk."""
_CHUNK_BYTES: Final = 1024 * 1024
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS: Final = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFBLK: "device", stat.S_IFCHR: "device"}


class SourceRefused(CorralError):
    """The directory holds what must not be installed."""

    code = "source_refused"


class DirectorySource:
    """Takes `file://` and plain paths."""

    async def find(self, order: InstallOrder) -> InstallableBackend | None:
        path = await asyncio.to_thread(directory_of, order.uri) if order.uri else None
        if path is None:
            return None

        async def fetch(fetching: Fetching) -> Delivered:
            await in_own_thread(lambda cancelled: _fetch(path, fetching, cancelled), name=f"copying {path}")
            return Delivered()

        metadata = Metadata(name=order.name or path.name, alias=order.alias, uri=order.uri)
        return InstallableBackend(metadata=metadata, fetch=fetch)


def directory_of(uri: str) -> Path | None:
    """Return the directory of a URI; None for other kinds of URIs, including archives and images. Raise CannotInstall
    when nothing is there."""
    is_path = uri.startswith("/")
    if uri.startswith(_SCHEME):
        host, _, path = uri.removeprefix(_SCHEME).partition("/")
        if host not in {"", "localhost"}:
            raise CannotInstall(f"{uri} is on another machine; give a path of this one")
        uri, is_path = f"/{urllib.parse.unquote(path)}", True
    if not uri or "\0" in uri or ("://" in uri and not is_path):
        return None
    directory = Path(os.path.normpath(uri))
    if directory.is_dir():
        return None if is_layout(directory) else directory
    if is_path and not directory.exists():
        raise CannotInstall(f"there is no {directory} on this machine")
    return None


def _fetch(source: Path, fetching: Fetching, cancelled: CancelSignal) -> None:
    into = fetching.into
    if into.resolve().is_relative_to(source.resolve()):
        raise CannotInstall(f"{source} contains the directory that backends are installed into")
    tree = read_tree(source, cancelled.check)
    free = shutil.disk_usage(into).free
    if tree.size + _ROOM_TO_SPARE > free:
        raise NoRoom(
            f"{tree.root} needs {size_text(tree.size)}, and {size_text(free)} are free in {into.parent}; make room, or "
            "set another backends directory (LOCALAI_BACKENDS_PATH)"
        )
    done = 0

    def copied(count: int) -> None:
        nonlocal done
        done += count
        fetching.report(InstallStep(text=f"Copying {source}", done=done, total=tree.size))

    copy_tree(tree, into, check=cancelled.check, copied=copied)


class _TreeEntry(msgspec.Struct, frozen=True):
    path: Path
    mode: int
    target: str = ""
    """Target of a link; empty for other entries."""


class SourceTree(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a directory, folders before their content."""

    root: Path
    entries: tuple[_TreeEntry, ...]
    size: int
    """Total size of all files in bytes."""


def read_tree(source: Path, check: Callable[[], None]) -> SourceTree:
    """Read a directory tree. SourceRefused names what cannot be installed. `check` is called often, and may raise."""
    root = Path(os.path.realpath(source))
    entries: list[_TreeEntry] = []
    size = 0
    for entry in _walk(root, check):
        path = Path(entry.path)
        status = entry.stat(follow_symlinks=False)
        target = ""
        match stat.S_IFMT(status.st_mode):
            case stat.S_IFREG:
                size += status.st_size
            case stat.S_IFLNK:
                target = _inner_target(root, path)
            case kind if kind != stat.S_IFDIR:
                kind_name = _KINDS.get(kind, "special file")
                raise SourceRefused(f"{path} is a {kind_name}: only files, directories and links can be installed")
        entries.append(_TreeEntry(path.relative_to(root), status.st_mode, target))
        if len(entries) > MOST_ENTRIES:
            raise SourceRefused(f"{source} has more than {MOST_ENTRIES} files: it can hardly be a backend")
    return SourceTree(root=root, entries=tuple(entries), size=size)


def copy_tree(tree: SourceTree, into: Path, *, check: Callable[[], None], copied: Callable[[int], None]) -> None:
    """Copy into an empty directory. `copied` is called for every piece of a file."""
    for entry in tree.entries:
        check()
        target = into / entry.path
        if stat.S_ISDIR(entry.mode):
            target.mkdir()
            target.chmod(entry.mode & 0o777 | 0o700)
        elif stat.S_ISLNK(entry.mode):
            target.symlink_to(entry.target)
        else:
            _copy_file(tree.root / entry.path, target, check, copied)


def _walk(folder: Path, check: Callable[[], None]) -> Iterator["os.DirEntry[str]"]:
    pending = [str(folder)]
    while pending:
        check()
        with os.scandir(pending.pop()) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def _inner_target(root: Path, link: Path) -> str:
    """Return a link's target. Refuse one that leads out of the directory, also through other links."""
    target = os.readlink(link)
    if os.path.isabs(target) or not Path(os.path.realpath(link)).is_relative_to(root):
        raise SourceRefused(f"the link {link} leads out of the backend's directory, to {target}")
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
