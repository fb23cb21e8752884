"""Moving files to and from a worker: the headers of HTTP transfers, and messages about object storage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import msgspec
from msgspec import UNSET, UnsetType

from corral.base.errors import InvalidInput

FILES: Final = "/v1/files/"
FILE_LIST: Final = "/v1/files-list/"
TEMPORARY: Final = "/v1/files/temp"

CONTENT_RANGE: Final = "Content-Range"
RANGE: Final = "Range"
CONTENT_SHA256: Final = "X-Content-SHA256"
"""Of the whole file: what an upload shall become, or what a finished file is."""
TARGET_SHA256: Final = "X-Target-SHA256"
"""What an upload that is not finished shall become."""
FILE_SIZE: Final = "X-File-Size"
LOCAL_PATH: Final = "X-Local-Path"
OCTETS: Final = "application/octet-stream"


class LocalPath(msgspec.Struct, kw_only=True):
    """Body of the answer to a finished upload and to `POST /v1/files/temp`."""

    local_path: str = ""


class FileList(msgspec.Struct, kw_only=True):
    """Body of the answer to `GET /v1/files-list/…`: paths relative to that directory, null when there are none."""

    files: list[str] | None = None


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
        found = cls(*(_number(CONTENT_RANGE, part) for part in (start, end, total)))
        if not found.start <= found.end < found.total:
            raise InvalidInput(CONTENT_RANGE, f"range {rest} makes no sense")
        return found

    @property
    def length(self) -> int:
        return self.end - self.start + 1

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end == self.total - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHead:
    """What a PUT says of its body. Without a range it is the whole file; without a hash it is not verified."""

    range: ContentRange | None = None
    sha256: str = ""
    """Lower case."""

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Self:
        """InvalidInput when the range cannot be read."""
        found = _folded(headers)
        text = found.get(CONTENT_RANGE.lower())
        return cls(
            range=ContentRange.parse(text) if text is not None else None,
            sha256=found.get(CONTENT_SHA256.lower(), "").lower(),
        )

    def headers(self) -> dict[str, str]:
        written = {"Content-Type": OCTETS}
        if self.range is not None:
            written[CONTENT_RANGE] = str(self.range)
        if self.sha256:
            written[CONTENT_SHA256] = self.sha256
        return written


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """What HEAD tells of a file that is there, finished or not."""

    size: int
    local_path: str
    sha256: str = ""
    """Of a finished file; empty when it could not be hashed."""
    target_sha256: str = ""
    """Of an upload that is not finished: what it shall become."""

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Self:
        """InvalidInput when the size is not a number."""
        found = _folded(headers)
        return cls(
            size=_number(FILE_SIZE, found.get(FILE_SIZE.lower(), "")),
            local_path=found.get(LOCAL_PATH.lower(), ""),
            sha256=found.get(CONTENT_SHA256.lower(), "").lower(),
            target_sha256=found.get(TARGET_SHA256.lower(), "").lower(),
        )

    def headers(self) -> dict[str, str]:
        written = {
            FILE_SIZE: str(self.size),
            "Content-Length": str(self.size),
            LOCAL_PATH: self.local_path,
            "Accept-Ranges": "bytes",
        }
        if self.target_sha256:
            written[TARGET_SHA256] = self.target_sha256
        elif self.sha256:
            written[CONTENT_SHA256] = self.sha256
        return written


def more_wanted_headers(size: int) -> dict[str, str]:
    """Of the answer 308: so much is there, go on from here."""
    return {RANGE: f"bytes=0-{size - 1}", FILE_SIZE: str(size)}


def wrong_start_headers(size: int, total: int) -> dict[str, str]:
    """Of the answer 416: the file is not as long as the range supposes."""
    return {CONTENT_RANGE: f"bytes */{total}", FILE_SIZE: str(size)}


def size_told(headers: Mapping[str, str]) -> int:
    """How much of the file is there, by the answers 308 and 416. InvalidInput when they do not tell."""
    return _number(FILE_SIZE, _folded(headers).get(FILE_SIZE.lower(), ""))


def _folded(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value.strip() for name, value in headers.items()}


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InvalidInput(name, f"not a number: {text!r}")
    return int(text)


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
