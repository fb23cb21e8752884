"""Options and requests as llama.cpp wants them."""

import importlib
from pathlib import Path
from typing import Any

import pytest


def parameters(
    tmp_path: Path, *, head: bytes = b"", name: str = "the-model", slots: str = "", **options: Any
) -> dict[str, Any]:
    sdk = importlib.import_module("corral_backend_sdk")
    file = tmp_path / "m.gguf"
    file.write_bytes(head)
    launch = sdk.Launch(address="127.0.0.1:1", http_address="0.0.0.0:2", http_key="k", model_name=name)
    made = importlib.import_module("llama_parameters").parameters_for(
        sdk.ModelOptions(Model="m", ModelFile=str(file), **options), launch, {"LLAMACPP_PARALLEL": slots}
    )
    return dict(made)


def body_for(**request: Any) -> dict[str, Any]:
    sdk, requests = importlib.import_module("corral_backend_sdk"), importlib.import_module("llama_requests")
    return dict(requests.body_for(sdk.PredictOptions(**request), "<M>"))


def test_the_server_listens_where_it_is_told_and_is_never_open(tmp_path: Path) -> None:
    made = parameters(tmp_path)
    assert (made["hostnames"], made["port"], made["api_keys"]) == (["0.0.0.0"], 2, ["k"])
    assert made["model_alias"] == "the-model"
    assert parameters(tmp_path, name="")["model_alias"] == "m"


def test_slots_share_the_context(tmp_path: Path) -> None:
    made = parameters(tmp_path, ContextSize=2048, Threads=2, Options=["parallel:4", "cache_reuse:256"])
    assert (made["n_ctx"], made["n_parallel"], made["kv_unified"], made["n_cache_reuse"]) == (2048, 4, True, 256)
    assert made["cpuparams.n_threads"] == made["cpuparams_batch.n_threads"] == 2


def test_a_model_that_says_how_to_pool_is_left_alone(tmp_path: Path) -> None:
    assert "pooling_type" not in parameters(tmp_path, head=b"bert.pooling_type", Embeddings=True)
    assert parameters(tmp_path, Embeddings=True)["pooling_type"].endswith("_MEAN")
    assert parameters(tmp_path, Embeddings=True, Options=["pooling:last"])["pooling_type"].endswith("_LAST")
    assert parameters(tmp_path, Reranking=True)["pooling_type"].endswith("_RANK")
    assert "pooling_type" not in parameters(tmp_path)


def test_requests_that_say_nothing_get_what_the_model_says(tmp_path: Path) -> None:
    made = parameters(tmp_path, Options=["default_temperature:0.2", "default_top_k:7", "default_max_tokens:64"])
    assert (made["sampling.temp"], made["sampling.top_k"], made["n_predict"]) == (0.2, 7, 64)
    assert isinstance(made["sampling.top_k"], int)
    assert parameters(tmp_path, Options=["default_max_tokens:0"])["n_predict"] == -1, "as many as it takes"
    assert not [name for name in parameters(tmp_path) if name.startswith("sampling.")]


def test_what_cannot_be_read_is_a_failed_load(tmp_path: Path) -> None:
    failed = importlib.import_module("corral_backend_sdk").LoadFailed
    with pytest.raises(failed, match="parallel is not a number"):
        parameters(tmp_path, Options=["parallel:many"])
    with pytest.raises(failed, match="default_temperature is not a number: hot"):
        parameters(tmp_path, Options=["default_temperature:hot"])
    with pytest.raises(failed, match="not a list of numbers"):
        parameters(tmp_path, TensorSplit="a,b")


def test_a_request_without_messages_is_a_completion() -> None:
    sdk, requests = importlib.import_module("corral_backend_sdk"), importlib.import_module("llama_requests")
    plain = sdk.PredictOptions(Prompt="x", UseTokenizerTemplate=True, TopK=40, Tokens=0, Seed=-1, StopPrompts=["END"])
    assert not requests.is_chat(plain)
    body = requests.body_for(plain, "<M>")
    assert (body["prompt"], body["max_tokens"], body["stop"], body["top_k"]) == ("x", -1, ["END"], 40)
    assert "seed" not in body
    assert "top_p" not in body


def test_bad_json_in_a_request_is_the_clients_fault() -> None:
    with pytest.raises(importlib.import_module("corral_backend_sdk").RequestRefused, match="LogitBias is not JSON"):
        body_for(Prompt="x", LogitBias="{")


def test_slots_come_from_the_model_else_from_the_environment(tmp_path: Path) -> None:
    assert parameters(tmp_path)["n_parallel"] == 1
    assert parameters(tmp_path, slots="3")["n_parallel"] == 3
    assert parameters(tmp_path, slots="3", Options=["parallel:2"])["n_parallel"] == 2
    assert parameters(tmp_path, slots="3", Options=["n_parallel:2"])["n_parallel"] == 2


