"""Moving files to and from a worker: the range of an upload, and messages about object storage."""

from dataclasses import dataclass
from typing import Final, Self

import msgspec
from msgspec import UNSET, UnsetType

from corral.base.errors import InvalidInput

CONTENT_RANGE: Final = "Content-Range"


@dataclass(frozen=True, slots=True)
class ContentRange:
    """Which bytes of a file an upload carries; both ends belong to it."""

    start: int
    end: int
    total: int

    def __str__(self) -> str:
        return f"bytes {self.start}-{self.end}/{self.total}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """InvalidInput says what is missing; all three numbers are mandatory."""
        unit, _, rest = text.partition(" ")
        if unit != "bytes":
            raise InvalidInput(CONTENT_RANGE, f'missing "bytes" prefix in {text!r}')
        span, slash, total = rest.partition("/")
        if not slash:
            raise InvalidInput(CONTENT_RANGE, f"missing /total in {text!r}")
        start, dash, end = span.partition("-")
        if not dash:
            raise InvalidInput(CONTENT_RANGE, f"missing - separator in {text!r}")
        for number in (start, end, total):
            if not (number.isascii() and number.isdecimal()):
                raise InvalidInput(CONTENT_RANGE, f"not a number: {number!r}")
        content_range = cls(int(start), int(end), int(total))
        if not content_range.start <= content_range.end < content_range.total:
            raise InvalidInput(CONTENT_RANGE, f"range {rest} makes no sense")
        return content_range

    @property
    def length(self) -> int:
        return self.end - self.start + 1

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end == self.total - 1


class EnsureRequest(msgspec.Struct, kw_only=True):
    """Have an object on the node's disk."""

    key: str = ""


class LocalPathReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `files.ensure` and `files.temp`."""

    local_path: str = ""
    error: str = ""


class StageRequest(msgspec.Struct, kw_only=True):
    """Put a file of the node into the storage."""

    local_path: str = ""
    key: str = ""


class StageReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    key: str = ""
    error: str = ""


class ListRequest(msgspec.Struct, kw_only=True):
    """Which files are below a directory of the node: `models/…`, `data/…`, or its cache."""

    key_prefix: str = ""


class ListedFiles(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Paths relative to the directory; null when there are none."""

    files: list[str] | UnsetType | None = UNSET
    error: str = ""
