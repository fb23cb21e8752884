"""Which backends a page of LocalAI's shows: searched, sorted and cut into pages.

What cannot be understood is taken for its default, as LocalAI does it: the page is asked for by a browser.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.gallery import GalleryEntry

USUAL_ITEMS: Final = 9
_DESCENDING: Final = "desc"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    term: str = ""
    tag: str = ""
    page: str = ""
    items: str = ""
    sort: str = ""
    order: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CataloguePage:
    entries: Sequence[GalleryEntry]
    matching: int
    """On all pages."""
    number: int
    pages: int

    @property
    def previous(self) -> int:
        return max(self.number - 1, 1)

    @property
    def next(self) -> int:
        return min(self.number + 1, self.pages)


def page_of(catalogue: BackendCatalogue, query: PageQuery, installed: Collection[str]) -> CataloguePage:
    """`installed` are names that some node has; they come first when the status is what counts."""
    found = catalogue.search(query.term)
    if query.tag:
        found = [entry for entry in found if query.tag.lower() in map(str.lower, entry.tags)]
    unique = list({entry.id: entry for entry in reversed(found)}.values())[::-1]
    ordered = _sorted(unique, query, installed)
    number, size = _positive(query.page, 1), _positive(query.items, USUAL_ITEMS)
    start = (number - 1) * size
    return CataloguePage(
        entries=ordered[start : start + size],
        matching=len(ordered),
        number=number,
        pages=-(-len(ordered) // size),
    )


def _sorted(entries: list[GalleryEntry], query: PageQuery, installed: Collection[str]) -> list[GalleryEntry]:
    keys: Mapping[str, Callable[[GalleryEntry], tuple[object, ...]]] = {
        "name": lambda entry: (entry.name.lower(),),
        "repository": lambda entry: (entry.gallery.lower(),),
        "license": lambda entry: (not entry.license, entry.license.lower()),
        "status": lambda entry: (entry.name not in installed, entry.name.lower()),
    }
    key = keys.get(query.sort)
    return entries if key is None else sorted(entries, key=key, reverse=query.order == _DESCENDING)


def _positive(text: str, otherwise: int) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return max(int(text), 0) or otherwise if is_number else otherwise


def all_tags(entries: Iterable[GalleryEntry]) -> list[str]:
    return sorted({tag for entry in entries for tag in entry.tags})


def meta_by_build(entries: Iterable[GalleryEntry]) -> dict[str, str]:
    """For each build that some meta backend stands for, the first of these."""
    found: dict[str, str] = {}
    for meta in entries:
        for build in meta.capabilities.values() if meta.is_meta else ():
            found.setdefault(build, meta.name)
    return found
