"""Pages of a gallery: what is searched, sorted and cut."""

import pytest

from corral.frontend.backends.shapes import PageQuery, all_tags, meta_by_build, page_of
from corral.galleries.catalogue import BackendCatalogue
from corral.galleries.gallery import GalleryContent, GalleryEntry, GallerySource


def entry(name: str, **fields: object) -> GalleryEntry:
    return GalleryEntry(name=name, gallery="g", **{"uri": f"oci://r/{name}", **fields})  # type: ignore[arg-type]


ENTRIES = (
    entry("cpu-b", license="mit", tags=("LLM",)),
    entry("A", description="says what it hears", tags=("echo",)),
    entry("b", uri="", capabilities={"default": "cpu-b"}),
    entry("c", license="apache"),
    entry("b-too", uri="", capabilities={"default": "cpu-b"}),
)


def catalogue() -> BackendCatalogue:
    return BackendCatalogue([GalleryContent(source=GallerySource(name="g", url="u"), entries=ENTRIES)])


def names(**query: str) -> list[str]:
    return [one.name for one in page_of(catalogue(), PageQuery(**query), {"c"}).entries]


def test_all_are_shown_in_the_order_of_their_gallery() -> None:
    assert names() == ["cpu-b", "A", "b", "c", "b-too"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"term": "HEARS"}, ["A"]),
        ({"term": "cpu"}, ["cpu-b"]),
        ({"tag": "llm"}, ["cpu-b"]),
        ({"tag": "ll"}, []),
        ({"sort": "name"}, ["A", "b", "b-too", "c", "cpu-b"]),
        ({"sort": "name", "order": "desc"}, ["cpu-b", "c", "b-too", "b", "A"]),
        ({"sort": "license"}, ["c", "cpu-b", "A", "b", "b-too"]),
        ({"sort": "status"}, ["c", "A", "b", "b-too", "cpu-b"]),
        ({"sort": "repository"}, ["cpu-b", "A", "b", "c", "b-too"]),
        ({"sort": "colour"}, ["cpu-b", "A", "b", "c", "b-too"]),
    ],
)
def test_what_a_query_finds(query: dict[str, str], found: list[str]) -> None:
    assert names(**query) == found


@pytest.mark.parametrize(
    ("page", "items", "found", "numbers"),
    [
        ("1", "2", ["cpu-b", "A"], (1, 3, 1, 2)),
        ("3", "2", ["b-too"], (3, 3, 2, 3)),
        ("9", "2", [], (9, 3, 8, 3)),
        ("x", "-1", ["cpu-b", "A", "b", "c", "b-too"], (1, 1, 1, 1)),
        ("0", "0", ["cpu-b", "A", "b", "c", "b-too"], (1, 1, 1, 1)),
        ("9" * 5000, "²", ["cpu-b", "A", "b", "c", "b-too"], (1, 1, 1, 1)),
    ],
)
def test_pages_and_what_stands_for_malformed_ones(
    page: str, items: str, found: list[str], numbers: tuple[int, int, int, int]
) -> None:
    cut = page_of(catalogue(), PageQuery(page=page, items=items), ())
    assert [one.name for one in cut.entries] == found
    assert (cut.number, cut.pages, cut.previous, cut.next) == numbers
    assert cut.matching == 5


def test_nothing_found_is_a_page_of_nothing() -> None:
    cut = page_of(catalogue(), PageQuery(term="zzz"), ())
    assert (cut.entries, cut.matching, cut.number, cut.pages, cut.next) == ([], 0, 1, 0, 0)


def test_a_build_belongs_to_the_first_meta_that_names_it() -> None:
    assert meta_by_build(ENTRIES) == {"cpu-b": "b"}
    assert all_tags(ENTRIES) == ["LLM", "echo"]


def test_what_is_offered_to_a_fleet_is_the_union_of_what_its_machines_can_run() -> None:
    gpu = entry("cuda12-b")
    both = BackendCatalogue([GalleryContent(source=GallerySource(name="g", url="u"), entries=(*ENTRIES, gpu))])
    assert "cuda12-b" not in [one.name for one in both.offered({"default"})]
    assert "cuda12-b" in [one.name for one in both.offered({"default", "nvidia-cuda-12"})]
