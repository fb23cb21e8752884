"""Keys that a model's configuration may have, and what was probably meant by others."""

import pytest

from corral.base.config_fields import Config
from corral.frontend.models.decide.keys import DEFAULTS, FIELDS, RULES, TEMPLATES
from corral.galleries.model_key_checks import KNOWN, unknown_keys
from corral.galleries.model_keys import MODEL_KEYS, Use

SMALL: Config = {"name": "small", "backend": "echo", "parameters": {"model": "x"}}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"contxt_size": 1}, "unknown key 'contxt_size', which has no effect; did you mean context_size?"),
        ({"Threads": 1}, "unknown key 'Threads', which has no effect; did you mean threads?"),
        (
            {"parameters": {"model": "x", "temprature": 1}},
            "unknown key 'parameters.temprature', which has no effect; did you mean parameters.temperature?",
        ),
        (
            {"parameters": {"model": "x", "context_size": 1}},
            "unknown key 'parameters.context_size', which has no effect; did you mean context_size?",
        ),
        ({"temperature": 1}, "unknown key 'temperature', which has no effect; did you mean parameters.temperature?"),
        ({"paramters": {}}, "unknown key 'paramters', which has no effect; did you mean parameters?"),
        (
            {"template": {"chatt": "x"}},
            "unknown key 'template.chatt', which has no effect; did you mean template.chat?",
        ),
        ({"zzzzzzzz": 1}, "unknown key 'zzzzzzzz', which has no effect"),
    ],
)
def test_a_key_that_nobody_knows_is_told_with_the_near_one(more: dict[str, object], sentence: str) -> None:
    assert [one.sentence for one in unknown_keys({**SMALL, **more})] == [sentence]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"engine_args": {"anything": {"at": "all"}}, "options": ["a:b"]},
        {"function": {"grammar": {"parallel_calls": True}}, "reasoning": {"disable": True}},
        {"roles": {"user": "USER"}, "cutstrings": ["x"], "trimsuffix": ["y"], "stopwords": ["z"]},
        {"template": {"use_tokenizer_template": True, "function": "f", "multimodal": "m"}},
        {"limits": {"max_concurrent": 1, "retry_after_seconds": 2}, "pinned": True},
        {"download_files": [{"filename": "f", "uri": "u", "sha256": "s"}], "artifacts": [{"name": "n"}]},
        {"diffusers": {"pipeline_type": "p", "cuda": True}, "step": 3, "tts": {"voice": "v", "voice_cloning": True}},
        {"x-notes": "mine"},
        {"parameters": {"model": "x", "seed": 1, "batch": 2, "language": "en", "tfz": 1.0}},
        {"parameters": "of the wrong kind"},
    ],
)
def test_keys_that_only_localai_reads_are_known_too(more: dict[str, object]) -> None:
    assert unknown_keys({**SMALL, **more}) == []


def test_whatever_is_read_is_known() -> None:
    assert {field.key for field in (*FIELDS, *RULES, *TEMPLATES, *DEFAULTS)} <= KNOWN


def test_a_file_of_nonsense_is_told_in_few_lines() -> None:
    assert len(unknown_keys({f"key-{number}": 1 for number in range(1000)})) == 20


def test_the_table_tells_truly_what_becomes_of_each_key() -> None:
    loaded = {field.key for field in FIELDS}
    asked = {field.key for field in (*RULES, *TEMPLATES, *DEFAULTS)}
    elsewhere = {"parameters.model", "threads", "function.grammar.triggers[].word"}
    prompts = {"roles"} | {key.key for key in MODEL_KEYS if key.key.startswith(("template.", "function."))}
    for key in MODEL_KEYS:
        assert key.use is not Use.LOAD or key.key in loaded | elsewhere, key.key
        assert key.use is not Use.REQUEST or key.key in asked | prompts, key.key
        assert key.use is not Use.NOTHING or key.key not in loaded | asked, key.key
