"""The files of the web page: read and compressed when first asked for, and kept in memory from then on."""

import asyncio
import gzip
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ASSETS: Final = "assets/"
"""Files below this folder have a digest in their names: under one name there is never another content."""
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".gif": "image/gif",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".mp3": "audio/mpeg",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".wav": "audio/wav",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
_UNKNOWN_TYPE: Final = "application/octet-stream"
_COMPRESSED: Final = frozenset(
    {".css", ".html", ".js", ".json", ".map", ".mjs", ".svg", ".txt", ".wasm", ".webmanifest"}
)
_NAME: Final = re.compile(r"(?:[A-Za-z0-9_@+~-][A-Za-z0-9._@+~-]*/)*[A-Za-z0-9_@+~-][A-Za-z0-9._@+~-]*")
"""No part of a path begins with a dot, is empty, or has a sign that some file system reads in another way."""
_LONGEST_NAME: Final = 256
_WORTHWHILE: Final = 1024
"""Shorter files are not compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    content: bytes
    gzipped: bytes | None
    """None where that would not be shorter."""
    digest: str
    media_type: str
    stamp: tuple[int, int]
    """When it was changed, and its size: another stamp means another content."""


class PageFiles:
    """Serves one folder and nothing outside of it. Memory is bounded by what is in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, PageFile] = {}

    async def find(self, name: str) -> PageFile | None:
        """The file with this path below the folder; None when there is none. Files that may change are looked at each
        time, in a thread."""
        if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
            return None
        kept = self._kept.get(name)
        if kept is not None and name.startswith(ASSETS):
            return kept
        file = await asyncio.to_thread(self._load, name, kept)
        if file is not None:
            self._kept[name] = file
        return file

    def _load(self, name: str, kept: PageFile | None) -> PageFile | None:
        path = self._folder / name
        try:
            # A link that somebody put into the folder must not lead out of it.
            if not path.resolve().is_relative_to(self._folder.resolve()) or not path.is_file():
                return None
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if kept is not None and kept.stamp == stamp:
                return kept
            return _made(path.suffix, path.read_bytes(), stamp)
        except OSError:  # gone since, or not ours to read: then there is no such file
            return None


def _made(suffix: str, content: bytes, stamp: tuple[int, int]) -> PageFile:
    gzipped = None
    if suffix in _COMPRESSED and len(content) >= _WORTHWHILE:
        gzipped = gzip.compress(content, mtime=0)
    return PageFile(
        content=content,
        gzipped=gzipped if gzipped is not None and len(gzipped) < len(content) else None,
        digest=hashlib.sha256(content).hexdigest()[:32],
        media_type=MEDIA_TYPES.get(suffix, _UNKNOWN_TYPE),
        stamp=stamp,
    )
