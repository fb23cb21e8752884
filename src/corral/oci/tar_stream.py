"""Reads a tar archive from a stream, with limits on everything that an archive can ask for.

Supports ustar, GNU and pax, long names, and all four forms of sparse files. The standard library's reader is not
used: it reads extended headers of any length into memory, recurses once per header, and does not check the maps of
sparse files; all three can be exploited.

Applies no policy: names are returned as stored. See `unpack.py`.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import BinaryIO, Final

import msgspec

from corral.oci.errors import ContentMismatch, LimitExceeded, UnpackRefused
from corral.oci.limits import UnpackLimits

_POSIX_MAGIC: Final = b"ustar\0"
_MEANT_FOR_ONE: Final = (b"path", b"linkpath", b"size", b"GNU.sparse")
MAX_NUMBER_TEXT: Final = 20
"""Maximum digits of a decimal number."""


class Header:
    """One header block of a tar archive."""

    __slots__ = ("block", "link", "name", "type")

    def __init__(self, block: bytes) -> None:
        stated = read_field(block, 148, 8, "checksum")
        if stated != sum(block) - sum(block[148:156]) + 8 * 32:
            raise ContentMismatch("this is not a tar archive, or it is broken: a checksum does not fit")
        self.block = block
        self.type = block[156:157]
        self.link = _until_zero(block[157:257])
        name, prefix = _until_zero(block[:100]), _until_zero(block[345:500])
        has_prefix = prefix and block[257:263] == _POSIX_MAGIC
        self.name = prefix + b"/" + name if has_prefix else name

    def number(self, at: int, size: int, field_name: str) -> int:
        return read_field(self.block, at, size, field_name)


def _until_zero(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def read_field(block: bytes, at: int, size: int, field_name: str) -> int:
    """Parse octal digits, or a binary number if the first bit is set. An invalid
    number is refused, except that an invalid time becomes 0."""
    field = block[at : at + size]
    if field[0] & 0x80:
        value = int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
    else:
        digits = field.strip(b"\0 ") or b"0"
        value = int(digits, 8) if digits.isdigit() and not digits.strip(b"01234567") else -1
    if not 0 <= value < 1 << 63:
        if field_name == "mtime":
            return 0  # a time before 1970 is not worth a refusal
        raise UnpackRefused(f"the archive states a {field_name} that cannot be: {field!r}")
    return value


def _pax_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Parse `LENGTH KEY=VALUE` lines; the length counts the whole line. Zeros after the last line are padding."""
    at, end = 0, len(data.rstrip(b"\0"))
    while at < end:
        digits, blank, _ = data[at : at + MAX_NUMBER_TEXT + 1].partition(b" ")
        length = int(digits) if blank and digits.isdigit() else 0
        key, equals, value = data[at + len(digits) + 1 : at + length].partition(b"=")
        if not len(digits) < length <= end - at or not equals or not value.endswith(b"\n"):
            raise UnpackRefused("an extended header is broken")
        yield key, value[:-1]
        at += length


def read_number(text: bytes) -> int:
    if not text.isdigit() or len(text) > MAX_NUMBER_TEXT or int(text) >= 1 << 63:
        raise UnpackRefused(f"{text[:40]!r} in an extended header is not a number")
    return int(text)


def read_time(stated: bytes | None, header: Header) -> float:
    if stated is None:
        return float(header.number(136, 12, "mtime"))
    try:
        moment = float(stated)
    except ValueError:
        raise UnpackRefused(f"{stated[:40]!r} is not a time") from None
    return moment if 0 <= moment < 1 << 40 else 0.0


def as_text(name: bytes) -> str:
    """Decode a name for the file system; bytes that are not valid text survive."""
    return os.fsdecode(name)


_BLOCK: Final = 512
_LONG_NAME, _LONG_LINK = b"L", b"K"
_PAX, _PAX_OF_SOLARIS, _PAX_GLOBAL = b"x", b"X", b"g"
_OLD_SPARSE: Final = b"S"
_EXTENSIONS: Final = frozenset({_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_SOLARIS, _PAX_GLOBAL})
_READ_BYTES: Final = 1024 * 1024


class MemberKind(Enum):
    """The type of a member of a tar archive."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARD_LINK = "hard link"
    CHARACTER_DEVICE = "character device"
    BLOCK_DEVICE = "block device"
    FIFO = "fifo"


_KINDS: Final[Mapping[bytes, MemberKind]] = {
    b"0": MemberKind.FILE,
    b"\0": MemberKind.FILE,
    b"7": MemberKind.FILE,
    _OLD_SPARSE: MemberKind.FILE,
    b"1": MemberKind.HARD_LINK,
    b"2": MemberKind.SYMLINK,
    b"3": MemberKind.CHARACTER_DEVICE,
    b"4": MemberKind.BLOCK_DEVICE,
    b"5": MemberKind.DIRECTORY,
    b"6": MemberKind.FIFO,
}


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a sparse file that has content."""

    offset: int
    size: int


