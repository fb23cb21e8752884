"""Reads and writes the two files that describe a backend's directory, and caches what they say. Blocking: call it in a
thread.

`metadata.json` is written by the installer, `corral.json` by the backend's author.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from corral.base.errors import InvalidInput
from corral.wire import go_json
from corral.wire.models import known_routes

log = logging.getLogger(__name__)

METADATA: Final = "metadata.json"
MANIFEST: Final = "corral.json"
_MOST_BYTES: Final = 1024 * 1024

MetadataT = TypeVar("MetadataT", bound=msgspec.Struct)


class Provenance(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Corral's additions to the metadata. LocalAI ignores unknown names, and drops them when it installs."""

    platform_digest: str = ""
    """Digest of the image for this machine; `digest` is that of the index."""
    source: str = ""
    """The uri that worked: a mirror's or another tag's if the first one failed."""
    gallery: str = ""
    """Name of the gallery."""


class Metadata(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Content of `metadata.json`, with LocalAI's names in LocalAI's order."""

    alias: str = ""
    meta_backend_for: str = ""
    name: str = ""
    gallery_url: str = ""
    installed_at: str = ""
    version: str = ""
    uri: str = ""
    digest: str = ""
    corral: Provenance | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """All known digests of its content."""
        digests = (self.digest, self.corral.platform_digest if self.corral is not None else "")
        return tuple(dict.fromkeys(digest for digest in digests if digest))

    @property
    def has_origin(self) -> bool:
        """Whether an installer wrote it, and not a person who placed the backend by hand."""
        return bool(self.uri or self.digest or self.gallery_url or self.installed_at)

    @property
    def gallery(self) -> str:
        return self.corral.gallery if self.corral is not None else ""


class HttpOffer(msgspec.Struct, kw_only=True):
    """The HTTP port of the backend's engine."""

    protocol: str = ""
    ready: str = ""
    """The path that answers 200 once a model is loaded."""
    front: bool = False
    """Whether it needs a second port, for requests that its first one would handle differently."""
    routes: list[str] | None = None
    """The inference routes that the server answers, as `/v1/messages`; None when the author does not say."""


class BackendManifest(msgspec.Struct, kw_only=True):
    """What the author declares to Corral; LocalAI ignores it."""

    name: str = ""
    http: HttpOffer | None = None
    network: str = ""
    """The most that it needs: a `BackendNetwork`. It can ask for less than the worker's setting, never for more."""

    @property
    def has_openai_port(self) -> bool:
        return self.http is not None and self.http.protocol == "openai"

    @property
    def has_front(self) -> bool:
        return self.has_openai_port and self.http is not None and self.http.front

    @property
    def http_routes(self) -> tuple[str, ...] | None:
        """The routes of its own HTTP port; None when they are not stated."""
        if self.http is None or self.http.routes is None:
            return None
        return tuple(sorted(known_routes(self.http.routes)))


def read_metadata(directory: Path) -> Metadata:
    return _read_struct(directory / METADATA, Metadata)


def read_manifest(directory: Path) -> BackendManifest:
    return _read_struct(directory / MANIFEST, BackendManifest)


def write_metadata(directory: Path, metadata: Metadata) -> None:
    """Write a new file, never through a link that came with the backend."""
    _write(directory / METADATA, metadata)


def replace_metadata(directory: Path, metadata: Metadata, *, scratch: Path) -> None:
    """Replace the metadata of a version in use atomically: readers see the old or the new one."""
    _write(scratch, metadata)
    scratch.rename(directory / METADATA)


def _write(path: Path, metadata: Metadata) -> None:
    path.unlink(missing_ok=True)
    text = json.dumps(msgspec.to_builtins(metadata), indent=2, ensure_ascii=False)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _read_struct(path: Path, struct: type[MetadataT]) -> MetadataT:
    """Parse a file; an empty struct when it is missing or damaged, so that one backend does not hide the others."""
    try:
        with path.open("rb") as file:
            return go_json.decode(file.read(_MOST_BYTES), struct)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, InvalidInput) as error:
        log.warning("ignoring %s: %s", path, error, extra={"event": "backend.unreadable"})
    return struct()


T = TypeVar("T")

_MOST: Final = 1024
"""Maximum number of cached directories; beyond it the cache is emptied."""
_SURE_NS: Final = 2 * 10**9
"""A younger file may change again without a new time, because file times are coarse."""

FilesMark = tuple[int, int, int, int, int] | None


class FileMemory(Generic[T]):
    """One value per directory, parsed from some of its files."""

    def __init__(self, read: Callable[[Path], T], names: Sequence[str]) -> None:
        self._read = read
        self._names = tuple(names)
        self._cached: dict[str, tuple[tuple[FilesMark, ...], T]] = {}

    def of(self, directory: Path) -> T:
        """Return the current value. A file that changes while it is read is read again the next time."""
        key = os.fspath(directory)
        marks = tuple(_mark(f"{key}/{name}") for name in self._names)
        cached = self._cached.get(key)
        if cached is not None and cached[0] == marks:
            return cached[1]
        value = self._read(directory)
        limit = time.time_ns() - _SURE_NS
        if all(max(mark[3], mark[4]) < limit for mark in marks if mark is not None):
            if len(self._cached) >= _MOST:
                self._cached.clear()
            self._cached[key] = (marks, value)
        return value


def _mark(path: str) -> FilesMark:
    """Return values that change when the file is replaced or written; None when it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
