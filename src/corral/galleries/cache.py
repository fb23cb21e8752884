"""What is kept of galleries on the disk: the last good index of each source, for the time when it is away.

One file for each source, replaced by renaming: of several processes that share the directory each sees a whole one. May
block: call it in a thread. A cache that cannot be used costs fetches and nothing else.
"""

import hashlib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import PathNotUsable
from corral.base.private_files import make_private_directory, write_private
from corral.base.unreadable_json import UNREADABLE_JSON

log = logging.getLogger(__name__)

_FORMAT: Final = 1
_LONGEST_HEADER: Final = 64 * 1024


class _Header(msgspec.Struct, kw_only=True):
    """The first line of a file; the index follows."""

    format: int = 0
    url: str = ""
    sha256: str = ""
    etag: str = ""
    last_modified: str = ""
    digest: str = ""
    fetched_at: float = 0.0
    checked_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Validators:
    """How a server identifies the version that we have; empty when it does not."""

    etag: str = ""
    last_modified: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """An etag says more than a time, which counts in seconds."""
        if self.etag:
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.last_modified} if self.last_modified else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """An index as it was last fetched."""

    url: str
    """Where it came from: the source itself, or a mirror."""
    content: bytes = field(repr=False)
    validators: Validators = field(default_factory=Validators)
    digest: str = ""
    """Of the artefact, when it came from a registry."""
    fetched_at: float
    """When this version came, in seconds since 1970."""
    checked_at: float
    """When it was last known to be the newest one."""


CopyMark = tuple[int, int, int]
"""What tells one file from another that took its name."""


class IndexCache:
    """The copies in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_told = False

    def mark(self, url: str) -> CopyMark | None:
        """None when there is no copy."""
        try:
            status = self._path(url).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def load(self, url: str) -> Copy | None:
        """The copy of a source; None when there is none, or none that is whole."""
        try:
            with self._path(url).open("rb") as file:
                line = file.readline(_LONGEST_HEADER)
                content = file.read()
            header = msgspec.json.decode(line, type=_Header)
        except (OSError, *UNREADABLE_JSON):
            return None
        if header.format != _FORMAT or hashlib.sha256(content).hexdigest() != header.sha256:
            return None
        return Copy(
            url=header.url,
            content=content,
            validators=Validators(etag=header.etag, last_modified=header.last_modified),
            digest=header.digest,
            fetched_at=header.fetched_at,
            checked_at=header.checked_at,
        )

    def store(self, url: str, copy: Copy) -> None:
        """Keep a copy of a source. What cannot be kept is told once."""
        header = _Header(
            format=_FORMAT,
            url=copy.url,
            sha256=hashlib.sha256(copy.content).hexdigest(),
            etag=copy.validators.etag,
            last_modified=copy.validators.last_modified,
            digest=copy.digest,
            fetched_at=copy.fetched_at,
            checked_at=copy.checked_at,
        )
        try:
            make_private_directory(self._directory)
            write_private(self._path(url), msgspec.json.encode(header) + b"\n" + copy.content)
        except PathNotUsable as error:
            if not self._is_told:
                log.warning("galleries are not kept: %s", error, extra={"event": "gallery.not_kept"})
            self._is_told = True

    def _path(self, url: str) -> Path:
        return self._directory / f"{hashlib.sha256(os.fsencode(url)).hexdigest()}.index"