class ArchiveMember(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of an archive; a file's content follows in the stream."""

    name: str
    kind: MemberKind
    size: int
    """Size of the unpacked file, including holes."""
    mode: int
    modified_at: float
    link: str
    extents: Sequence[Extent] | None
    """Ranges of a sparse file; None: the content is contiguous."""


class Pieces:
    """A buffered reader over an iterator of byte chunks."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")

    def some(self, most: int) -> memoryview:
        """Return available bytes, at most `most`; empty only at the end of the stream."""
        while not self._piece:
            following = next(self._pieces, None)
            if following is None:
                return self._piece
            self._piece = memoryview(following)
        piece, self._piece = self._piece[:most], self._piece[most:]
        return piece

    def exactly(self, size: int) -> bytes:
        """Return exactly `size` bytes, or fewer if the stream ends."""
        first = self.some(size)
        if len(first) == size:
            return bytes(first)
        parts = [first]
        missing = size - len(first)
        while missing and (part := self.some(missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def skip(self, size: int) -> int:
        """Skip bytes; return how many of them were missing at the end of the stream."""
        while size and (piece := self.some(size)):
            size -= len(piece)
        return size


class FilePieces(Pieces):
    """A reader over a local file, which skips by seeking."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(())
        self._file = file

    @property
    def position(self) -> int:
        return self._file.tell()

    def some(self, most: int) -> memoryview:
        return memoryview(self._file.read(min(most, _READ_BYTES)))

    def skip(self, size: int) -> int:
        self._file.seek(size, os.SEEK_CUR)
        return 0


class TarStream:
    """`for member in stream`: read a file's content with `content()` before the next member, or it is skipped."""

    def __init__(self, pieces: Pieces, limits: UnpackLimits) -> None:
        self._pieces = pieces
        self._limits = limits
        self._content = 0
        self._padding = 0
        self._has_begun = False

    def __iter__(self) -> Iterator[ArchiveMember]:
        while (header := self._header()) is not None:
            extensions: dict[bytes, bytes] = {}
            sparse_numbers: list[bytes] = []
            while header.type in _EXTENSIONS:
                self._extend(header, extensions, sparse_numbers)
                following = self._header()
                if following is None:
                    raise ContentMismatch("the archive ends after an extended header")
                header = following
            yield self._member(header, extensions, sparse_numbers)

    def content(self) -> Iterator[memoryview]:
        """Yield the stored content of the current member."""
        while self._content:
            piece = self._pieces.some(self._content)
            if not piece:
                raise ContentMismatch("the archive ends inside a file")
            self._content -= len(piece)
            yield piece

    def _header(self) -> Header | None:
        """Return the next header; None at the end, which is a block of zeros or the end of the stream."""
        if self._pieces.skip(self._content):
            raise ContentMismatch("the archive ends inside a file")
        self._pieces.skip(self._padding)
        self._content = self._padding = 0
        block = self._pieces.exactly(_BLOCK)
        if not block and not self._has_begun:
            raise ContentMismatch("the archive is empty: not even its end is there")
        self._has_begun = True
        if not block.strip(b"\0"):
            return None
        if len(block) < _BLOCK:
            raise ContentMismatch("the archive ends inside a header")
        return Header(block)

    def _extend(self, header: Header, extensions: dict[bytes, bytes], sparse_numbers: list[bytes]) -> None:
        size = header.number(124, 12, "size")
        if size > self._limits.header_bytes:
            raise LimitExceeded(f"an extended header of {size} bytes; {self._limits.header_bytes} are allowed")
        data = self._pieces.exactly(size)
        self._pieces.exactly(-size % _BLOCK)
        if len(data) < size:
            raise ContentMismatch("the archive ends inside an extended header")
        if header.type == _LONG_NAME:
            extensions[b"path"] = data.rstrip(b"\0")
        elif header.type == _LONG_LINK:
            extensions[b"linkpath"] = data.rstrip(b"\0")
        elif header.type == _PAX_GLOBAL:
            for key, _ in _pax_records(data):
                if key.startswith(_MEANT_FOR_ONE):
                    raise UnpackRefused(f"a global header that sets {as_text(key)} for all that follows")
        else:
            for key, value in _pax_records(data):
                if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
                    sparse_numbers.append(value)  # the oldest pax form repeats the same keys, in order
                else:
                    extensions[key] = value

    def _member(
        self, header: Header, extensions: Mapping[bytes, bytes], sparse_numbers: Sequence[bytes]
    ) -> ArchiveMember:
        kind = _KINDS.get(header.type)
        if kind is None:
            raise UnpackRefused(f"{as_text(header.name)!r} is of the unknown type {header.type!r}")
        name = extensions.get(b"path", header.name)
        if kind is MemberKind.FILE and name.endswith(b"/") and header.type != _OLD_SPARSE:
            kind = MemberKind.DIRECTORY  # archives older than the directory type
        stored = read_number(extensions[b"size"]) if b"size" in extensions else header.number(124, 12, "size")
        self._content = stored if kind is MemberKind.FILE else 0
        self._padding = -self._content % _BLOCK
        extents, size = self._sparse(header, extensions, sparse_numbers)
        return ArchiveMember(
            name=as_text(extensions.get(b"GNU.sparse.name", name)),
            kind=kind,
            size=self._content if size is None else size,
            mode=header.number(100, 8, "mode") & 0o7777,
            modified_at=read_time(extensions.get(b"mtime"), header),
            link=as_text(extensions.get(b"linkpath", header.link)),
            extents=extents,
        )

    def _sparse(
        self, header: Header, extensions: Mapping[bytes, bytes], sparse_numbers: Sequence[bytes]
    ) -> tuple[Sequence[Extent] | None, int | None]:
        """Return the map and the real size of a sparse file, which are stored in one of four places."""
        if header.type == _OLD_SPARSE:
            numbers, size = self._old_sparse(header), header.number(483, 12, "real size")
        elif extensions.get(b"GNU.sparse.major") == b"1":
            size = read_number(extensions.get(b"GNU.sparse.realsize", b""))
            # Decimal numbers before the content, one per line, padded to a block: the number of pairs, then the pairs.
            lines = self._lines_of_content()
            count = read_number(next(lines))
            self._refuse_many(count)
            numbers = [read_number(next(lines)) for _ in range(2 * count)]
        elif b"GNU.sparse.map" in extensions:
            size = read_number(extensions.get(b"GNU.sparse.size", b""))
            numbers = [read_number(word) for word in extensions[b"GNU.sparse.map"].split(b",")]
        elif sparse_numbers:
            size = read_number(extensions.get(b"GNU.sparse.size", b""))
            numbers = [read_number(word) for word in sparse_numbers]
        else:
            return None, None
        return self._checked(numbers, size), size

    def _old_sparse(self, header: Header) -> list[int]:
        numbers = [header.number(at, 12, "sparse map") for at in range(386, 386 + 8 * 12, 12)]
        more = header.block[482]
        while more:
            self._refuse_many(len(numbers) // 2)
            block = self._pieces.exactly(_BLOCK)
            if len(block) < _BLOCK:
                raise ContentMismatch("the archive ends inside a sparse map")
            numbers += [read_field(block, at, 12, "sparse map") for at in range(0, 42 * 12, 12)]
            more = block[504]
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [number for pair in pairs if pair != (0, 0) for number in pair]

    def _lines_of_content(self) -> Iterator[bytes]:
        unread = b""
        while True:
            while b"\n" not in unread:
                if self._content < _BLOCK or len(unread) > MAX_NUMBER_TEXT:
                    raise UnpackRefused("the map of a sparse file is broken")
                self._content -= _BLOCK
                unread += self._pieces.exactly(_BLOCK)
            line, _, unread = unread.partition(b"\n")
            yield line

    def _checked(self, numbers: Sequence[int], size: int) -> list[Extent]:
        """Check that extents are ordered, disjoint, inside the file, and add up to the stored size."""
        self._refuse_many(len(numbers) // 2)
        if len(numbers) % 2:
            raise UnpackRefused("the map of a sparse file is broken")
        extents = [Extent(offset=numbers[at], size=numbers[at + 1]) for at in range(0, len(numbers), 2)]
        end = 0
        for extent in extents:
            if extent.offset < end:
                raise UnpackRefused("the map of a sparse file overlaps")
            end = extent.offset + extent.size
        if end > size or sum(extent.size for extent in extents) != self._content:
            raise UnpackRefused("the map of a sparse file does not fit its size")
        return extents

    def _refuse_many(self, extents: int) -> None:
        if extents > self._limits.extents:
            raise LimitExceeded(f"a sparse file in more than {self._limits.extents} parts")
