"""Decompresses layers and unpacks them into a directory: which entries are accepted, and with which modes.

All files belong to the user of this process. No file is writable by others, and none has setuid or setgid. Devices,
fifos, names that leave the image and links that lead out of it are refused, and the pull with them. Compression is
detected from the first bytes: the media types of many images are wrong.
"""

import os
import shutil
import stat
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import zstandard

from corral.base.open_directories import OpenDirectory
from corral.oci.errors import ContentMismatch, LimitExceeded, PullCancelled, UnpackRefused
from corral.oci.limits import BYTES_KNOB, ENTRIES_KNOB, RATIO_COUNTS_FROM, RATIO_KNOB, ZSTD_WINDOW_BYTES, UnpackLimits
from corral.oci.tar_stream import ArchiveMember, MemberKind, Pieces, TarStream
from corral.oci.tree import Parts, Tree

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = range(0x184D2A50, 0x184D2A60)
_IN_BYTES: Final = 256 * 1024
_OUT_BYTES: Final = 1024 * 1024
_GZIP_WINDOW: Final = 31


def decompressed(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content in chunks of at most a megabyte, whatever the compression ratio. Reads from the start."""
    file.seek(0)
    magic = file.read(4)
    file.seek(0)
    try:
        if magic.startswith(_GZIP):
            yield from _gunzipped(file)
        elif magic == _ZSTD or int.from_bytes(magic, "little") in _ZSTD_SKIPPABLE:
            zstd = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
            with zstd.stream_reader(file, read_size=_IN_BYTES, read_across_frames=True, closefd=False) as reader:
                yield from iter(lambda: reader.read(_OUT_BYTES), b"")
        else:
            yield from iter(lambda: file.read(_OUT_BYTES), b"")
    except (zlib.error, zstandard.ZstdError) as error:
        raise ContentMismatch(f"the compressed data is broken: {error}") from error


def _gunzipped(file: BinaryIO) -> Iterator[bytes]:
    """Decompress all gzip members of the file; zeros after the last are padding."""
    unread = file.read(_IN_BYTES)
    while unread:
        unread = yield from _gzip_member(file, unread)
        unread = unread.lstrip(b"\0")
        while not unread and (more := file.read(_IN_BYTES)):
            unread = more.lstrip(b"\0")


def _gzip_member(file: BinaryIO, data: bytes) -> Generator[bytes, None, bytes]:
    """Decompress one gzip member, whose first bytes are in `data`; return the bytes read beyond its end."""
    member = zlib.decompressobj(_GZIP_WINDOW)
    while True:
        piece = member.decompress(data, _OUT_BYTES)
        if piece:
            yield piece
        if member.eof:
            return member.unused_data
        data = member.unconsumed_tail
        if not data and not piece:
            data = file.read(_IN_BYTES)
            if not data:
                raise ContentMismatch("the compressed data ends too early")


_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_BOOKKEEPING: Final = ".wh..wh."
_KEPT_OF_FILES: Final = 0o755
_FILE_AT_LEAST: Final = 0o600
_DIRECTORY_AT_LEAST: Final = 0o700


@dataclass(slots=True, kw_only=True)
class Unpacked:
    """Counters of the unpacked files so far."""

    entries: int = 0
    bytes: int = 0
    """Total size of files, including holes."""


class Unpacker:
    """Fills one directory, layer by layer, from the lowest up. Call `prove_links` of the tree at the end."""

    def __init__(
        self,
        tree: Tree,
        limits: UnpackLimits,
        *,
        is_cancelled: Callable[[], bool] = lambda: False,
        on_position: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._tree = tree
        self._limits = limits
        self._is_cancelled = is_cancelled
        self._on_position = on_position
        self._came_out = 0
        self._layers = 0
        self.unpacked = Unpacked()

    def apply(self, layer: BinaryIO, size: int, *, whiteouts: bool = True) -> None:
        """Unpack one layer of `size` compressed bytes over the existing tree. `on_position` is called with the
        progress."""
        members = TarStream(Pieces(self._watched(layer, size)), self._limits)
        is_lowest, brought = self._layers == 0, set[Parts]()
        self._layers += 1
        for member in members:
            self._count(member)
            parts = self._parts(member.name)
            if not parts:
                continue  # the root itself, which we own
            place = self._tree.locate(parts)
            if whiteouts and parts[-1].startswith(_WHITEOUT):
                self._hide(place, parts[-1], brought)
                continue
            self._make(member, place, parts[-1], members)
            if not is_lowest:  # nothing below can be hidden: the lowest layer, usually the largest, needs no record
                entry_parts = (*place.parts, parts[-1])
                while entry_parts and entry_parts not in brought:
                    brought.add(entry_parts)
                    entry_parts = entry_parts[:-1]
        self._on_position(size)

    def _make(self, member: ArchiveMember, place: OpenDirectory, name: str, members: TarStream) -> None:
        match member.kind:
            case MemberKind.FILE:
                self._write(member, self._tree.make_file(place, name), members)
            case MemberKind.DIRECTORY:
                self._tree.make_directory(place, name, member.mode & _KEPT_OF_FILES | _DIRECTORY_AT_LEAST)
            case MemberKind.SYMLINK:
                target = member.link
                if not target or "\0" in target or len(os.fsencode(target)) > self._limits.path_bytes:
                    raise UnpackRefused(f"{member.name[:200]!r} is a link to {target[:60]!r}")
                self._tree.make_symlink(place, name, target)
            case MemberKind.HARD_LINK:
                # The target is named from the root; many writers put a slash before it.
                parts = self._parts(member.link.lstrip("/") or "/")
                if not parts:
                    raise UnpackRefused(f"{member.name!r} is a hard link to nothing")
                self._tree.make_hard_link(place, name, parts)
            case _:
                raise UnpackRefused(f"{member.name!r} is a {member.kind.value}")

    def _write(self, member: ArchiveMember, descriptor: int, members: TarStream) -> None:
        content = members.content()
        try:
            piece = memoryview(b"")
            for extent in member.extents or ():  # of a sparse file, which has holes between them
                os.lseek(descriptor, extent.offset, os.SEEK_SET)
                missing = extent.size
                while missing:
                    piece = piece or next(content)
                    now, piece = piece[:missing], piece[missing:]
                    _write_all(descriptor, now)
                    missing -= len(now)
            if member.extents is None:
                for piece in content:
                    _write_all(descriptor, piece)
            else:
                os.ftruncate(descriptor, member.size)
            os.fchmod(descriptor, member.mode & _KEPT_OF_FILES | _FILE_AT_LEAST)
            os.utime(descriptor, (member.modified_at, member.modified_at))
        finally:
            os.close(descriptor)

    def _hide(self, place: OpenDirectory, name: str, brought: set[Parts]) -> None:
        """Apply a whiteout: hide entries of the layers below, never those of this layer."""
        if name == _OPAQUE:
            self._tree.hide_all(place, keep=brought.__contains__)
        elif not name.startswith(_BOOKKEEPING):
            hidden = name.removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise UnpackRefused(f"a whiteout of {hidden!r}")
            self._tree.hide(place, hidden, keep=brought.__contains__)

    def _parts(self, name: str) -> Parts:
        if name.startswith("/"):
            raise UnpackRefused(f"the absolute name {name[:200]!r}")
        if "\0" in name or not name:
            raise UnpackRefused(f"the name {name[:200]!r}")
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if ".." in parts:
            raise UnpackRefused(f"the name {name[:200]!r}, which leads out of its directory")
        limits = self._limits
        if len(os.fsencode(name)) > limits.path_bytes or any(len(os.fsencode(p)) > limits.name_bytes for p in parts):
            raise LimitExceeded(f"the name {name[:60]!r}… is too long")
        if len(parts) > limits.depth:
            raise LimitExceeded(f"the name {name[:60]!r}… lies more than {limits.depth} directories deep")
        return parts

    def _count(self, member: ArchiveMember) -> None:
        self.unpacked.entries += 1
        entries = self.unpacked.entries + self._tree.implied
        self.unpacked.bytes += member.size if member.kind is MemberKind.FILE else 0
        if entries > self._limits.entries:
            raise LimitExceeded(f"more than {self._limits.entries} entries ({ENTRIES_KNOB})")
        if self.unpacked.bytes > self._limits.total_bytes:
            raise LimitExceeded(f"files of more than {self._limits.total_bytes} bytes ({BYTES_KNOB})")

    def _watched(self, layer: BinaryIO, size: int) -> Iterator[bytes]:
        """Yield the decompressed bytes; enforce the limit on the compression ratio."""
        allowed = max(RATIO_COUNTS_FROM, round(size * self._limits.ratio))
        came_out = 0
        for piece in decompressed(layer):
            came_out += len(piece)
            self._came_out += len(piece)
            if came_out > allowed:
                raise LimitExceeded(f"{size} bytes become more than {allowed} ({RATIO_KNOB})")
            if self._came_out > self._limits.total_bytes:
                raise LimitExceeded(f"archives of more than {self._limits.total_bytes} bytes ({BYTES_KNOB})")
            if self._is_cancelled():
                raise PullCancelled
            self._on_position(min(layer.tell(), size))
            yield piece


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def directory_size(folder: Path | None) -> int:
    """Return the total size of the files below a directory; 0 if it does not exist."""
    if folder is None:
        return 0
    return sum(entry.status.st_size for entry in _entries_below(folder) if stat.S_ISREG(entry.status.st_mode))


class _FolderEntry(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    parts: tuple[str, ...]
    status: os.stat_result


def _entries_below(folder: Path) -> Iterator[_FolderEntry]:
    for directory, names, files in os.walk(folder):
        for name in sorted((*names, *files)):
            path = Path(directory, name)
            yield _FolderEntry(path=path, parts=path.relative_to(folder).parts, status=path.lstat())


def copy_directory(
    folder: Path,
    tree: Tree,
    limits: UnpackLimits,
    *,
    is_cancelled: Callable[[], bool],
    on_position: Callable[[int], None],
) -> Unpacked:
    """Copy a directory into the tree by the rules for archives, except that absolute links refer to this machine and
    must lead into the folder."""
    unpacked = Unpacked()
    for entry in _entries_below(folder):
        if is_cancelled():
            raise PullCancelled
        unpacked.entries += 1
        if unpacked.entries > limits.entries:
            raise LimitExceeded(f"{folder}: more than {limits.entries} entries ({ENTRIES_KNOB})")
        _copy_entry(entry, folder, tree)
        if stat.S_ISREG(entry.status.st_mode):
            unpacked.bytes += entry.status.st_size
            on_position(unpacked.bytes)
        if unpacked.bytes > limits.total_bytes:
            raise LimitExceeded(f"{folder}: more than {limits.total_bytes} bytes ({BYTES_KNOB})")
    tree.prove_links()
    return unpacked


def _copy_entry(entry: _FolderEntry, folder: Path, tree: Tree) -> None:
    place, name, mode = tree.locate(entry.parts), entry.parts[-1], entry.status.st_mode
    if stat.S_ISDIR(mode):
        tree.make_directory(place, name, mode & 0o755 | 0o700)
    elif stat.S_ISLNK(mode):
        target = os.readlink(entry.path)
        if target.startswith("/"):
            if not Path(target).is_relative_to(folder):
                raise UnpackRefused(f"a link to {target!r}, which is outside of {folder}")
            target = "/" + str(Path(target).relative_to(folder))
        tree.make_symlink(place, name, target)
    elif stat.S_ISREG(mode):
        with entry.path.open("rb") as source, open(tree.make_file(place, name), "wb") as copy:
            shutil.copyfileobj(source, copy, 1024 * 1024)
            os.fchmod(copy.fileno(), mode & 0o755 | 0o600)
        os.utime(name, ns=(entry.status.st_atime_ns, entry.status.st_mtime_ns), dir_fd=place.descriptor)
    else:
        raise UnpackRefused(f"{entry.path} is neither a file nor a directory nor a link")
