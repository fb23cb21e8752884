"""Merges all galleries, and resolves a name to a build for a machine.

A backend's own name, its `gallery@name`, an alias and the name of a meta backend all lead to one build, whose name
is the backend's canonical key: installs, locks and intents use it. Look-up ignores case, tries names before
aliases, and earlier galleries first.

Which builds suit a machine is decided by the rules of LocalAI's workers, which classify a machine by one word, its
capability. They are followed exactly, odd ones too, because a frontend must predict what a worker will do. The look-up
in a capability map is exact: `nvidia-cuda-12` finds the key `nvidia-cuda-12`, else `default`, else `cpu`, and never
`nvidia`.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from corral.galleries.gallery import EntryProblem, GalleryContent, GalleryEntry, GallerySource

DEFAULT: Final = "default"
DISABLED: Final = "disable"
"""A capability that users set to be offered every build."""
SMALL_GPU_BYTES: Final = 4 * 1024**3
"""A GPU with no more video memory than this is ignored."""
_FALLBACKS: Final = (DEFAULT, "cpu")


def key_for(capability: str, keys: Collection[str]) -> str | None:
    """Return the key of a capability map that applies to a machine; None if there is none."""
    return next((key for key in (capability, *_FALLBACKS) if key in keys), None)


def derived_capability(vendor: str, total_vram: int | None) -> str:
    """Return the assumed capability of a node that reported none."""
    return DEFAULT if not vendor or (total_vram or 0) <= SMALL_GPU_BYTES else vendor


class Maker(msgspec.Struct, frozen=True, kw_only=True):
    """A hardware vendor whose hardware a build needs."""

    name: str
    words: tuple[str, ...]
    exact: tuple[str, ...] = ()
    prefix: str = ""

    def takes(self, capability: str) -> bool:
        return capability in self.exact or bool(self.prefix and capability.startswith(self.prefix))


_MAKERS: Final = (
    Maker(name="Apple", words=("darwin", "mlx", "metal"), exact=("metal", "darwin-x86")),
    Maker(name="NVIDIA Jetson", words=("l4t",), prefix="nvidia-l4t"),
    Maker(name="NVIDIA", words=("cuda", "nvidia"), prefix="nvidia"),
    Maker(name="AMD", words=("rocm", "hip", "amd"), exact=("amd",)),
    Maker(name="Intel", words=("sycl", "intel"), exact=("intel",)),
)
"""The first entry with a word in a build's name or uri decides. Substrings match: `amd64` counts as AMD as well."""


class Unsuited(msgspec.Struct, frozen=True, kw_only=True):
    """Why a build does not suit a machine."""

    maker: str
    word: str
    """The word in the name or uri that decided."""


def unsuited(capability: str, *, name: str, uri: str) -> Unsuited | None:
    """Return why a build does not suit a machine; None if it does. Builds for CPUs and Vulkan always suit."""
    if capability == DISABLED:
        return None
    text = f"{name} {uri}".lower()
    for maker in _MAKERS:
        word = next((word for word in maker.words if word in text), None)
        if word is not None:
            return None if maker.takes(capability) else Unsuited(maker=maker.name, word=word)
    return None


_PREFERRED: Final[Mapping[str, Sequence[str]]] = {
    "nvidia": ("cuda", "vulkan", "cpu"),
    "amd": ("rocm", "hip", "vulkan", "cpu"),
    "intel": ("sycl", "intel", "cpu"),
    "metal": ("metal", "cpu"),
    "darwin-x86": ("darwin-x86", "cpu"),
    "vulkan": ("vulkan", "cpu"),
}
"""By prefix of a capability: words to prefer in a build's name, best first."""


def preferred_build(names: Collection[str], capability: str) -> str | None:
    """Return which of several builds with one alias is used on a machine: the best kind, then alphabetical order."""
    ordered = sorted(names)
    for word in preferred_words(capability):
        for name in ordered:
            if word in name.lower():
                return name
    return ordered[0] if ordered else None


def preferred_words(capability: str) -> Sequence[str]:
    """Return the words to prefer in a build's name, best first."""
    return next((words for start, words in _PREFERRED.items() if capability.startswith(start)), ("cpu",))


