"""The protocol with a downloader process: one order through an inherited descriptor, then lines on its output; and how
a download may fail.

DownloadError
├── DownloadInvalid         the order names a URL, a destination or a digest that cannot be used
├── FileMissing             404: the server has no such file
├── DownloadRefused         401, 403 and other refusals; redirects that are not followed; certificates
├── ServerUnavailable       retryable: 429, 5xx, no connection, too slow
├── DownloadDamaged         what came is not what was promised
│   └── RemoteFileChanged   the file is another one than at the beginning
├── DownloadTooLarge        the file is larger than a limit allows
├── TooLittleDisk           retryable: somebody may make room
├── DestinationUnusable     the place for the file cannot be used
├── DownloadCancelled       somebody ended it
└── DownloaderDied          retryable: the child process ended without a word
"""

import re
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from corral.base.errors import CorralError
from corral.base.reporting_child import FailureLine
from corral.oci.limits import Network

_MIB: Final = 1024 * 1024
_GIB: Final = 1024 * _MIB
_DIGEST: Final = re.compile(r"(sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40})?")


class DownloadError(CorralError):
    """The file cannot be downloaded."""

    code = "download_error"


class DownloadInvalid(DownloadError):
    """What shall be downloaded cannot be understood."""

    code = "download_invalid"


class FileMissing(DownloadError):
    """The server has no such file."""

    code = "download_not_found"


class DownloadRefused(DownloadError):
    """The server refuses, or leads to where we do not go."""

    code = "download_refused"


class ServerUnavailable(DownloadError):
    """The server does not answer as it should."""

    code = "download_unavailable"
    retryable = True

    def __init__(self, message: str, *, retry_after: float | None = None, is_crowded: bool = False) -> None:
        self.retry_after = retry_after
        """Seconds that the server asked us to wait."""
        self.is_crowded = is_crowded
        """Whether fewer connections may help."""
        super().__init__(message)


class DownloadDamaged(DownloadError):
    """What came is not what was promised."""

    code = "download_damaged"


class RemoteFileChanged(DownloadDamaged):
    """The file changed on the server while it was downloaded."""

    code = "download_changed"


class DownloadTooLarge(DownloadError):
    """The file is larger than a limit allows."""

    code = "download_too_large"


class TooLittleDisk(DownloadError):
    """There is too little room on the disk."""

    code = "disk_full"
    retryable = True


class DestinationUnusable(DownloadError):
    """The place for the file cannot be used."""

    code = "download_destination"


class DownloadCancelled(DownloadError):
    """The download was cancelled."""

    code = "download_cancelled"


class DownloaderDied(DownloadError):
    """The process that downloads ended without a word."""

    code = "downloader_died"
    retryable = True


class FileOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a download order: where it comes from, where it goes, and what its content must be."""

    url: str
    destination: str
    """Path relative to the directory of the order."""
    authorization: str = ""
    """Value of the header, a secret. It is sent to the host of the URL only."""
    size: int | None = None
    """Size in bytes; None if unknown."""
    digest: str = ""
    """`sha256:…`, or `git-sha1:…` as hubs state it for small files; empty: unknown."""
    purpose: str = ""
    """Whom the file is for, in one word. One without a digest that came for the same purpose before is not downloaded
    again."""
    is_shared: bool = False
    """Whether somebody else needs what is at the destination: another file there is not replaced."""
    advice: str = ""
    """What to do when the server answers 401 or 403, as a clause: "accept the licence at …"."""

    def __repr__(self) -> str:
        return f"FileOrder({self.destination!r})"  # URLs may be signed, and are as secret as the authorization


class DownloadLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Plain values with their units and the reasons of their defaults."""

    connections: int = 8
    """Connections per file. One connection rarely fills a long line; servers refuse clients with many."""
    connections_in_all: int = 16
    files_at_once: int = 4
    """Files of one order that are downloaded at the same time."""
    piece_bytes: int = 16 * _MIB
    """A connection asks for whole pieces. It must be reached by a slow line before its patience ends."""
    bytes_per_second: int = 0
    """Bandwidth of the whole order; 0: unlimited."""
    free_bytes: int = 512 * _MIB
    """Free disk space that must remain."""
    largest_bytes: int = 4096 * _GIB
    """Maximum size of one file; against bodies without end."""
    restarts: int = 1
    """How often a damaged or changed file is downloaded again from its beginning."""
    is_private_reachable: bool = False
    """Whether a public host may redirect to a private address."""


class DownloadOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An order to download these files. Each gets its name when it is complete and has its digest."""

    files: tuple[FileOrder, ...]
    directory: str
    """No destination leads out of it. What is not whole yet is below it in `.corral/partial`."""
    limits: DownloadLimits = DownloadLimits()
    network: Network = Network()
    niceness: int = 10
    """Niceness of the process, 0 to 19."""


class FileState(StrEnum):
    """What is done about a file at the moment."""

    WAITING = "waiting"
    """For its turn, or for another process that downloads it."""
    FETCHING = "fetching"
    CHECKING = "checking"
    """All bytes are there; the last of them are being hashed and brought to the disk."""
    DONE = "done"


class FileProgress(msgspec.Struct, frozen=True, array_like=True):
    state: FileState
    current_bytes: int = 0
    """Bytes that are there, those of earlier attempts included; never shrinks."""
    total_bytes: int = 0
    """Bytes of all files; 0 while unknown."""


class DownloadProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Progress of all files, in the order in which they were asked for."""

    sequence: int
    """Increases with each line."""
    files: tuple[FileProgress, ...]


class FetchedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is there."""

    destination: str
    size: int
    sha256: str
    fetched_bytes: int
    """Bytes that came over the network for this order; 0 when the file was there already."""


class DownloadResult(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """All files are there, in the order in which they were asked for."""

    files: tuple[FetchedFile, ...]


DownloadLine: TypeAlias = DownloadProgress | DownloadResult | FailureLine


def check_order(order: DownloadOrder) -> None:
    """Raise DownloadInvalid with the field and its value when the order cannot be executed."""
    if not order.files:
        raise DownloadInvalid("an order without files")
    seen: set[str] = set()
    for file in order.files:
        if not _DIGEST.fullmatch(file.digest):
            raise DownloadInvalid(f"digest: {file.digest[:100]!r} is neither sha256:… nor git-sha1:… in small hex")
        if file.size is not None and file.size < 0:
            raise DownloadInvalid(f"size: {file.size} of {file.destination!r} is less than nothing")
        if file.size is not None and file.size > order.limits.largest_bytes:
            raise too_large(file.destination, order.limits)
        if file.destination in seen:
            raise DownloadInvalid(f"destination: {file.destination!r} is named twice")
        seen.add(file.destination)


def too_large(name: str, limits: DownloadLimits) -> DownloadTooLarge:
    return DownloadTooLarge(f"{name} has more than {limits.largest_bytes} bytes, which is the limit of one file")
