"""Parses a gallery's entries in LocalAI's format; the input is not trusted.

An unusable entry is skipped with its reason, never the whole gallery. An entry with a `uri` is a build. One with a
capability map and no `uri` is a meta backend: a name for one of several builds, by the machine's capability. Builds
often carry the map of their meta because YAML merges put it there; only the missing `uri` makes a meta.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from corral.base.config_fields import kind, text, texts
from corral.base.errors import InvalidInput
from corral.base.yaml_values import YamlItem

BUILT_IN_URL: Final = "corral:builtin"
"""Stands for the gallery that ships with Corral, independent of where it is installed."""
DEVELOPMENT: Final = "-development"
LONGEST_NAME: Final = 200
"""In bytes. Names become directories, and installers append to them."""
MOST_ENTRIES: Final = 20_000
_RESERVED_ENDS: Final = (".install-tmp", ".install-backup", ".upgrade-tmp", ".backup")
_SHOWN: Final = 80


class GallerySource(msgspec.Struct, frozen=True, kw_only=True):
    """A gallery's name, URLs and signature policy."""

    name: str
    url: str
    mirrors: tuple[str, ...] = ()
    """Tried in this order when the url fails."""
    verification: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Whose signatures its images need; empty: none."""

    @property
    def urls(self) -> tuple[str, ...]:
        """All URLs in the order to try, without duplicates."""
        return tuple(dict.fromkeys(url for url in (self.url.strip(), *map(str.strip, self.mirrors)) if url))


class GalleryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One backend of a gallery, or a meta backend."""

    name: str
    gallery: str = ""
    uri: str = ""
    """As in the index: the rules about names use this text."""
    local_path: str = ""
    """Resolved path of a uri that is relative to an index on this machine; otherwise empty."""
    mirrors: tuple[str, ...] = ()
    alias: str = ""
    capabilities: Mapping[str, str] = msgspec.field(default_factory=dict)
    version: str = ""
    sha256: str = ""
    description: str = ""
    license: str = ""
    icon: str = ""
    size: str = ""
    urls: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def is_meta(self) -> bool:
        return bool(self.capabilities) and not self.uri

    @property
    def is_development(self) -> bool:
        return self.name.endswith(DEVELOPMENT)

    @property
    def artefact(self) -> str:
        """What is installed: the uri of an image or an archive, or a directory."""
        return self.local_path or self.uri

    @property
    def id(self) -> str:
        """`gallery@name`, which is unique across galleries."""
        return f"{self.gallery}@{self.name}" if self.gallery else self.name


class EntryProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why one entry is unusable."""

    gallery: str
    line: int
    name: str
    """Empty if it has none."""
    problem: str

    @property
    def sentence(self) -> str:
        where = f" in line {self.line}" if self.line else ""
        about = f"{self.name!r}{where}" if self.name else f"the entry{where}"
        return f"{about}: {self.problem}"


class Named(Protocol):
    """An entry of any kind of gallery."""

    @property
    def name(self) -> str: ...


E = TypeVar("E", bound=Named)


class IndexContent(msgspec.Struct, Generic[E], frozen=True, kw_only=True):
    """The parsed entries of a gallery of any kind."""

    source: GallerySource
    entries: tuple[E, ...] = ()
    skipped: tuple[EntryProblem, ...] = ()
    """Unusable entries."""

    @property
    def name(self) -> str:
        return self.source.name


GalleryContent = IndexContent[GalleryEntry]
"""A gallery of backends."""


def read_gallery(items: Iterable[YamlItem], source: GallerySource) -> GalleryContent:
    """Return all usable backends, in order."""
    return read_entries(items, source, read_backend, noun="backend")


def read_entries(
    items: Iterable[YamlItem], source: GallerySource, read: Callable[[YamlItem, str], E], *, noun: str
) -> IndexContent[E]:
    """Return what `read` makes of each item and the gallery's name, in order. Of several entries with one name,
    ignoring case, the first is used. Whatever raises InvalidInput is skipped."""
    entries: dict[str, E] = {}
    skipped: list[EntryProblem] = []
    for number, item in enumerate(items):
        try:
            if number >= MOST_ENTRIES:
                raise InvalidInput(
                    "", f"a gallery has more than {MOST_ENTRIES} entries; this one and those after it are not read"
                )
            entry = read(item, source.name)
            if entry.name.lower() in entries:
                raise InvalidInput("", f"a {noun} of this name is there already, and the first one counts")
        except InvalidInput as error:
            name = item.value.get("name") if isinstance(item.value, Mapping) else None
            short_name = name[:_SHOWN] if isinstance(name, str) else ""
            skipped.append(EntryProblem(gallery=source.name, line=item.line, name=short_name, problem=error.message))
            if number >= MOST_ENTRIES:
                break
        else:
            entries[entry.name.lower()] = entry
    return IndexContent(source=source, entries=tuple(entries.values()), skipped=tuple(skipped))


def item_mapping(item: YamlItem) -> Mapping[str, object]:
    """Return the mapping that an item is. InvalidInput if it is something else, or could not be read."""
    if item.problem:
        raise InvalidInput("", item.problem)
    if not isinstance(item.value, Mapping):
        raise InvalidInput("", f"must be a mapping, got {kind(item.value)}")
    return item.value


def read_backend(item: YamlItem, gallery: str) -> GalleryEntry:
    """Parse the known keys of an entry and ignore others. InvalidInput names the key with an invalid value."""
    value = item_mapping(item)
    entry = GalleryEntry(
        gallery=gallery,
        name=text(value, "name").strip(),
        uri=text(value, "uri").strip(),
        mirrors=entry_texts(value, "mirrors"),
        alias=text(value, "alias").strip(),
        capabilities=_capabilities(value.get("capabilities")),
        version=text(value, "version"),
        sha256=text(value, "sha256"),
        description=text(value, "description"),
        license=text(value, "license"),
        icon=text(value, "icon"),
        size=text(value, "size"),
        urls=entry_texts(value, "urls"),
        tags=entry_texts(value, "tags"),
    )
    if problem := name_problem(entry.name):
        raise InvalidInput("name", problem)
    if not entry.uri and not entry.capabilities:
        raise InvalidInput("uri", "is missing, and there is no capability map to find a build with")
    return entry


def entry_texts(value: Mapping[str, object], key: str) -> tuple[str, ...]:
    values = texts(value, key, ())
    assert isinstance(values, Sequence)  # noqa: S101 - it reads lists, or gives back what it was given
    return tuple(values)


def _capabilities(mapping: object) -> Mapping[str, str]:
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        raise InvalidInput("capabilities", f"must be a mapping, got {kind(mapping)}")
    targets: dict[str, str] = {}
    for capability, target in mapping.items():
        if target is not None and (not isinstance(target, str | int | float) or isinstance(target, bool)):
            problem = f"must name a build for {str(capability)[:_SHOWN]}, got {kind(target)}"
            raise InvalidInput("capabilities", problem)
        targets[str(capability)] = text({"target": target}, "target").strip()
    return targets


def name_problem(name: str) -> str:
    """Return why a name is invalid for a backend, and so for a directory; empty if it is valid."""
    if not name:
        return "is missing"
    if len(name.encode()) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME} bytes"
    if "/" in name or "\\" in name or name.startswith("."):
        return "cannot be the name of a directory"
    if "@" in name:
        return "holds an @, which stands between the name of a gallery and that of a backend"
    if not name.isprintable():
        return "holds characters that cannot be printed"
    if name.endswith(_RESERVED_ENDS):
        return "ends like the directories of unfinished installs"
    return ""