_MOST_SUGGESTIONS: Final = 3
_NEAR: Final = 0.6
_MISTYPED: Final = 0.75
"""Similarity from which a name counts as a misspelling of another: `ecko` and `echo`."""
_LONGEST_ASKED: Final = 200


class Missing(StrEnum):
    """Why a name has no build on a machine."""

    UNKNOWN = "unknown"
    """No gallery has the name."""
    NO_KEY = "no_key"
    """The meta backend has no build for this machine, and no default."""
    DANGLING = "dangling"
    """The meta backend refers to a build that is missing, or to another meta backend."""
    UNSUITED = "unsuited"
    """The build needs other hardware."""


class ResolvedBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The build that a name resolves to on a machine."""

    asked: str
    entry: GalleryEntry
    """The named entry: the build itself, or a meta backend."""
    build: GalleryEntry

    @property
    def key(self) -> str:
        """The canonical key: the directory that the build is installed into."""
        return self.build.name


class UnresolvedBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Why a name has no build on a machine, and alternatives."""

    asked: str
    missing: Missing
    reason: str
    entry: GalleryEntry | None = None
    """The named entry, if it exists."""
    would_fit: tuple[str, ...] = ()
    """Backends of the same family that this machine can run."""
    suggestions: tuple[str, ...] = ()
    """Similar names that exist."""

    @property
    def message(self) -> str:
        """The reason, with alternatives."""
        if self.would_fit:
            return f"{self.reason}; {_either(self.would_fit)} would fit"
        if self.suggestions:
            return f"{self.reason}; did you mean {_either(self.suggestions)}?"
        return self.reason


Resolution = ResolvedBuild | UnresolvedBuild


