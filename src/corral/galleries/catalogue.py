"""All galleries together: which build a name means on a machine.

A backend's own name, its `gallery@name`, an alias and the name of a meta backend all lead to one build, whose name is
the backend's canonical key: installs, locks and intents go by it. Names are looked up without regard to letter case,
the first gallery first, and before aliases.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from corral.galleries.capability import key_for, preferred_build, unsuited
from corral.galleries.gallery import EntryProblem, GalleryContent, GalleryEntry, odd_metas

_MOST_SUGGESTIONS: Final = 3
_NEAR: Final = 0.6
_MISTYPED: Final = 0.75
"""How alike two names are of which one is probably the other, mistyped: `ecko` and `echo`."""
_LONGEST_ASKED: Final = 200


class Way(StrEnum):
    """How a name led to its build."""

    NAME = "name"
    META = "meta"
    ALIAS = "alias"


class Missing(StrEnum):
    """Why a name has no build on a machine."""

    UNKNOWN = "unknown"
    """No gallery has it."""
    NO_KEY = "no_key"
    """The meta backend has no build for the machine, nor one for all."""
    DANGLING = "dangling"
    """The meta backend names a build that is not there, or that is no build."""
    UNSUITED = "unsuited"
    """The build is for other hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedBuild:
    """The build that a name means on a machine."""

    asked: str
    entry: GalleryEntry
    """What was named: the build itself, or the meta backend."""
    build: GalleryEntry
    way: Way

    @property
    def key(self) -> str:
        """The canonical identity: the directory that the build is installed into."""
        return self.build.name


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresolvedBuild:
    """Why there is no build for a name on a machine, and what comes near."""

    asked: str
    missing: Missing
    reason: str
    entry: GalleryEntry | None = None
    """What was named, if it is there at all."""
    would_fit: tuple[str, ...] = ()
    """Backends of the same family that this machine can run."""
    suggestions: tuple[str, ...] = ()
    """Names like the one that nobody knows."""

    @property
    def message(self) -> str:
        """The reason, with what would help."""
        if self.would_fit:
            return f"{self.reason}; {_either(self.would_fit)} would fit"
        if self.suggestions:
            return f"{self.reason}; did you mean {_either(self.suggestions)}?"
        return self.reason


Resolution = ResolvedBuild | UnresolvedBuild


