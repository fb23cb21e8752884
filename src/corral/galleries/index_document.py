"""Parses the YAML text of an index, which is not trusted, and reads indexes from files of this machine.

Scalars stay text, as in LocalAI: `version: 1.10` is not 1.1, and `license: no` is not false. Merges are followed; a
mapping's own keys take precedence. An error inside one entry affects only that entry.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from corral.base.careful_yaml import LOADER, SHOWN, UNREADABLE, YamlLimits, YamlUnusable, check_events, why
from corral.base.errors import InvalidInput
from corral.base.private_files import read_bounded
from corral.base.words import format_size
from corral.galleries.gallery import GalleryContent, GallerySource, RawEntry, read_gallery
from corral.galleries.places import IndexLocation

LIMITS: Final = YamlLimits(most_values=500_000, deepest=32)
"""LocalAI's own index, with a thousand entries, has about eighty thousand values."""
_MERGE: Final = "tag:yaml.org,2002:merge"
_NULL: Final = "tag:yaml.org,2002:null"


def read_copy(content: bytes, source: GallerySource) -> GalleryContent:
    """Parse an index. Raise InvalidInput when it has no usable entry: it may be an error page, which must not replace
    a good copy."""
    gallery = read_gallery(read_index(content), source)
    if not gallery.entries:
        first = f": {gallery.skipped[0].sentence}" if gallery.skipped else ""
        raise InvalidInput("", f"holds no backend that can be used{first}")
    return gallery


def read_index(content: bytes) -> list[RawEntry]:
    """Return the items of the list. Raise InvalidInput when it is not a list; the message continues after the index's
    name."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput("", f"is not UTF-8 text: see byte {error.start}") from None
    try:
        check_events(text, LIMITS)
        root = yaml.compose(text, Loader=LOADER)
    except UNREADABLE as error:
        raise InvalidInput("", why(error)) from None
    if not isinstance(root, SequenceNode):
        raise InvalidInput("", "is not a list of backends")
    entries: list[RawEntry] = []
    for node in root.value:
        line = 0 if node.start_mark is None else int(node.start_mark.line) + 1
        try:
            entries.append(RawEntry(line=line, value=_built(node)))
        except YamlUnusable as error:
            entries.append(RawEntry(line=line, problem=str(error)))
    return entries


def _built(node: Node) -> object:
    match node:
        case ScalarNode():
            return None if node.tag == _NULL else node.value
        case SequenceNode():
            return [_built(item) for item in node.value]
        case MappingNode():
            return {key: _built(value) for key, value in _pairs(node).items()}
    raise YamlUnusable("holds something that is neither text nor a list nor a mapping")


def _pairs(mapping: MappingNode) -> dict[str, Node]:
    """Return the keys of a mapping including merged ones; of several merged ones the first takes precedence."""
    own: dict[str, Node] = {}
    merged: dict[str, Node] = {}
    for key, value in mapping.value:
        if not isinstance(key, ScalarNode):
            raise YamlUnusable("has a key that is not text")
        if key.tag == _MERGE:
            for source in value.value if isinstance(value, SequenceNode) else [value]:
                if not isinstance(source, MappingNode):
                    raise YamlUnusable("merges something that is not a mapping")
                merged = {**_pairs(source), **merged}
        elif key.value in own:
            raise YamlUnusable(f"has the key {key.value[:SHOWN]!r} twice, which LocalAI refuses the whole index for")
        else:
            own[key.value] = value
    return {**merged, **own}


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
            if path.name.endswith(".ref"):
                path = path.parent / self._content(path).decode("utf-8", "replace").strip()
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_size, status.st_ino)
            known_mark, cached = self._known.get((path, source.name), (None, None))
            if cached is not None and known_mark == mark:
                return replace(cached, source=source)
            gallery = read_copy(self._content(path), source)
        except OSError as error:
            raise InvalidInput("", f"cannot be read: {error.strerror or error}") from error
        entries = (
            replace(entry, local_path=str((path.parent / entry.uri).resolve()))
            if entry.uri.startswith(_RELATIVE)
            else entry
            for entry in gallery.entries
        )
        gallery = replace(gallery, entries=tuple(entries))
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
