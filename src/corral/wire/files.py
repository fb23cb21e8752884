"""Moving files to and from a worker: the range of an upload, and messages about object storage."""

from typing import Final, Self

import msgspec
from msgspec import UNSET, UnsetType

from corral.base.errors import InvalidInput

CONTENT_RANGE: Final = "Content-Range"
PENDING: Final = "pending:"
"""What `X-Content-SHA256` begins with while the sender still computes the digest. What follows names the sender's file
and its version. The worker shows all of it as `X-Target-SHA256` of the unfinished upload, so that the upload can be
resumed, and takes the last range only with the digest. For workers that name `Feature.LATE_DIGESTS`."""


def is_pending(digest: str) -> bool:
    """Whether a digest, or the target of an unfinished upload, only stands for one that is still computed."""
    return digest.startswith(PENDING)


class ContentRange(msgspec.Struct, frozen=True):
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
    def is_last(self) -> bool:
        return self.end == self.total - 1

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.is_last


class EnsureWish(msgspec.Struct, kw_only=True):
    """What a frontend of Corral adds for a worker of Corral: which bytes, and where they shall be."""

    digest: str
    """SHA-256 in hexadecimal digits."""
    size: int
    place: str
    """A key of the worker's file server, below `models/`."""
    wait: float = 0
    """Seconds after which the worker tells how far it is, if it is not done; asking again joins the same fetch."""


BUSY: Final = "busy"
"""Code of an answer: somebody else writes the same file."""


class EnsureProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How far a worker of Corral is with an object that it has not yet."""

    present: int = 0
    is_missing: bool = False
    """The storage has no such object."""
    code: str = ""
    """Which kind of error the answer tells."""


class EnsureRequest(msgspec.Struct, kw_only=True):
    """Asks a worker to have an object of the object storage on its disk."""

    key: str = ""
    corral: EnsureWish | UnsetType = UNSET


class LocalPathReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Answer to `files.ensure` and `files.temp`."""

    local_path: str = ""
    error: str = ""
    corral: EnsureProgress | UnsetType = UNSET


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


FETCHES: Final = "/v1/corral/fetches"
"""Where a worker is asked to fetch a file itself. The answer is a stream of lines, each a `FetchNews`; the last one
has a path or an error. Closing the connection ends the fetch; what came stays, and the next one goes on there."""
PEER_FILES: Final = "/v1/corral/peer-files/"
"""Where a worker serves a file to another one that shows a ticket."""


class FetchAsk(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Asks a worker to fetch a file from exactly one source: a peer, or a public server."""

    key: str
    size: int
    digest: str
    """SHA-256 of the file; received content with another digest is deleted."""
    peer: str = ""
    """Host and port of another worker that has the file."""
    peer_name: str = ""
    """The name that the peer's certificate must be valid for; empty if it speaks plain text."""
    peer_key: str = ""
    """The key of the file at that worker."""
    ticket: str = ""
    url: str = ""
    """The URL of the file at a public server, without credentials."""


class FetchNews(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The progress of a fetch."""

    present: int = 0
    """Bytes that are there, those of earlier attempts included."""
    path: str = ""
    """Where the file is; only at the end, when all of it is there and has the digest."""
    error: str = ""
    """Why it ended without the file."""
    is_full: bool = False
    """Whether the error is that this disk is full."""