class BackendCatalogue:
    """The entries of several galleries, in the order of the galleries. Never changes."""

    def __init__(self, galleries: Iterable[GalleryContent] = ()) -> None:
        self.galleries = tuple(galleries)
        self.entries, self._clashes = _merged(self.galleries)
        self._by_name: dict[str, list[GalleryEntry]] = {}
        self._by_alias: dict[str, list[GalleryEntry]] = {}
        for entry in self.entries:
            self._by_name.setdefault(entry.name.lower(), []).append(entry)
            if entry.alias and not entry.is_meta:
                self._by_alias.setdefault(entry.alias.lower(), []).append(entry)

    @property
    def problems(self) -> tuple[EntryProblem, ...]:
        """Entries that cannot be used, in any gallery."""
        return tuple(problem for gallery in self.galleries for problem in gallery.skipped) + self._clashes

    def oddities(self) -> Iterator[tuple[GalleryEntry, str]]:
        """Meta backends that lead nowhere for some capability."""
        return odd_metas(self.entries)

    def entry(self, name: str) -> GalleryEntry | None:
        """What has this name, as `name` or `gallery@name`; aliases are not names."""
        return next(iter(self._named(name)), None)

    def resolve(self, name: str, capability: str) -> Resolution:
        """The build that a name means on a machine of this capability."""
        named = self._named(name)
        if not named:
            return self._by_aliases(name, capability)
        entry = _first_suited(named, capability)
        if entry.is_meta:
            return self._through(name, entry, capability)
        if (problem := _unsuited_sentence(entry, capability)) is not None:
            return self._not_found(name, entry, Missing.UNSUITED, problem, capability)
        return ResolvedBuild(asked=name, entry=entry, build=entry, way=Way.NAME)

    def key_of(self, name: str, capability: str) -> str:
        """The canonical key of a name; of one that no gallery can resolve, for example of a backend that was installed
        without one, the name itself."""
        resolved = self.resolve(name, capability)
        return resolved.key if isinstance(resolved, ResolvedBuild) else _as_directory(name)

    def _named(self, name: str) -> Sequence[GalleryEntry]:
        """Whatever has this name. LocalAI leaves out what is not for the machine, and takes the first of the others."""
        wanted = _normal(name)
        named = self._by_name.get(wanted.rpartition("@")[2], [])
        return [entry for entry in named if entry.id.lower() == wanted] if "@" in wanted else named

    def _through(self, name: str, meta: GalleryEntry, capability: str) -> Resolution:
        """LocalAI looks for the mapped name in all galleries, and installs it only if it is a build."""
        key = key_for(capability, meta.capabilities)
        if key is None:
            offered = ", ".join(sorted(meta.capabilities))
            reason = f"{meta.name} has builds for {offered}, and this machine is {capability}"
            return self._not_found(name, meta, Missing.NO_KEY, reason, capability)
        target = meta.capabilities[key]
        build = self._target(target, capability)
        if build is None or build.is_meta:
            what = "no gallery has" if build is None else "is itself" if build is meta else "is another meta backend"
            reason = f"{meta.name} names {target!r} as its build for {key}, which {what}"
            return self._not_found(name, meta, Missing.DANGLING, reason, capability)
        if (problem := _unsuited_sentence(build, capability)) is not None:
            reason = f"{meta.name} names {build.name} for {key}, but {problem}"
            return self._not_found(name, meta, Missing.UNSUITED, reason, capability)
        return ResolvedBuild(asked=name, entry=meta, build=build, way=Way.META)

    def _target(self, name: str, capability: str) -> GalleryEntry | None:
        named = self._named(name)
        return _first_suited(named, capability) if named else None

    def _by_aliases(self, name: str, capability: str) -> Resolution:
        """Of the builds that share an alias, the one that LocalAI's worker would start if all were installed."""
        sharing = self._sharing(name)
        if not sharing:
            suggestions = self.near(name)
            reason = f"no gallery has a backend {name[:_LONGEST_ASKED]!r}"
            return UnresolvedBuild(asked=name, missing=Missing.UNKNOWN, reason=reason, suggestions=suggestions)
        suited = {entry.name: entry for entry in reversed(sharing) if _is_suited(entry, capability)}
        chosen = preferred_build(suited, capability)
        if chosen is None:
            listed = ", ".join(entry.name for entry in sharing[:_MOST_SUGGESTIONS])
            reason = (
                f"the alias {name} stands for builds such as {listed}, and none is for a machine that is {capability}"
            )
            return self._not_found(name, sharing[0], Missing.UNSUITED, reason, capability)
        return ResolvedBuild(asked=name, entry=suited[chosen], build=suited[chosen], way=Way.ALIAS)

    def _sharing(self, name: str) -> Sequence[GalleryEntry]:
        """Builds with this alias in the first gallery that has some, or in the one that is named."""
        gallery, at, alias = _normal(name).rpartition("@")
        sharing = [e for e in self._by_alias.get(alias, ()) if not at or e.gallery.lower() == gallery]
        return [entry for entry in sharing if entry.gallery == sharing[0].gallery]

    def _not_found(
        self, name: str, entry: GalleryEntry, missing: Missing, reason: str, capability: str
    ) -> UnresolvedBuild:
        would_fit = tuple(self._fitting_family(entry, capability))
        return UnresolvedBuild(asked=name, missing=missing, reason=reason, entry=entry, would_fit=would_fit)

    def _fitting_family(self, entry: GalleryEntry, capability: str) -> list[str]:
        """What else goes by the same names and runs there: releases before development, metas before builds."""
        words = self._family_words(entry)
        family = [other for other in self.entries if other is not entry and words & _own_words(other)]
        fitting = [other for other in family if self._fits(other, capability)]
        fitting.sort(key=lambda other: (other.is_development, not other.is_meta))
        return list(dict.fromkeys(other.name for other in fitting))[:_MOST_SUGGESTIONS]

    def _fits(self, entry: GalleryEntry, capability: str) -> bool:
        if not entry.is_meta:
            return _is_suited(entry, capability)
        key = key_for(capability, entry.capabilities)
        build = None if key is None else self._target(entry.capabilities[key], capability)
        return build is not None and not build.is_meta and _is_suited(build, capability)

    def _family_words(self, entry: GalleryEntry) -> frozenset[str]:
        targets = (target for name in entry.capabilities.values() for target in self._named(name)[:1])
        return _own_words(entry) | frozenset(target.alias.lower() for target in targets if target.alias)

    def near(self, name: str) -> tuple[str, ...]:
        """Names that somebody who wrote this may have meant."""
        wanted = _normal(name)[:_LONGEST_ASKED]
        known = {alias: sharing[0].alias for alias, sharing in self._by_alias.items()}
        known |= {name: named[0].name for name, named in self._by_name.items()}
        if "@" in wanted:
            known |= {entry.id.lower(): entry.id for entry in self.entries}
        matches = difflib.get_close_matches(wanted, known, n=_MOST_SUGGESTIONS, cutoff=_NEAR)
        return tuple(dict.fromkeys(known[match] for match in matches))

    @property
    def unread(self) -> tuple[str, ...]:
        """Galleries of which nothing is known: they may have what the others do not."""
        return tuple(gallery.name for gallery in self.galleries if not gallery.entries)

    def absence(self, missing: UnresolvedBuild) -> str:
        """Why a name that no gallery is known to have means nothing; empty while one that cannot be read may have it.

        A name that is nearly one of those that are known is taken for a typing mistake also then, unless it says which
        gallery is meant.
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
        """What LocalAI would list on some machine of these capabilities."""
        known = set(capabilities)
        return [entry for entry in self.entries if any(_is_offered(entry, one) for one in known)]

    def search(self, term: str) -> list[GalleryEntry]:
        """Entries that mention every word of the term in their names, tags or description."""
        words = term.lower().split()
        return [entry for entry in self.entries if all(word in _searched(entry) for word in words)]


def _merged(galleries: Sequence[GalleryContent]) -> tuple[tuple[GalleryEntry, ...], tuple[EntryProblem, ...]]:
    """One name is one directory, so an entry that would make it two things is passed over."""
    first: dict[str, GalleryEntry] = {}
    entries: list[GalleryEntry] = []
    clashes: list[EntryProblem] = []
    for gallery in galleries:
        for entry in gallery.entries:
            known = first.setdefault(entry.name.lower(), entry)
            if known.name == entry.name and known.is_meta == entry.is_meta:
                entries.append(entry)
                continue
            what = "is spelled in other letters" if known.name != entry.name else "is not of the same kind"
            problem = f"{what} than {known.id}, which comes first"
            clashes.append(EntryProblem(gallery=gallery.name, line=0, name=entry.name, problem=problem))
    return tuple(entries), tuple(clashes)


def _first_suited(entries: Sequence[GalleryEntry], capability: str) -> GalleryEntry:
    return next((entry for entry in entries if _is_offered(entry, capability)), entries[0])


def _is_offered(entry: GalleryEntry, capability: str) -> bool:
    """Whether LocalAI lists an entry on a machine; that of a meta does not mean that its build is any good."""
    return key_for(capability, entry.capabilities) is not None if entry.is_meta else _is_suited(entry, capability)


def _is_suited(build: GalleryEntry, capability: str) -> bool:
    return unsuited(capability, name=build.name, uri=build.uri) is None


def _unsuited_sentence(build: GalleryEntry, capability: str) -> str | None:
    found = unsuited(capability, name=build.name, uri=build.uri)
    if found is None:
        return None
    return f"{build.name} is for {found.maker} ({found.word!r} in its name or uri), and this machine is {capability}"


def _own_words(entry: GalleryEntry) -> frozenset[str]:
    return frozenset({entry.alias.lower(), entry.name.lower()} - {""})


def _searched(entry: GalleryEntry) -> str:
    return "\n".join((entry.id, entry.alias, *entry.tags, entry.description)).lower()


def _normal(name: str) -> str:
    return _as_directory(name).lower()


def _as_directory(name: str) -> str:
    """LocalAI's way to make a directory's name of what people ask for."""
    return name.strip().replace("/", "__")


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
