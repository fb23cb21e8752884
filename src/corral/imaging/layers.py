"""Writes a layer: an archive with fixed owners, times and order, compressed or not. Blocking: call it in a thread."""

import errno
import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec
import zstandard

from corral.base.errors import PathNotUsable
from corral.imaging.entries import Entry
from corral.imaging.errors import BuildFailed
from corral.oci.manifests import OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, Descriptor

FIXED_TIME: Final = 315_532_800
"""1 January 1980: the earliest time in zip archives, and some tools mistrust 1970."""
_COPY_BYTES: Final = 1024 * 1024
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Compression(StrEnum):
    """Compression of layers."""

    GZIP = "gzip"
    """Readable by every tool."""
    ZSTD = "zstd"
    """Smaller and much faster; needs recent tools."""
    NONE = "none"
    """For images that stay on this machine."""


MEDIA_TYPES: Final = {
    Compression.GZIP: OCI_LAYER_GZIP,
    Compression.ZSTD: OCI_LAYER_ZSTD,
    Compression.NONE: OCI_LAYER,
}
LEVELS: Final = {Compression.GZIP: range(1, 10), Compression.ZSTD: range(1, 20), Compression.NONE: range(1)}
USUAL_LEVEL: Final = {Compression.GZIP: 6, Compression.ZSTD: 9, Compression.NONE: 0}


class Packing(msgspec.Struct, frozen=True, kw_only=True):
    """A compression and its level."""

    compression: Compression = Compression.GZIP
    level: int = 6


class WrittenLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer file, and its description for the manifest."""

    descriptor: Descriptor
    diff_id: str
    """Digest of the uncompressed content."""
    unpacked_bytes: int
    entries: int


class BuildStopped(Exception):
    """Somebody asked for an end in the middle of it."""


def write_layer(
    entries: Sequence[Entry], file: Path, packing: Packing, *, is_stopped: Callable[[], bool]
) -> WrittenLayer:
    """Write an archive of the entries in the given order. Raise PathNotUsable when it cannot be written."""
    with _naming_the_file(file), file.open("xb") as opened:
        outside = _HashingWriter(opened)
        with _compressor(outside, packing) as compressed:
            inside = _HashingWriter(compressed, is_stopped)
            _write_archive(entries, cast(BinaryIO, inside))
    descriptor = Descriptor(media_type=MEDIA_TYPES[packing.compression], digest=outside.hash_text, size=outside.size)
    return WrittenLayer(
        descriptor=descriptor, diff_id=inside.hash_text, unpacked_bytes=inside.size, entries=len(entries)
    )


def _write_archive(entries: Sequence[Entry], target: BinaryIO) -> None:
    with tarfile.TarFile(fileobj=target, mode="w", format=tarfile.PAX_FORMAT, copybufsize=_COPY_BYTES) as archive:
        for entry in entries:
            add(archive, entry)


def add(archive: tarfile.TarFile, entry: Entry) -> None:
    """Add an entry with fixed metadata: only the content is taken from the file, since its times, owners and modes
    differ between checkouts."""
    info = tarfile.TarInfo(entry.name)
    info.mtime, info.mode = FIXED_TIME, entry.mode
    if entry.link:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
    if entry.file is None:
        info.type = info.type if entry.link else tarfile.DIRTYPE
        archive.addfile(info)
        return
    with _opened(entry.file) as content:
        info.size = content.seek(0, io.SEEK_END)
        content.seek(0)
        _copy(archive, info, content, entry.file)


def _copy(archive: tarfile.TarFile, info: tarfile.TarInfo, content: BinaryIO, path: Path) -> None:
    try:
        archive.addfile(info, content)
    except OSError as error:
        if error.errno is None:  # its message says only "unexpected end of data"
            raise BuildFailed(f"{path} became shorter while it was read") from error
        raise


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise BuildFailed(f"{path} cannot be read: {error.strerror}") from error


def _compressor(target: "_HashingWriter", packing: Packing) -> AbstractContextManager[BinaryIO]:
    sink = cast(BinaryIO, target)
    match packing.compression:
        case Compression.GZIP:
            made = gzip.GzipFile(filename="", mode="wb", fileobj=sink, compresslevel=packing.level, mtime=0)
            return cast(AbstractContextManager[BinaryIO], made)
        case Compression.ZSTD:
            return zstandard.ZstdCompressor(level=packing.level).stream_writer(sink, closefd=False)
        case Compression.NONE:
            return nullcontext(sink)


class _HashingWriter(io.RawIOBase):
    """A writer that passes data on, and counts and hashes it."""

    def __init__(self, target: BinaryIO, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self._target = target
        self._is_stopped = is_stopped
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def hash_text(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self._is_stopped():
            raise BuildStopped
        self._target.write(data)
        self._hash.update(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size


@contextmanager
def _naming_the_file(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "there is no room left on the disk" if error.errno in _NO_ROOM else error.strerror or str(error)
        raise PathNotUsable(f"{error.filename or file} cannot be written: {reason}") from error
