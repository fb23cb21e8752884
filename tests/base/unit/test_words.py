"""Lists within sentences."""

import pytest

from corral.base.words import abridged, listed, near_names, sentences


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0123456789", "0123456789"),
        ("0123456789a", "01 […] 9a"),
        ("Traceback:" + "x" * 1000 + "no memory", "Tr […] ry"),
    ],
)
def test_of_a_long_text_the_beginning_and_the_end_are_left(text: str, told: str) -> None:
    assert abridged(text, 10) == told


MODELS = ("smollm2", "Qwen2.5-1.5B-Instruct", "qwen2.5-7b", "llama-3.2-1b", "ab-long-name")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("smolm2", ["smollm2"]),
        ("SmolLM2", ["smollm2"]),
        ("qwen2.5", ["Qwen2.5-1.5B-Instruct", "qwen2.5-7b"]),
        ("Llama-3.2", ["llama-3.2-1b"]),
        ("ab", []),
        ("gpt-4o", []),
        ("", []),
    ],
)
def test_names_that_may_be_meant_are_similar_or_longer_whatever_their_case(typed: str, meant: list[str]) -> None:
    assert near_names(typed, MODELS) == meant
