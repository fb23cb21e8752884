"""Mirrors and tags, in LocalAI's order."""

import pytest

from corral.galleries.build_uris import TagWords, candidates, is_pulled, is_same_source, understood_by_all
from corral.galleries.gallery import GalleryEntry

R = "quay.io/x/backends"


def build(uri: str, *mirrors: str) -> GalleryEntry:
    return GalleryEntry(name="b", uri=uri, mirrors=mirrors)


@pytest.mark.parametrize(
    ("uri", "mirrors", "tried"),
    [
        (
            f"{R}:latest-cpu-x",
            ["d/x:latest-cpu-x"],
            [f"{R}:latest-cpu-x", "d/x:latest-cpu-x", f"{R}:master-cpu-x", f"{R}:master-cpu-x-development"],
        ),
        (f"{R}:master-cpu-x", [], [f"{R}:master-cpu-x"]),
        (f"{R}:v1", ["m", "m", ""], [f"{R}:v1", "m"]),
        (
            f"{R}:latest-latest-x",
            [],
            [f"{R}:latest-latest-x", f"{R}:master-latest-x", f"{R}:master-latest-x-development"],
        ),
        (f"{R}:latest-x-development", [], [f"{R}:latest-x-development", f"{R}:master-x-development"]),
    ],
)
def test_a_build_is_looked_for_under_its_uri_its_mirrors_and_its_branch(
    uri: str, mirrors: list[str], tried: list[str]
) -> None:
    assert list(candidates(build(uri, *mirrors))) == tried


def test_the_words_of_tags_can_be_others() -> None:
    words = TagWords(release="stable", branch="edge", development="next")
    assert candidates(build("r:stable-x"), words) == ("r:stable-x", "r:edge-x", "r:edge-x-next")


def test_a_relative_path_is_tried_where_it_leads() -> None:
    entry = GalleryEntry(name="b", uri="./here", local_path="/srv/here")
    assert candidates(entry) == ("/srv/here",)


@pytest.mark.parametrize(
    ("uri", "pulled"),
    [
        ("quay.io/a/b:c", True),
        ("localhost:5000/b", True),
        ("a/b:latest", True),
        ("oci://quay.io/a/b", True),
        ("ocifile:///srv/x.tar", False),
        ("https://example.org/x.tar.gz", False),
        ("file:///srv/x", False),
        ("/srv/x", False),
        ("./x", False),
        ("../x", False),
    ],
)
def test_what_comes_from_a_registry(uri: str, pulled: bool) -> None:
    assert is_pulled(uri) is pulled


@pytest.mark.parametrize(
    ("uri", "sent"),
    [
        ("registry.lan:5000/x:v1", "oci://registry.lan:5000/x:v1"),
        ("a/b:latest", "oci://a/b:latest"),
        ("quay.io/a/b:c", "quay.io/a/b:c"),
        ("oci://a/b", "oci://a/b"),
        ("ocifile:///srv/x.tar", "ocifile:///srv/x.tar"),
        ("https://example.org/x.tar.gz", "https://example.org/x.tar.gz"),
        ("/srv/x", "/srv/x"),
    ],
)
def test_a_reference_is_sent_in_a_form_that_localai_takes(uri: str, sent: str) -> None:
    assert understood_by_all(uri) == sent
    assert is_same_source(uri, sent)


def test_other_images_are_other_sources() -> None:
    assert not is_same_source("oci://a/b:v1", "a/b:v2")