def test_without_a_context_the_model_decides(tmp_path: Path) -> None:
    assert parameters(tmp_path, ContextSize=0)["n_ctx"] == 0
    made = parameters(tmp_path, Embeddings=True)
    assert (made["n_ctx"], made["n_batch"], made["n_ubatch"]) == (0, 2048, 2048)


@pytest.mark.parametrize(
    ("mapped", "locked", "mode"),
    [(True, False, "MMAP"), (True, True, "MMAP_MLOCK"), (False, True, "MLOCK"), (False, False, "NONE")],
)
def test_weights_are_mapped_only_when_that_is_wanted(tmp_path: Path, mapped: bool, locked: bool, mode: str) -> None:
    made = parameters(tmp_path, MMap=mapped, MLock=locked)["load_mode"]
    assert made == f"llama_load_mode.LLAMA_LOAD_MODE_{mode}"


def test_a_stretched_context_is_stretched_as_told(tmp_path: Path) -> None:
    made = parameters(tmp_path, RopeScaling="yarn", YarnExtFactor=0.5, RopeFreqScale=0.25)
    assert made["rope_scaling_type"].endswith(".LLAMA_ROPE_SCALING_TYPE_YARN")
    assert (made["yarn_ext_factor"], made["rope_freq_scale"]) == (0.5, 0.25)
    assert not [name for name in parameters(tmp_path) if name.startswith(("rope", "yarn"))]


PICTURE = "/9j/4AAQ"  # as those of cameras begin: like a path


def test_pictures_are_base64_or_files(tmp_path: Path) -> None:
    sdk, media = importlib.import_module("corral_backend_sdk"), importlib.import_module("llama_media")
    (tmp_path / "a.png").write_bytes(b"hello")
    given = sdk.PredictOptions(
        Images=[PICTURE, str(tmp_path / "a.png"), "data:image/png;base64,aGVsbG8="], Audios=["/" + 5003 * "a"]
    )
    whole = media.with_media_inside(given)
    assert list(whole.Images) == [PICTURE, "aGVsbG8=", "aGVsbG8="]
    assert list(whole.Audios) == list(given.Audios)
    for unusable in (str(tmp_path / "b.png"), str(tmp_path), "!"):
        with pytest.raises(sdk.RequestRefused, match="Images holds neither base64 nor the path of a file"):
            media.with_media_inside(sdk.PredictOptions(Images=[unusable]))
    with pytest.raises(sdk.NotOffered):
        media.with_media_inside(sdk.PredictOptions(Videos=[PICTURE]))


@pytest.mark.parametrize(
    ("prompt", "text"), [("a <__media__> b", "a <M> b"), ("a <M> b", "a <M> b"), ("a b", "<M>a b")]
)
def test_pictures_have_a_place_in_a_prompt_that_is_ready(prompt: str, text: str) -> None:
    assert body_for(Prompt=prompt, Images=[PICTURE])["prompt"] == {"prompt_string": text, "multimodal_data": [PICTURE]}
    assert body_for(Prompt="a b")["prompt"] == "a b"


def test_pictures_and_sounds_of_a_chat_belong_to_what_the_user_said_last() -> None:
    messages = [{"role": "user", "content": "look"}, {"role": "assistant", "content": "where?"}]
    chat = body_for(UseTokenizerTemplate=True, Messages=messages, Images=[PICTURE], Audios=["aa=="])
    text, picture, sound = chat["messages"][0]["content"]
    assert text == {"type": "text", "text": "look"}
    assert picture["image_url"]["url"] == f"data:image/png;base64,{PICTURE}"
    assert sound["input_audio"]["data"] == "aa=="
    assert chat["messages"][1]["content"] == "where?"


def test_likelihoods_are_asked_for_in_chats_and_completions() -> None:
    messages = [{"role": "user", "content": "x"}]
    chat = body_for(UseTokenizerTemplate=True, Messages=messages, Logprobs=1)
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 1)
    assert body_for(Prompt="x", Logprobs=1, TopLogprobs=4)["logprobs"] == 4
    assert "logprobs" not in body_for(Prompt="x")


def test_the_best_documents_come_first_and_no_more_than_wanted() -> None:
    sdk, requests = importlib.import_module("corral_backend_sdk"), importlib.import_module("llama_requests")
    asked = sdk.RerankRequest(query="q", documents=["a", "b", "c"], top_n=2)
    scores = [{"index": index, "relevance_score": score} for index, score in enumerate((-1.0, 2.0, 0.5))]
    result = requests.rerank_result({"results": scores, "usage": {"prompt_tokens": 4, "total_tokens": 4}}, asked)
    assert [(one.index, one.text, one.relevance_score) for one in result.results] == [(1, "b", 2.0), (2, "c", 0.5)]
    assert result.usage.prompt_tokens == 4
    for bad in (sdk.RerankRequest(documents=["a"]), sdk.RerankRequest(query="q")):
        with pytest.raises(sdk.RequestRefused):
            requests.rerank_body(bad)
