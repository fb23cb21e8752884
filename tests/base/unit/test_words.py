"""Lists within sentences."""

import pytest

from corral.base.words import listed, sentences


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a, b"),
        (["a", "b", "c"], "a, b and 1 more"),
    ],
)
def test_a_few_are_named_and_the_rest_counted(names: list[str], told: str) -> None:
    assert listed(names, most=2) == told


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (["no gallery has it"], "no gallery has it"),
        (["no gallery has it", "the gallery g cannot be read"], "no gallery has it. The gallery g cannot be read"),
        (["did you mean b?", "the gallery g cannot be read"], "did you mean b? The gallery g cannot be read"),
        (["it is gone.", "", "ask again"], "it is gone. Ask again"),
    ],
)
def test_sentences_follow_each_other_as_in_prose(parts: list[str], text: str) -> None:
    assert sentences(parts) == text
