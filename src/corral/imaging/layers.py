"""Writes a layer: an archive with fixed owners, times and order, compressed or not. May block: call it in a thread."""

import errno
import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import zstandard

from corral.base.errors import PathNotUsable
from corral.imaging.entries import Entry
from corral.imaging.errors import BuildFailed
from corral.oci.manifests import OCI_LAYER, OCI_LAYER_GZIP, OCI_LAYER_ZSTD, Descriptor

FIXED_TIME: Final = 315_532_800
"""The first of January 1980: archives of Python packages know no earlier one, and some tools mistrust 1970."""
_COPY_BYTES: Final = 1024 * 1024
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Compression(StrEnum):
    """How layers are compressed."""

    GZIP = "gzip"
    """Every tool reads it."""
    ZSTD = "zstd"
    """Smaller and many times faster; needs tools of the last years."""
    NONE = "none"
    """For images that never leave the machine."""


MEDIA_TYPES: Final = {
    Compression.GZIP: OCI_LAYER_GZIP,
    Compression.ZSTD: OCI_LAYER_ZSTD,
    Compression.NONE: OCI_LAYER,
}
LEVELS: Final = {Compression.GZIP: range(1, 10), Compression.ZSTD: range(1, 20), Compression.NONE: range(1)}
USUAL_LEVEL: Final = {Compression.GZIP: 6, Compression.ZSTD: 9, Compression.NONE: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """A way to compress, and how hard."""

    compression: Compression = Compression.GZIP
    level: int = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLayer:
    """A layer in a file, and what its image has to know of it."""

    descriptor: Descriptor
    diff_id: str
    """The digest before compression."""
    unpacked_bytes: int
    entries: int


class BuildStopped(Exception):
    """Somebody asked for an end in the middle of it."""


def write_layer(
    entries: Sequence[Entry], file: Path, packing: Packing, *, is_stopped: Callable[[], bool]
) -> WrittenLayer:
    """An archive of these entries in this order. PathNotUsable when it cannot be written."""
    with _told(file), file.open("xb") as opened:
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
    """Nothing of the file but its content goes in: what else it has differs from checkout to checkout."""
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
        if error.errno is None:  # it says "unexpected end of data", and that is all
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
    """Passes on what is written, and knows its digest and its size."""

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
def _told(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "there is no room left on the disk" if error.errno in _NO_ROOM else error.strerror or str(error)
        raise PathNotUsable(f"{error.filename or file} cannot be written: {reason}") from error
