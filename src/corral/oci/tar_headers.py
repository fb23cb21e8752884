"""What stands in the headers of a tar archive: numbers, names and extended records, none of which is believed."""

import os
from collections.abc import Iterator
from typing import Final

from corral.oci.errors import ContentMismatch, UnpackRefused

_POSIX_MAGIC: Final = b"ustar\0"
_MEANT_FOR_ONE: Final = (b"path", b"linkpath", b"size", b"GNU.sparse")
MAX_NUMBER_TEXT: Final = 20
"""Digits of a number that is written out."""


class Header:
    """One block that describes a member."""

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

    def number(self, at: int, size: int, what: str) -> int:
        return read_field(self.block, at, size, what)


def _until_zero(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def read_field(block: bytes, at: int, size: int, what: str) -> int:
    """Octal digits, or a binary number if the first bit is set; never negative, also for those that could be."""
    field = block[at : at + size]
    if field[0] & 0x80:
        value = int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
    else:
        digits = field.strip(b"\0 ") or b"0"
        value = int(digits, 8) if digits.isdigit() and not digits.strip(b"01234567") else -1
    if not 0 <= value < 1 << 63:
        if what == "mtime":
            return 0  # before 1970: not worth a refusal
        raise UnpackRefused(f"the archive states a {what} that cannot be: {field!r}")
    return value


def read_pax(data: bytes, extensions: dict[bytes, bytes], sparse_numbers: list[bytes]) -> None:
    for key, value in _pax_records(data):
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            sparse_numbers.append(value)  # the oldest of the pax forms: the same keys again and again, in order
        else:
            extensions[key] = value


def refuse_names_for_all(data: bytes) -> None:
    for key, _ in _pax_records(data):
        if key.startswith(_MEANT_FOR_ONE):
            raise UnpackRefused(f"a global header that sets {as_text(key)} for all that follows")


def _pax_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """`LENGTH KEY=VALUE`, a line each; the length counts the whole line. Zeros after the last are padding."""
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
    """As the file system takes it: bytes that are no text survive."""
    return os.fsdecode(name)
