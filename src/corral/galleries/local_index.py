"""Reads index files of this machine, and the one that ships with Corral. Parses them again only when they changed."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.base.words import format_size
from corral.galleries.gallery import GalleryContent, GalleryEntry, GallerySource
from corral.galleries.index_document import read_copy
from corral.galleries.places import IndexLocation

BUILT_IN_FILE: Final = Path(__file__).absolute().parent / "builtin" / "index.yaml"
_MOST_KNOWN: Final = 64
_RELATIVE: Final = ("./", "../")

_Mark = tuple[int, int, int]


class LocalIndexes:
    """Parsed local indexes. Blocking: call it in a thread."""

    def __init__(self, most_bytes: int, builtin: Path | None = None) -> None:
        self._most_bytes = most_bytes
        self._builtin = builtin or BUILT_IN_FILE
        self._known: dict[tuple[Path, str], tuple[_Mark, GalleryContent]] = {}

    def read(self, place: IndexLocation, source: GallerySource) -> GalleryContent:
        """Return the gallery of an index file. Raise InvalidInput when it cannot be read."""
        path = place.path or self._builtin
        try:
            return self._read(path, source)
        except OSError as error:
            raise InvalidInput("", f"cannot be read: {error.strerror or error}") from error

    def _read(self, path: Path, source: GallerySource) -> GalleryContent:
        if path.name.endswith(".ref"):
            path = path.parent / self._content(path).decode("utf-8", "replace").strip()
        status = path.stat()
        mark = (status.st_mtime_ns, status.st_size, status.st_ino)
        known_mark, cached = self._known.get((path, source.name), (None, None))
        if cached is not None and known_mark == mark:
            return replace(cached, source=source)
        gallery = _placed(read_copy(self._content(path), source), path.parent)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[path, source.name] = (mark, gallery)
        return gallery

    def _content(self, path: Path) -> bytes:
        content = read_bounded(path, self._most_bytes)
        if content is None:
            most = format_size(self._most_bytes)
            raise InvalidInput("", f"is larger than {most}; the setting gallery.max_size allows more")
        return content


def _placed(gallery: GalleryContent, directory: Path) -> GalleryContent:
    """Resolve relative paths of an index against its directory."""
    return replace(gallery, entries=tuple(_entry_placed(entry, directory) for entry in gallery.entries))


def _entry_placed(entry: GalleryEntry, directory: Path) -> GalleryEntry:
    if not entry.uri.startswith(_RELATIVE):
        return entry
    return replace(entry, local_path=str((directory / entry.uri).resolve()))
