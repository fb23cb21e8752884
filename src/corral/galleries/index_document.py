"""Parses the YAML text of an index, which is not trusted, and reads indexes from files of this machine.

Scalars stay text, as in LocalAI: `version: 1.10` is not 1.1, and `license: no` is not false. Merges are followed; a
mapping's own keys take precedence. An error inside one entry affects only that entry.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic

import msgspec
from msgspec.structs import replace

from corral.base.careful_yaml import UNREADABLE, YamlLimits, why
from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.base.words import format_size
from corral.base.yaml_values import ScalarReader, YamlItem, as_text, read_items
from corral.galleries.gallery import E, GalleryEntry, GallerySource, IndexContent, read_backend, read_entries
from corral.galleries.places import IndexLocation

LIMITS: Final = YamlLimits(most_values=500_000, deepest=32)
"""LocalAI's own index, with a thousand entries, has about eighty thousand values."""
BUILT_IN_FILES: Final = Path(__file__).absolute().parent / "builtin"
_RELATIVE: Final = ("./", "../")


class IndexKind(msgspec.Struct, Generic[E], frozen=True, kw_only=True):
    """What indexes of a kind list, and how they are read."""

    thing: str
    """One word for an entry."""
    builtin: Path
    """The index that ships with Corral."""
    scalar: ScalarReader
    read: Callable[[YamlItem, str], E]
    """Makes an entry of an item and the name of the gallery. Raises InvalidInput."""
    settle: Callable[[E, Path], E]
    """Completes an entry of an index that is a file of this machine."""
    limits: YamlLimits = LIMITS

    def content(self, content: bytes, source: GallerySource) -> IndexContent[E]:
        """Parse an index. Raise InvalidInput when it has no usable entry: it may be an error page, which must not
        replace a good copy."""
        items = read_index(content, self.scalar, self.limits, noun=self.thing)
        gallery = read_entries(items, source, self.read, noun=self.thing)
        if not gallery.entries:
            first = f": {gallery.skipped[0].sentence}" if gallery.skipped else ""
            raise InvalidInput("", f"holds no {self.thing} that can be used{first}")
        return gallery


def read_index(
    content: bytes, scalar: ScalarReader = as_text, limits: YamlLimits = LIMITS, *, noun: str = "backend"
) -> list[YamlItem]:
    """Return the items of the list. Raise InvalidInput when it is not a list; the message continues after the index's
    name."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput("", f"is not UTF-8 text: see byte {error.start}") from None
    try:
        items = read_items(text, limits, scalar)
    except UNREADABLE as error:
        raise InvalidInput("", why(error)) from None
    if items is None:
        raise InvalidInput("", f"is not a list of {noun}s")
    return items


def _settled_backend(entry: GalleryEntry, index: Path) -> GalleryEntry:
    """Resolve a uri that is relative to the index."""
    if not entry.uri.startswith(_RELATIVE):
        return entry
    return replace(entry, local_path=str((index.parent / entry.uri).resolve()))


BACKENDS: Final = IndexKind(
    thing="backend",
    builtin=BUILT_IN_FILES / "index.yaml",
    scalar=as_text,
    read=read_backend,
    settle=_settled_backend,
)

_MOST_KNOWN: Final = 64

_Mark = tuple[int, int, int]


class LocalIndexes(Generic[E]):
    """Parsed local indexes. Blocking: call it in a thread."""

    def __init__(self, kind: IndexKind[E], most_bytes: int, builtin: Path | None = None) -> None:
        self._kind = kind
        self._most_bytes = most_bytes
        self._builtin = builtin or kind.builtin
        self._read_indexes: dict[tuple[Path, str], tuple[_Mark, IndexContent[E]]] = {}

    def read(self, place: IndexLocation, source: GallerySource) -> IndexContent[E]:
        """Return the gallery of an index file. Raise InvalidInput when it cannot be read."""
        path = place.path or self._builtin
        try:
            if path.name.endswith(".ref"):
                path = path.parent / self._content(path).decode("utf-8", "replace").strip()
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_size, status.st_ino)
            known_mark, cached = self._read_indexes.get((path, source.name), (None, None))
            if cached is not None and known_mark == mark:
                return replace(cached, source=source)
            gallery = self._kind.content(self._content(path), source)
        except OSError as error:
            raise InvalidInput("", f"cannot be read: {error.strerror or error}") from error
        entries = tuple(self._kind.settle(entry, path) for entry in gallery.entries)
        gallery = replace(gallery, entries=entries)
        if len(self._read_indexes) >= _MOST_KNOWN:
            self._read_indexes.clear()
        self._read_indexes[path, source.name] = (mark, gallery)
        return gallery

    def _content(self, path: Path) -> bytes:
        content = read_bounded(path, self._most_bytes)
        if content is None:
            most = format_size(self._most_bytes)
            raise InvalidInput("", f"is larger than {most}; the setting gallery.max_size allows more")
        return content
