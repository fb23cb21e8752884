"""Decompresses a stream in bounded pieces: gzip, zstd or nothing, told apart by the first bytes.

Media types are not asked: registries hold many that lie.
"""

import zlib
from collections.abc import Generator, Iterator
from typing import BinaryIO, Final

import zstandard

from corral.oci.errors import ContentMismatch
from corral.oci.limits import ZSTD_WINDOW_BYTES

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = range(0x184D2A50, 0x184D2A60)
_IN_BYTES: Final = 256 * 1024
_OUT_BYTES: Final = 1024 * 1024
_GZIP_WINDOW: Final = 31


def decompressed(file: BinaryIO) -> Iterator[bytes]:
    """The content in pieces of at most a megabyte, however small what they come from. Reads from the start."""
    file.seek(0)
    magic = file.read(4)
    file.seek(0)
    try:
        if magic.startswith(_GZIP):
            yield from _gunzipped(file)
        elif magic == _ZSTD or int.from_bytes(magic, "little") in _ZSTD_SKIPPABLE:
            yield from _unzstd(file)
        else:
            yield from iter(lambda: file.read(_OUT_BYTES), b"")
    except (zlib.error, zstandard.ZstdError) as error:
        raise ContentMismatch(f"the compressed data is broken: {error}") from error


def _gunzipped(file: BinaryIO) -> Iterator[bytes]:
    """All members of the file, one after the other; zeros after the last are padding."""
    rest = file.read(_IN_BYTES)
    while rest:
        rest = yield from _gzip_member(file, rest)
        rest = rest.lstrip(b"\0")
        while not rest and (more := file.read(_IN_BYTES)):
            rest = more.lstrip(b"\0")


def _gzip_member(file: BinaryIO, data: bytes) -> Generator[bytes, None, bytes]:
    """One member, from what was read of it; returns what was read beyond its end."""
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


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    with decompressor.stream_reader(file, read_size=_IN_BYTES, read_across_frames=True, closefd=False) as reader:
        while piece := reader.read(_OUT_BYTES):
            yield piece
