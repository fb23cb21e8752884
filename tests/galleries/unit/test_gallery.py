"""Entries of galleries: what is read, and what is said of those that cannot be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.yaml_values import YamlItem
from corral.galleries.gallery import (
    LONGEST_NAME,
    MOST_ENTRIES,
    GalleryContent,
    GallerySource,
    read_gallery,
)
from tests.kit.galleries import odd_metas

SOURCE = GallerySource(name="g", url="https://example.org/index.yaml")


def gallery(*values: object) -> GalleryContent:
    return read_gallery((YamlItem(line=number, value=value) for number, value in enumerate(values, 1)), SOURCE)


def test_every_known_key_is_read_and_others_are_ignored() -> None:
    found = gallery(
        {
            "name": "cpu-x",
            "uri": "quay.io/x:1",
            "alias": "x",
            "mirrors": ["docker.io/x:1"],
            "capabilities": {"default": "cpu-x"},
            "version": "1.10",
            "sha256": "ab",
            "description": "text",
            "license": "MIT",
            "icon": "i",
            "size": "1GB",
            "urls": ["https://example.org"],
            "tags": ["a", "b"],
            "files": {"anything": [1, 2]},
            "invented": "tomorrow",
        }
    )
    (entry,) = found.entries
    assert found.skipped == ()
    assert (entry.name, entry.uri, entry.alias, entry.version, entry.tags) == (
        "cpu-x",
        "quay.io/x:1",
        "x",
        "1.10",
        ("a", "b"),
    )
    assert entry.id == "g@cpu-x"
    assert not entry.is_meta, "a build may carry the map of its meta"


@pytest.mark.parametrize(
    ("value", "is_meta", "is_development"),
    [
        ({"name": "x", "capabilities": {"default": "cpu-x"}}, True, False),
        ({"name": "x", "uri": "", "capabilities": {"default": "cpu-x"}}, True, False),
        ({"name": "x", "uri": "a/b", "capabilities": {"default": "cpu-x"}}, False, False),
        ({"name": "x-development", "uri": "a/b"}, False, True),
        ({"name": "xdevelopment", "uri": "a/b"}, False, False),
    ],
)
def test_only_a_missing_uri_makes_a_meta(value: object, is_meta: bool, is_development: bool) -> None:
    (entry,) = gallery(value).entries
    assert (entry.is_meta, entry.is_development) == (is_meta, is_development)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("text", "must be a mapping, got text"),
        (None, "must be a mapping"),
        (["a"], "must be a mapping, got a list"),
        ({}, "name: is missing"),
        ({"name": "", "uri": "a"}, "name: is missing"),
        ({"name": ["x"], "uri": "a"}, "name: must be text, got a list"),
        ({"name": "x"}, "uri: is missing"),
        ({"name": "x", "capabilities": {}}, "uri: is missing"),
        ({"name": "x", "uri": {"a": "b"}}, "uri: must be text, got a mapping"),
        ({"name": "x", "uri": "a", "tags": "text"}, "tags: must be a list of texts"),
        ({"name": "x", "uri": "a", "tags": [["a"]]}, "tags: must be a list of texts"),
        ({"name": "x", "uri": "a", "mirrors": {"a": "b"}}, "mirrors: must be a list of texts"),
        ({"name": "x", "capabilities": ["a"]}, "capabilities: must be a mapping, got a list"),
        ({"name": "x", "capabilities": {"default": ["a"]}}, "capabilities: must name a build for default, got a list"),
        ({"name": "a/b", "uri": "a"}, "name: cannot be the name of a directory"),
        ({"name": "..", "uri": "a"}, "name: cannot be the name of a directory"),
        ({"name": ".corral", "uri": "a"}, "name: cannot be the name of a directory"),
        ({"name": "a@b", "uri": "a"}, "name: holds an @"),
        ({"name": "a\x1b[2J", "uri": "a"}, "name: holds characters that cannot be printed"),
        ({"name": "x.install-tmp", "uri": "a"}, "name: ends like the directories of unfinished installs"),
        ({"name": "x" * (LONGEST_NAME + 1), "uri": "a"}, "name: is longer than"),
        ({"name": "\ud800", "uri": "a"}, "name: contains half of a character"),
    ],
)
def test_a_bad_entry_is_passed_over_and_hurts_no_other(value: object, problem: str) -> None:
    found = gallery({"name": "before", "uri": "a"}, value, {"name": "after", "uri": "a"})
    assert [entry.name for entry in found.entries] == ["before", "after"]
    (told,) = found.skipped
    assert told.problem.startswith(problem)
    assert told.line == 2


def test_what_could_not_even_be_read_is_told() -> None:
    found = read_gallery([YamlItem(line=7, problem="has the key 'name' twice")], SOURCE)
    assert found.skipped[0].sentence == "the entry in line 7: has the key 'name' twice"


def test_of_one_name_the_first_counts_in_whatever_letters() -> None:
    found = gallery({"name": "X", "uri": "first"}, {"name": "x", "uri": "second"})
    assert [entry.uri for entry in found.entries] == ["first"]
    assert found.skipped[0].sentence.startswith("'x' in line 2: a backend of this name is there already")


def test_a_gallery_without_end_is_cut_off() -> None:
    found = read_gallery((YamlItem(line=n, value={"name": f"n{n}", "uri": "a"}) for n in range(10**9)), SOURCE)
    assert len(found.entries) == MOST_ENTRIES
    assert len(found.skipped) == 1


def test_metas_that_lead_nowhere_are_found() -> None:
    found = gallery(
        {"name": "self", "capabilities": {"default": "SELF"}},
        {"name": "a", "capabilities": {"default": "b"}},
        {"name": "b", "capabilities": {"default": "a", "amd": "gone"}},
        {"name": "good", "capabilities": {"default": "build"}},
        {"name": "build", "uri": "x", "capabilities": {"default": "nowhere"}},
    )
    assert [(meta.name, problem) for meta, problem in odd_metas(found.entries)] == [
        ("self", "names itself for default"),
        ("a", "names 'b' for default, which is no build but another meta"),
        ("b", "names 'a' for default, which is no build but another meta"),
        ("b", "names 'gone' for amd, which is not there"),
    ]


def test_places_are_tried_each_once_and_in_order() -> None:
    source = GallerySource(name="g", url=" a ", mirrors=("b", "", "a", "c", "b"))
    assert source.urls == ("a", "b", "c")


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
KEYS = st.sampled_from(["name", "uri", "alias", "capabilities", "mirrors", "tags", "version", "x"])


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=6) | VALUES, max_size=8))
def test_no_document_is_too_odd(values: list[Any]) -> None:
    found = gallery(*values)
    assert len(found.entries) + len(found.skipped) == len(values)
    assert all(entry.name and (entry.uri or entry.capabilities) for entry in found.entries)
    names = [entry.name.lower() for entry in found.entries]
    assert len(names) == len(set(names))
    assert all(problem.sentence for problem in found.skipped)
