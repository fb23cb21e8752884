"""The table of keys: complete sentences, each key once; misspellings and wrong types are told with what was meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.galleries.model_key_checks import (
    option_name,
    unknown_keys,
    unknown_words,
    with_plain_switches,
    wrong_values,
)
from corral.galleries.model_keys import MISPLACED, MODEL_KEYS


def test_every_key_is_there_once_and_has_a_sentence() -> None:
    keys = [key.key for key in MODEL_KEYS]
    assert len(set(keys)) == len(keys)
    assert all(key.meaning[0].isupper() or key.meaning[0] == "`" for key in MODEL_KEYS)
    assert all(key.meaning.endswith(".") for key in MODEL_KEYS)
    assert set(MISPLACED.values()) <= set(keys)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"function": {"grammar": {"disabel": True}}}, "function.grammar.disabel' which has no effect"),
        ({"artifacts": [{"source": {"repos": "x"}}]}, "artifacts[0].source.repos"),
        ({"download_files": [{"filename": "a"}, {"url": "a"}]}, "download_files[1].url"),
        ({"template": {"image": "x"}}, "did you mean template.multimodal?"),
        ({"parameters": {"voice": "x"}}, "did you mean tts.voice?"),
    ],
)
def test_keys_deep_inside_are_known(config: dict[str, object], sentence: str) -> None:
    (told,) = (key.sentence for key in unknown_keys(config))
    assert sentence.replace("' which", "', which") in told


def test_a_part_that_only_localai_knows_may_have_keys_of_any_name() -> None:
    assert (
        unknown_keys({"function": {"something_else": 1}, "reasoning": {"zzz": 1}, "engine_args": {"a": {"b": 1}}}) == []
    )


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"context_size": "big"}, 'context_size: must be a whole number, got text ("big")'),
        ({"mmap": "perhaps"}, 'mmap: must be true or false, got text ("perhaps")'),
        ({"stopwords": "x"}, 'stopwords: must be a list of texts, got text ("x")'),
        ({"parameters": [1]}, "parameters: must be a mapping, got a list ([1])"),
        ({"template": {"chat": {"a": 1}}}, 'template.chat: must be text, got a mapping ({"a": 1})'),
        ({"artifacts": [{"source": {"repo": [1]}}]}, "artifacts[0].source.repo: must be text, got a list ([1])"),
        (
            {"function": {"grammar": {"disable": 1}}},
            "function.grammar.disable: must be true or false, got a number (1)",
        ),
    ],
)
def test_a_wrong_type_is_told_with_key_and_value(config: dict[str, object], sentence: str) -> None:
    assert [wrong.sentence for wrong in wrong_values(config)] == [sentence]


def test_options_come_in_three_forms() -> None:
    assert [option_name(option) for option in ("a:b", "a=b:c", "a", "a : b=c", "")] == ["a", "a", "a", "a", ""]


def test_misspelled_words_are_told() -> None:
    config = {"known_usecases": ["chat", "FLAG_CHAT", "embedings"], "options": ["use_jinja:true", "use_jinjaa", "mine"]}
    assert list(unknown_words(config)) == [
        (("known_usecases", 2), "unknown use 'embedings', which has no effect; did you mean embeddings?"),
        (("options", 1), "unknown option 'use_jinjaa'; did you mean use_jinja?"),
    ]


def test_switches_may_be_written_as_in_yaml_1_1() -> None:
    config = with_plain_switches({"f16": "yes", "template": {"use_tokenizer_template": "Off"}, "flash_attention": "on"})
    assert config == {"f16": True, "template": {"use_tokenizer_template": False}, "flash_attention": "on"}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
SOME_KEYS = st.sampled_from(sorted({part for key in MODEL_KEYS for part in key.key.replace("[]", "").split(".")}))
CONFIGS = st.dictionaries(
    SOME_KEYS,
    ANYTHING | st.dictionaries(SOME_KEYS, ANYTHING | st.lists(st.dictionaries(SOME_KEYS, ANYTHING)), max_size=3),
)


@given(CONFIGS)
def test_no_configuration_is_too_odd(config: dict[str, object]) -> None:
    assert all(wrong.sentence for wrong in wrong_values(config))
    assert all(key.sentence for key in unknown_keys(config))
    assert all(sentence for _, sentence in unknown_words(config))
