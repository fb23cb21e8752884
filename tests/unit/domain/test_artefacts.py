"""Mirrors and tags, in LocalAI's order."""

import pytest

from corral.domain.artefacts import TagWords, candidates
from corral.domain.gallery import GalleryEntry

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
