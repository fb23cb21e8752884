"""Finds models in all galleries of models: by name, and by what they are for. Pure."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from corral.base.config_fields import listed, value_at
from corral.base.errors import InvalidInput, NotFound
from corral.galleries.gallery import EntryProblem
from corral.galleries.model_entries import GalleryModel, ModelContent
from corral.galleries.model_sizes import size_of_entry
from corral.galleries.model_variants import stated_facts

_MOST_SUGGESTIONS: Final = 3
_NEAR: Final = 0.6
_LONGEST_ASKED: Final = 200
_MOST_PER_PAGE: Final = 1000
_TAGS_OF_USES: Final[Mapping[str, frozenset[str]]] = {
    "chat": frozenset({"llm", "chat", "text-to-text"}),
    "completion": frozenset({"llm", "completion", "text-to-text"}),
    "embeddings": frozenset({"embedding", "embeddings"}),
    "rerank": frozenset({"reranker", "rerank"}),
    "image": frozenset({"image-generation", "text-to-image", "image"}),
    "tts": frozenset({"tts", "text-to-speech"}),
    "transcript": frozenset({"stt", "asr", "speech-to-text", "audio-transcription", "whisper"}),
    "vision": frozenset({"vision", "multimodal", "vlm", "image-to-text"}),
}
"""What tags say about the use of entries that do not name their uses."""


class ModelQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for; empty parts say nothing."""

    term: str = ""
    """Words that the name, a tag or the description must mention, all of them."""
    gallery: str = ""
    tag: str = ""
    license: str = ""
    usecase: str = ""
    """One of LocalAI's words, such as `embeddings`."""
    backend: str = ""
    most_bytes: int | None = None
    """Entries of unknown size are not found by it."""

    def matches(self, entry: GalleryModel) -> bool:
        tags = {tag.lower() for tag in entry.tags}
        if self.gallery and entry.gallery.lower() != self.gallery.lower():
            return False
        if self.tag and self.tag.lower() not in tags:
            return False
        if self.license and self.license.lower() not in entry.license.lower():
            return False
        if self.usecase and self.usecase.lower() not in uses_of_entry(entry):
            return False
        if self.backend and self.backend.lower() != stated_facts(entry).backend.lower():
            return False
        if self.most_bytes is not None and not _is_within(entry, self.most_bytes):
            return False
        return self._mentions(entry)

    def _mentions(self, entry: GalleryModel) -> bool:
        words = self.term.lower().split()
        text = "\n".join((entry.id, *entry.tags, entry.description)).lower() if words else ""
        return all(word in text for word in words)


def _is_within(entry: GalleryModel, most_bytes: int) -> bool:
    size = size_of_entry(entry)
    return size is not None and size.bytes <= most_bytes


def uses_of_entry(entry: GalleryModel) -> frozenset[str]:
    """Return LocalAI's words for what a model is for: those that the entry names, or those that its tags suggest."""
    stated = listed(value_at(entry.overrides, "known_usecases")) or listed(value_at(entry.config, "known_usecases"))
    uses = {str(word).lower().removeprefix("flag_") for word in stated}
    for key, use in (("embeddings", "embeddings"), ("reranking", "rerank")):
        if value_at(entry.overrides, key) is True:
            uses.add(use)
    if uses:
        return frozenset(uses)
    tags = {tag.lower() for tag in entry.tags}
    return frozenset(use for use, words in _TAGS_OF_USES.items() if tags & words)


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list."""

    items: tuple[GalleryModel, ...]
    total: int
    page: int
    pages: int


class ModelCatalogue:
    """The entries of several galleries of models, in the order of the galleries. Immutable."""

    def __init__(self, galleries: Iterable[ModelContent] = ()) -> None:
        self.galleries = tuple(galleries)
        self.entries = tuple(entry for gallery in self.galleries for entry in gallery.entries)
        self._by_id = {entry.id.lower(): entry for entry in reversed(self.entries)}

    @property
    def problems(self) -> tuple[EntryProblem, ...]:
        """Unusable entries of all galleries."""
        return tuple(problem for gallery in self.galleries for problem in gallery.skipped)

    @cached_property
    def _by_name(self) -> Mapping[str, GalleryModel]:
        """The first entry of each name."""
        return {entry.name.lower(): entry for entry in reversed(self.entries)}

    def entry(self, name: str) -> GalleryModel | None:
        """Return the entry with this `name` or `gallery@name`, ignoring case: that of the first gallery that has it."""
        lower = name.strip().lower()
        return self._by_id.get(lower) or self._by_name.get(lower)

    def required(self, name: str) -> GalleryModel:
        """Return the entry with this `name` or `gallery@name`. NotFound suggests near names."""
        entry = self.entry(name)
        if entry is None:
            near = self.near(name)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise NotFound(f"no gallery has a model {name[:_LONGEST_ASKED]!r}{hint}")
        return entry

    def siblings(self, entry: GalleryModel) -> Mapping[str, GalleryModel]:
        """Return the entries of the same gallery, by name in lower case: its variants are among them."""
        return {other.name.lower(): other for other in self.entries if other.gallery == entry.gallery}

    def near(self, name: str) -> tuple[str, ...]:
        """Return similar names that exist, as suggestions; those that contain the name first."""
        lower = name.strip().lower()[:_LONGEST_ASKED].rpartition("@")[2]
        within = [other_name for other_name in self._by_name if lower and lower in other_name]
        matches = difflib.get_close_matches(lower, self._by_name, n=_MOST_SUGGESTIONS, cutoff=_NEAR)
        ordered = dict.fromkeys([*sorted(within, key=len)[:_MOST_SUGGESTIONS], *matches])
        return tuple(self._by_name[match].name for match in list(ordered)[:_MOST_SUGGESTIONS])

    def search(self, query: ModelQuery) -> list[GalleryModel]:
        """Return what matches: entries whose name is or begins with the term first, then in the galleries' order."""
        matches = [entry for entry in self.entries if query.matches(entry)]
        term = query.term.strip().lower()
        if not term:
            return matches
        return sorted(matches, key=lambda entry: (entry.name.lower() != term, not entry.name.lower().startswith(term)))

    @cached_property
    def tags(self) -> Sequence[str]:
        """All tags, in alphabetical order."""
        return sorted({tag.lower() for entry in self.entries for tag in entry.tags})


def page_of(entries: Sequence[GalleryModel], *, page: int, per_page: int) -> ModelPage:
    """Return a page of a list, counted from 1; empty behind the last one. InvalidInput for numbers that are none."""
    if page < 1:
        raise InvalidInput("page", f"must be at least 1, got {page}")
    if not 1 <= per_page <= _MOST_PER_PAGE:
        raise InvalidInput("per_page", f"must be from 1 to {_MOST_PER_PAGE}, got {per_page}")
    first = (page - 1) * per_page
    pages = -(-len(entries) // per_page)
    return ModelPage(items=tuple(entries[first : first + per_page]), total=len(entries), page=page, pages=pages)
