"""Caches the last good index of each source on disk, for when the source is unavailable.

One file per source, replaced by rename: processes that share the directory always see a complete file. Blocking:
call it in a thread. A failing cache only costs additional fetches.
"""

import hashlib
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import PathNotUsable
from corral.base.private_files import make_private_directory, write_private
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.values import PartlyPrinted

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


class Copy(PartlyPrinted, frozen=True, kw_only=True):
    """An index as last fetched."""

    unprinted = ("content",)

    url: str
    """The source's own URL, or a mirror's."""
    content: bytes
    etag: str = ""
    last_modified: str = ""
    """HTTP validators, like the etag; empty if the server sends none."""
    digest: str = ""
    """Digest of the artefact, if it came from a registry."""
    fetched_at: float = 0.0
    """When this version was fetched, in seconds since 1970."""
    checked_at: float = 0.0
    """When it was last confirmed as the newest version, in seconds since 1970."""

    @property
    def conditions(self) -> dict[str, str]:
        """Headers that ask only for a newer version. The etag is preferred: a time has a resolution of a second."""
        if self.etag:
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.last_modified} if self.last_modified else {}


CopyMark = tuple[int, int, int]
"""Identifies a version of a file, to notice a replacement."""


class IndexCache:
    """The cached indexes in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_failure_logged = False

    def mark(self, url: str) -> CopyMark | None:
        """Return the mark of the cached file; None if there is none."""
        try:
            status = self._path(url).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def load(self, url: str) -> Copy | None:
        """Return the cached copy of a source; None if it is missing or damaged."""
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
            etag=header.etag,
            last_modified=header.last_modified,
            digest=header.digest,
            fetched_at=header.fetched_at,
            checked_at=header.checked_at,
        )

    def store(self, url: str, copy: Copy) -> None:
        """Cache a copy of a source. Log the first failure only."""
        header = _Header(
            format=_FORMAT,
            url=copy.url,
            sha256=hashlib.sha256(copy.content).hexdigest(),
            etag=copy.etag,
            last_modified=copy.last_modified,
            digest=copy.digest,
            fetched_at=copy.fetched_at,
            checked_at=copy.checked_at,
        )
        try:
            make_private_directory(self._directory)
            write_private(self._path(url), msgspec.json.encode(header) + b"\n" + copy.content)
        except PathNotUsable as error:
            if not self._is_failure_logged:
                log.warning("galleries are not kept: %s", error, extra={"event": "gallery.not_kept"})
            self._is_failure_logged = True

    def _path(self, url: str) -> Path:
        return self._directory / f"{hashlib.sha256(os.fsencode(url)).hexdigest()}.index"
