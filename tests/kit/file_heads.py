"""Headers and bodies of LocalAI's HTTP transfers of files, as recorded messages have them.

Corral's worker writes these headers where it answers; here they are read too, to hold recordings against them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from corral.base.errors import InvalidInput
from corral.wire.files import CONTENT_RANGE, ContentRange

FILES: Final = "/v1/files/"
FILE_LIST: Final = "/v1/files-list/"

RANGE: Final = "Range"
CONTENT_SHA256: Final = "X-Content-SHA256"
"""The hash of the whole file: of what an upload shall become, or of what a finished file is."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHead:
    """What a PUT says of its body. Without a range it is the whole file; without a hash it is not verified."""

    range: ContentRange | None = None
    sha256: str = ""
    """The hash, in lower case."""

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Self:
        """InvalidInput when the range cannot be read."""
        folded = _folded(headers)
        text = folded.get(CONTENT_RANGE.lower())
        return cls(
            range=ContentRange.parse(text) if text is not None else None,
            sha256=folded.get(CONTENT_SHA256.lower(), "").lower(),
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
    """The hash of a finished file; empty when it could not be hashed."""
    target_sha256: str = ""
    """The hash that an upload shall have when it is finished."""

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Self:
        """InvalidInput when the size is not a number."""
        folded = _folded(headers)
        return cls(
            size=_number(FILE_SIZE, folded.get(FILE_SIZE.lower(), "")),
            local_path=folded.get(LOCAL_PATH.lower(), ""),
            sha256=folded.get(CONTENT_SHA256.lower(), "").lower(),
            target_sha256=folded.get(TARGET_SHA256.lower(), "").lower(),
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
    """Headers of the answer 308: so much is there, go on from here."""
    return {RANGE: f"bytes=0-{size - 1}", FILE_SIZE: str(size)}


def wrong_start_headers(size: int, total: int) -> dict[str, str]:
    """Headers of the answer 416: the file is not as long as the range supposes."""
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