class BackendCatalogue:
    """The entries of several galleries, in the order of the galleries. Immutable."""

    def __init__(self, galleries: Iterable[GalleryContent] = ()) -> None:
        self.galleries = tuple(galleries)
        self.entries, self._clashes = _merged(self.galleries)
        self._positions: dict[int, int] = {}  # by identity: names of galleries may be empty, or equal
        for position, gallery in enumerate(self.galleries):
            for entry in gallery.entries:
                self._positions.setdefault(id(entry), position)
        self._by_name: dict[str, list[GalleryEntry]] = {}
        self._by_alias: dict[str, list[GalleryEntry]] = {}
        for entry in self.entries:
            self._by_name.setdefault(entry.name.lower(), []).append(entry)
            if entry.alias and not entry.is_meta:
                self._by_alias.setdefault(entry.alias.lower(), []).append(entry)

    @property
    def problems(self) -> tuple[EntryProblem, ...]:
        """Unusable entries of all galleries."""
        return tuple(problem for gallery in self.galleries for problem in gallery.skipped) + self._clashes

    def position_of(self, entry: GalleryEntry) -> int:
        """Return which of `galleries` an entry of this catalogue comes from."""
        return self._positions[id(entry)]

    def source_of(self, entry: GalleryEntry) -> GallerySource:
        """Return the gallery that an entry of this catalogue comes from. Several galleries may have its name."""
        return self.galleries[self.position_of(entry)].source

    def entry(self, name: str) -> GalleryEntry | None:
        """Return the entry with this `name` or `gallery@name`. Aliases are not looked up."""
        return next(iter(self._named(name)), None)

    def resolve(self, name: str, capability: str) -> Resolution:
        """Resolve a name to a build for a machine of this capability."""
        named = self._named(name)
        if not named:
            return self._by_aliases(name, capability)
        entry = _first_suited(named, capability)
        if entry.is_meta:
            return self._through(name, entry, capability)
        if (problem := _unsuited_sentence(entry, capability)) is not None:
            return self._not_found(name, entry, Missing.UNSUITED, problem, capability)
        return ResolvedBuild(asked=name, entry=entry, build=entry)

    def knows(self, name: str) -> bool:
        """Whether any entry has this name or alias, for whatever machine."""
        resolved = self.resolve(name, DEFAULT)
        return isinstance(resolved, ResolvedBuild) or resolved.missing is not Missing.UNKNOWN

    def key_of(self, name: str, capability: str) -> str:
        """Return the canonical key of a name, or the name itself if no gallery resolves it, for example for a backend
        that was installed from a uri."""
        resolved = self.resolve(name, capability)
        return resolved.key if isinstance(resolved, ResolvedBuild) else _as_directory(name)

    def _named(self, name: str) -> Sequence[GalleryEntry]:
        """Return all entries with this name. LocalAI drops those that do not suit the machine, and takes the first
        other one."""
        normal_name = _normal(name)
        named = self._by_name.get(normal_name.rpartition("@")[2], [])
        return [entry for entry in named if entry.id.lower() == normal_name] if "@" in normal_name else named

    def _through(self, name: str, meta: GalleryEntry, capability: str) -> Resolution:
        """Resolve a meta backend. LocalAI searches the mapped name in all galleries, and accepts only a build."""
        key = key_for(capability, meta.capabilities)
        if key is None:
            offered = ", ".join(sorted(meta.capabilities))
            reason = f"{meta.name} has builds for {offered}, and this machine is {capability}"
            return self._not_found(name, meta, Missing.NO_KEY, reason, capability)
        target = meta.capabilities[key]
        build = self._target(target, capability)
        if build is None or build.is_meta:
            fault = "no gallery has" if build is None else "is itself" if build is meta else "is another meta backend"
            reason = f"{meta.name} names {target!r} as its build for {key}, which {fault}"
            return self._not_found(name, meta, Missing.DANGLING, reason, capability)
        if (problem := _unsuited_sentence(build, capability)) is not None:
            reason = f"{meta.name} names {build.name} for {key}, but {problem}"
            return self._not_found(name, meta, Missing.UNSUITED, reason, capability)
        return ResolvedBuild(asked=name, entry=meta, build=build)

    def _target(self, name: str, capability: str) -> GalleryEntry | None:
        named = self._named(name)
        return _first_suited(named, capability) if named else None

    def _by_aliases(self, name: str, capability: str) -> Resolution:
        """Return the build of an alias that LocalAI's worker would start if all were installed: of those in the named
        gallery, or in the first gallery that has any."""
        gallery, at, alias = _normal(name).rpartition("@")
        sharing = [e for e in self._by_alias.get(alias, ()) if not at or e.gallery.lower() == gallery]
        if not sharing:
            reason = f"no gallery has a backend {name[:_LONGEST_ASKED]!r}"
            return UnresolvedBuild(asked=name, missing=Missing.UNKNOWN, reason=reason, suggestions=self.near(name))
        first = self.position_of(sharing[0])
        sharing = [entry for entry in sharing if self.position_of(entry) == first]
        suited = {entry.name: entry for entry in reversed(sharing) if _is_suited(entry, capability)}
        chosen = preferred_build(suited, capability)
        if chosen is None:
            listed = ", ".join(entry.name for entry in sharing[:_MOST_SUGGESTIONS])
            reason = (
                f"the alias {name} stands for builds such as {listed}, and none is for a machine that is {capability}"
            )
            return self._not_found(name, sharing[0], Missing.UNSUITED, reason, capability)
        return ResolvedBuild(asked=name, entry=suited[chosen], build=suited[chosen])

    def _not_found(
        self, name: str, entry: GalleryEntry, missing: Missing, reason: str, capability: str
    ) -> UnresolvedBuild:
        """Name related backends that run there: releases before development builds, metas before builds."""
        targets = (target for target_name in entry.capabilities.values() for target in self._named(target_name)[:1])
        words = _own_words(entry) | {target.alias.lower() for target in targets if target.alias}
        family = [other for other in self.entries if other is not entry and words & _own_words(other)]
        fitting = [other for other in family if self._fits(other, capability)]
        fitting.sort(key=lambda other: (other.is_development, not other.is_meta))
        would_fit = tuple(dict.fromkeys(other.name for other in fitting))[:_MOST_SUGGESTIONS]
        return UnresolvedBuild(asked=name, missing=missing, reason=reason, entry=entry, would_fit=would_fit)

    def _fits(self, entry: GalleryEntry, capability: str) -> bool:
        if not entry.is_meta:
            return _is_suited(entry, capability)
        key = key_for(capability, entry.capabilities)
        build = None if key is None else self._target(entry.capabilities[key], capability)
        return build is not None and not build.is_meta and _is_suited(build, capability)

    def near(self, name: str) -> tuple[str, ...]:
        """Return similar names that exist, as suggestions."""
        normal_name = _normal(name)[:_LONGEST_ASKED]
        spellings = {alias: sharing[0].alias for alias, sharing in self._by_alias.items()}
        spellings |= {name: named[0].name for name, named in self._by_name.items()}
        if "@" in normal_name:
            spellings |= {entry.id.lower(): entry.id for entry in self.entries}
        matches = difflib.get_close_matches(normal_name, spellings, n=_MOST_SUGGESTIONS, cutoff=_NEAR)
        return tuple(dict.fromkeys(spellings[match] for match in matches))

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the galleries that could not be read: they may have what the others lack."""
        return tuple(gallery.name for gallery in self.galleries if not gallery.entries)

    def absence(self, missing: UnresolvedBuild) -> str:
        """Return why an unknown name cannot be resolved; empty while an unread gallery may still have it.

        A misspelling of an existing name is reported even then, unless the name says which gallery is meant.
        """
        if not self.unread:
            return missing.message
        name = _normal(missing.asked)[:_LONGEST_ASKED]
        near = difflib.get_close_matches(name, [*self._by_name, *self._by_alias], n=1, cutoff=_MISTYPED)
        if "@" in name or not near:
            return ""
        gallery = self.unread[0]
        return f"{missing.message} If the gallery {gallery}, which cannot be read now, has it, say {gallery}@{name}."

    def offered(self, capabilities: Iterable[str]) -> list[GalleryEntry]:
        """Return the entries that LocalAI would list on a machine with any of these capabilities."""
        distinct = set(capabilities)
        return [entry for entry in self.entries if any(_is_offered(entry, capability) for capability in distinct)]

    def search(self, term: str) -> list[GalleryEntry]:
        """Entries that mention every word of the term in their names, tags or description."""
        words = term.lower().split()
        texts = (
            "\n".join((listed.id, listed.alias, *listed.tags, listed.description)).lower() for listed in self.entries
        )
        return [entry for entry, text in zip(self.entries, texts, strict=True) if all(word in text for word in words)]


def _merged(galleries: Sequence[GalleryContent]) -> tuple[tuple[GalleryEntry, ...], tuple[EntryProblem, ...]]:
    """Merge the entries of all galleries. A name is a directory, so an entry that conflicts with an earlier one is
    skipped."""
    first: dict[str, GalleryEntry] = {}
    entries: list[GalleryEntry] = []
    clashes: list[EntryProblem] = []
    for gallery in galleries:
        for entry in gallery.entries:
            earlier = first.setdefault(entry.name.lower(), entry)
            if earlier.name == entry.name and earlier.is_meta == entry.is_meta:
                entries.append(entry)
                continue
            difference = "is spelled in other letters" if earlier.name != entry.name else "is not of the same kind"
            problem = f"{difference} than {earlier.id}, which comes first"
            clashes.append(EntryProblem(gallery=gallery.name, line=0, name=entry.name, problem=problem))
    return tuple(entries), tuple(clashes)


def _first_suited(entries: Sequence[GalleryEntry], capability: str) -> GalleryEntry:
    return next((entry for entry in entries if _is_offered(entry, capability)), entries[0])


def _is_offered(entry: GalleryEntry, capability: str) -> bool:
    """Whether LocalAI lists an entry on a machine. For a meta this says nothing about its build."""
    return key_for(capability, entry.capabilities) is not None if entry.is_meta else _is_suited(entry, capability)


def _is_suited(build: GalleryEntry, capability: str) -> bool:
    return unsuited(capability, name=build.name, uri=build.uri) is None


def _unsuited_sentence(build: GalleryEntry, capability: str) -> str | None:
    reason = unsuited(capability, name=build.name, uri=build.uri)
    if reason is None:
        return None
    return f"{build.name} is for {reason.maker} ({reason.word!r} in its name or uri), and this machine is {capability}"


def _own_words(entry: GalleryEntry) -> frozenset[str]:
    return frozenset({entry.alias.lower(), entry.name.lower()} - {""})


def _normal(name: str) -> str:
    return _as_directory(name).lower()


def _as_directory(name: str) -> str:
    """Convert a name to a directory name like LocalAI."""
    return name.strip().replace("/", "__")


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
