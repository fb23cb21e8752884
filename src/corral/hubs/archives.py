"""Files inside of archives: how a URL names one, what the beginning of an archive shows, and how one is taken out.

Images that `docker build` makes have their files in tar archives. `https://…/blobs/sha256:…#member=model.gguf` is one
of them. The digest that belongs to such a URL is that of the archive; the size is that of the file.
"""

import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final
from urllib.parse import quote, unquote

import msgspec
import zstandard

from corral.oci.errors import ContentMismatch, ImageError
from corral.oci.limits import ZSTD_WINDOW_BYTES, UnpackLimits
from corral.oci.tar_stream import ArchiveMember, MemberKind, Pieces, TarStream
from corral.oci.unpack import decompressed

_MARK: Final = "#member="
_HASH: Final = "&sha256="
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_GZIP_WINDOW: Final = 31
_LIMITS: Final = UnpackLimits()


class MemberUrl(msgspec.Struct, frozen=True):
    """The URL of an archive, and the path of one file inside it."""

    url: str
    """What to fetch: the file itself, or the archive that it is in."""
    member: str = ""
    """The name of the file inside of the archive; empty if it is no archive."""
    sha256: str = ""
    """What the file inside must be; empty: whatever the archive has."""


def member_url(url: str, name: str, sha256: str = "") -> str:
    """Return the URL of a file inside of the archive at a URL."""
    return f"{url}{_MARK}{quote(name)}" + (f"{_HASH}{sha256}" if sha256 else "")


def split_member(url: str) -> MemberUrl:
    """Return what to fetch, and which file of it is meant."""
    archive, _, named = url.partition(_MARK)
    name, _, sha256 = named.partition(_HASH)
    return MemberUrl(archive, unquote(name), sha256)


def unpacked_prefix(data: bytes, most: int) -> bytes:
    """Return what the beginning of an archive holds, unpacked: at most so many bytes. Whatever is broken ends it."""
    try:
        if data.startswith(_GZIP):
            return zlib.decompressobj(_GZIP_WINDOW).decompress(data, most)
        if data.startswith(_ZSTD):
            reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).stream_reader(io.BytesIO(data))
            return b"".join(_until_broken(reader, most))[:most]
    except (zlib.error, zstandard.ZstdError):
        return b""
    return data[:most]


def _until_broken(reader: BinaryIO | zstandard.ZstdDecompressionReader, most: int) -> Iterator[bytes]:
    size = 0
    try:
        while size < most and (piece := reader.read(1 << 16)):
            yield piece
            size += len(piece)
    except zstandard.ZstdError:
        return


def members_in(prefix: bytes) -> list[ArchiveMember]:
    """Return the files that begin in the beginning of a tar archive; empty if it is not a tar archive."""
    members: list[ArchiveMember] = []
    stream = TarStream(Pieces([prefix]), _LIMITS)
    try:
        for member in stream:
            if _is_plain(member):
                members.append(member)
    except ImageError:
        pass  # it goes on where the prefix ends
    return members


def content_in(prefix: bytes, name: str) -> bytes | None:
    """Return as much of a file as the beginning of its archive has; None if it does not begin there."""
    stream = TarStream(Pieces([prefix]), _LIMITS)
    content = bytearray()
    try:
        for member in stream:
            if _is_plain(member) and member_name(member) == name:
                for piece in stream.content():
                    content += piece
                return bytes(content)
    except ImageError:
        return bytes(content) or None
    return None


def member_name(member: ArchiveMember) -> str:
    """Return the name of a file without what leads nowhere: `./model.gguf` and `/model.gguf` are `model.gguf`."""
    return "/".join(part for part in member.name.split("/") if part not in ("", "."))


def extract(
    archive: BinaryIO, member_url: MemberUrl, write: Callable[[memoryview], object], size: int | None
) -> tuple[int, str]:
    """Write a file of an archive; return its size and SHA-256. Blocks; what `write` raises ends it.

    ContentMismatch if the archive is broken, has no such file, or it is another one than was promised.
    """
    name = member_url.member
    stream = TarStream(Pieces(decompressed(archive)), _LIMITS)
    for member in stream:
        if not _is_plain(member) or member_name(member) != name:
            continue
        if size not in (None, member.size):
            raise ContentMismatch(f"{name} in the archive has {member.size} bytes where {size} belong")
        hashed = hashlib.sha256()
        for piece in stream.content():
            hashed.update(piece)
            write(piece)
        if member_url.sha256 not in ("", hashed.hexdigest()):
            raise ContentMismatch(f"{name} in the archive is not the file with the hash {member_url.sha256}")
        return member.size, hashed.hexdigest()
    raise ContentMismatch(f"the archive has no file {name!r}")


def _is_plain(member: ArchiveMember) -> bool:
    return member.kind is MemberKind.FILE and member.extents is None
