"""Model configurations: what is accepted, which revision it is, and what a backend is told."""

from pathlib import PurePath

import pytest

from corral.base.errors import InvalidInput
from corral.frontend.models.decide.keys import request_rules
from corral.frontend.models.decide.model import (
    ModelProblem,
    collect,
    load_options,
    read_model,
    revision_of,
    with_answer_limit,
)
from corral.frontend.models.decide.reading import read_one
from corral.rpc.messages import ModelOptions

SMALL = {"name": "small", "backend": "llama-cpp", "parameters": {"model": "small.gguf"}}


def test_a_model_needs_a_name_a_backend_and_weights() -> None:
    spec = read_model(SMALL, source="small.yaml")

    assert (spec.name, spec.backend, spec.model, spec.source) == ("small", "llama-cpp", "small.gguf", "small.yaml")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "a#0"}, "name"),
        ({"name": " a"}, "name"),
        ({"name": ["a"]}, "name"),
        ({"backend": None}, "backend"),
        ({"backend": "../x"}, "backend"),
        ({"parameters": {}}, "parameters.model"),
        ({"parameters": "text"}, "parameters"),
        ({"parameters": {"model": "/etc/passwd"}}, "parameters.model"),
        ({"parameters": {"model": "a/../../b"}}, "parameters.model"),
        ({"context_size": "many"}, "context_size"),
        ({"context_size": 2**40}, "context_size"),
        ({"threads": True}, "threads"),
        ({"embeddings": 1}, "embeddings"),
        ({"options": "parallel:2"}, "options"),
        ({"options": [1]}, "options"),
        ({"lora_scales": ["a"]}, "lora_scales"),
        ({"cfg_scale": "x"}, "cfg_scale"),
        ({"limits": {"max_concurrent": -1}}, "limits.max_concurrent"),
        ({"alias": "other"}, "alias"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_key(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_model({**SMALL, **change}, source="small.yaml")

    assert refused.value.field == field


@pytest.mark.parametrize("config", [None, "text", 3, ["name"]])
def test_what_is_no_mapping_is_no_model(config: object) -> None:
    with pytest.raises(InvalidInput):
        read_model(config, source="x.yaml")


def test_the_revision_follows_the_configuration_and_not_the_order_of_its_keys() -> None:
    turned = dict(reversed(SMALL.items()))

    assert revision_of(turned) == revision_of(SMALL)
    assert revision_of({**SMALL, "threads": 2}) != revision_of(SMALL)


def test_the_options_are_ones_that_the_contract_knows() -> None:
    config = {
        **SMALL,
        "parameters": {"model": "small.gguf", "seed": 7, "batch": 64},
        "context_size": 2048,
        "embeddings": True,
        "f16": True,
        "flash_attention": True,
        "gpu_layers": 3,
        "mmproj": "eyes.gguf",
        "options": ["parallel:2"],
        "engine_args": {"b": 1, "a": [2]},
        "known_usecases": ["FLAG_SCORE"],
        "tensor_split": "1,2",
    }
    options = ModelOptions(
        **load_options(read_model(config, source="s"), models=PurePath("/srv/models"), threads=2)  # type: ignore[arg-type]
    )

    assert options.Model == "small.gguf"
    assert options.ModelFile == "/srv/models/small.gguf"
    assert options.ModelPath == "/srv/models"
    assert options.MMProj == "/srv/models/eyes.gguf"
    assert (options.ContextSize, options.Seed, options.NBatch, options.Threads) == (2048, 7, 64, 2)
    assert (options.Embeddings, options.F16Memory, options.MMap, options.EnableScore) == (True, True, True, True)
    assert (options.FlashAttention, options.NGPULayers, list(options.Options)) == ("on", 3, ["parallel:2"])
    assert options.EngineArgs == '{"a": [2], "b": 1}'


@pytest.mark.parametrize(
    ("stated", "most", "limit"), [(None, 4096, 4096), (None, 0, None), (100, 4096, 100), (-1, 4096, -1), (0, 4096, 0)]
)
def test_a_model_that_states_no_limit_of_its_answers_gets_one(stated: int | None, most: int, limit: int | None) -> None:
    parameters = {"model": "small.gguf"} | ({} if stated is None else {"max_tokens": stated})
    spec = read_model({**SMALL, "parameters": parameters}, source="s")

    limited = with_answer_limit(spec, most)

    options = load_options(limited, models=PurePath("/m"), threads=4, is_asked_directly=True).get("Options", [])
    assert options == ([] if limit is None else [f"default_max_tokens:{limit}"])
    assert request_rules(limited.config).get("defaults", {}).get("max_tokens") == limit  # type: ignore[attr-defined]
    assert (limited.revision, limited.model) == (spec.revision, spec.model)


def test_a_replica_that_is_asked_directly_knows_what_requests_leave_open() -> None:
    parameters = {"model": "small.gguf", "temperature": 0, "top_k": 7}
    spec = read_model({**SMALL, "parameters": parameters, "options": ["parallel:2"]}, source="s")

    direct = load_options(spec, models=PurePath("/m"), threads=4, is_asked_directly=True)

    assert direct["Options"] == ["parallel:2", "default_temperature:0.0", "default_top_k:7"]
    assert load_options(spec, models=PurePath("/m"), threads=4)["Options"] == ["parallel:2"]
    with pytest.raises(InvalidInput, match=r"parameters\.temperature"):
        read_model({**SMALL, "parameters": {"model": "m", "temperature": "hot"}}, source="s")


def test_what_is_not_said_is_what_localai_would_send() -> None:
    options = load_options(read_model(SMALL, source="s"), models=PurePath("/m"), threads=4)

    assert options["ContextSize"] == 4096
    assert options["NGPULayers"] == 99_999_999
    assert options["FlashAttention"] == "auto"
    assert options["MMap"] is True
    assert options["Threads"] == 4
    assert "Seed" not in options


@pytest.mark.parametrize(("own", "threads"), [(9, 9), (0, 4), (-1, 4)])
def test_own_threads_win_unless_there_are_none(own: int, threads: int) -> None:
    spec = read_model({**SMALL, "threads": own}, source="s")

    assert load_options(spec, models=PurePath("/m"), threads=4)["Threads"] == threads


@pytest.mark.parametrize(
    ("more", "batch"),
    [
        ({}, 512),
        ({"embeddings": True}, 4096),
        ({"reranking": True, "context_size": 2048}, 2048),
        ({"known_usecases": ["score"], "context_size": 128}, 512),
        ({"embeddings": True, "context_size": -1}, 4096),
        ({"embeddings": True, "parameters": {"model": "m", "batch": 64}}, 64),
    ],
)
def test_what_is_embedded_ranked_or_scored_fits_into_one_batch(more: dict[str, object], batch: int) -> None:
    spec = read_model({**SMALL, **more}, source="s")

    assert load_options(spec, models=PurePath("/m"), threads=4)["NBatch"] == batch


def test_backends_for_intel_do_not_map_weights() -> None:
    spec = read_model({**SMALL, "backend": "intel-sycl-f16-llama-cpp", "mmap": True}, source="s")

    assert load_options(spec, models=PurePath("/m"), threads=4)["MMap"] is False


@pytest.mark.parametrize(
    ("name", "backend", "type"),
    [
        ("llama", "llama-cpp", None),
        ("LLaMA", "llama-cpp", None),
        ("sentencetransformers", "transformers", "SentenceTransformer"),
        ("mamba", "transformers", "Mamba"),
        ("Own-Backend", "Own-Backend", None),
    ],
)
def test_names_of_backends_mean_what_they_mean_to_localai(name: str, backend: str, type: str | None) -> None:
    spec = read_model({**SMALL, "backend": name}, source="s")

    assert spec.backend == backend
    assert load_options(spec, models=PurePath("/m"), threads=4).get("Type") == type


def test_grammar_triggers_are_sent_as_words() -> None:
    triggers = [{"word": "<tool_call>"}, {"word": ""}]
    spec = read_model({**SMALL, "function": {"grammar": {"triggers": triggers}}}, source="s")

    options = ModelOptions(**load_options(spec, models=PurePath("/m"), threads=4))  # type: ignore[arg-type]
    assert [one.word for one in options.GrammarTriggers] == ["<tool_call>"]


def test_a_backend_that_brings_its_weights_needs_none() -> None:
    spec = read_model({"name": "voice", "backend": "kokoro"}, source="s")

    assert spec.model == ""
    assert "ModelFile" not in load_options(spec, models=PurePath("/m"), threads=4)


def test_weights_that_are_an_address_have_no_file() -> None:
    spec = read_model({**SMALL, "parameters": {"model": "huggingface://org/name"}}, source="s")

    assert "ModelFile" not in load_options(spec, models=PurePath("/m"), threads=4)


KEY = "0a" * 32


def test_a_model_is_loaded_from_what_localai_downloaded_for_it() -> None:
    """The configuration says where that is, under `resolved`."""
    artifacts = [
        {"name": "model", "target": "model", "resolved": {"cache_key": KEY}},
        {"name": "speaker", "target": "companion", "resolved": {"cache_key": "0b" * 32}},
        {"name": "own", "target": "companion", "resolved": {"cache_key": "0c" * 32}},
    ]
    config = {**SMALL, "parameters": {"model": "org/name"}, "artifacts": artifacts, "options": ["own:elsewhere"]}
    spec = read_model(config, source="s")

    options = load_options(spec, models=PurePath("/m"), threads=4)

    assert (options["Model"], options["ModelPath"]) == ("org/name", "/m")
    assert options["ModelFile"] == f"/m/.artifacts/huggingface/{KEY}/snapshot"
    assert options["Options"] == ["own:elsewhere", f"speaker:.artifacts/huggingface/{'0b' * 32}/snapshot"]


@pytest.mark.parametrize(
    ("resolved", "file"),
    [
        ({"cache_key": KEY, "primary_file": "a/x.nemo"}, f"/m/.artifacts/huggingface/{KEY}/snapshot/a/x.nemo"),
        ({"cache_key": KEY, "primary_file": "../../x"}, "/m/org/name"),
        ({"cache_key": "../" * 10}, "/m/org/name"),
        ({"cache_key": 7}, "/m/org/name"),
        (None, "/m/org/name"),
    ],
)
def test_only_a_sound_place_of_a_download_counts(resolved: object, file: str) -> None:
    artifacts = [{"name": "model", "resolved": resolved}]
    spec = read_model({**SMALL, "parameters": {"model": "org/name"}, "artifacts": artifacts}, source="s")

    assert load_options(spec, models=PurePath("/m"), threads=4)["ModelFile"] == file


def test_an_alias_answers_with_the_model_it_names() -> None:
    alias = read_model({"name": "gpt", "alias": "small"}, source="gpt.yaml")
    catalogue = collect([read_model(SMALL, source="small.yaml"), alias])

    spec = catalogue.serving("gpt")
    assert spec is not None
    assert spec.name == "small"
    assert catalogue.serving("nobody") is None
    assert catalogue.problems == ()


def test_aliases_that_lead_nowhere_are_shown_and_left_out() -> None:
    catalogue = collect(
        [
            read_model(SMALL, source="small.yaml"),
            read_model({"name": "lost", "alias": "nobody"}, source="lost.yaml"),
            read_model({"name": "one", "alias": "small"}, source="one.yaml"),
            read_model({"name": "two", "alias": "one"}, source=""),
        ],
        [ModelProblem(source="broken.yaml", problem="is no YAML")],
    )

    assert sorted(catalogue.models) == ["one", "small"]
    assert catalogue.models["small"].source == "small.yaml"
    assert [problem.source for problem in catalogue.problems] == ["broken.yaml", "lost.yaml", "two"]


def test_a_system_prompt_that_comes_to_nothing_is_told() -> None:
    text = "name: m\nbackend: echo\nparameters: {model: x}\nsystem_prompt: S\ntemplate: {chat: '{{.Input}}'}\n"
    expected = "line 4: system_prompt has no effect: no template shows it, as {{.SystemPrompt}} would"
    assert read_one(text).spec.warnings == (expected,)
