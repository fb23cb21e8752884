"""Options and requests as llama.cpp wants them."""

import importlib
from pathlib import Path
from typing import Any

import pytest


def parameters(tmp_path: Path, *, head: bytes = b"", name: str = "the-model", **options: Any) -> dict[str, Any]:
    sdk = importlib.import_module("corral_backend_sdk")
    file = tmp_path / "m.gguf"
    file.write_bytes(head)
    launch = sdk.Launch(address="127.0.0.1:1", http_address="0.0.0.0:2", http_key="k", model_name=name)
    made = importlib.import_module("llama_parameters").parameters_for(
        sdk.ModelOptions(Model="m", ModelFile=str(file), **options), launch
    )
    return dict(made)


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
    body = requests.body_for(plain)
    assert (body["prompt"], body["max_tokens"], body["stop"], body["top_k"]) == ("x", -1, ["END"], 40)
    assert "seed" not in body
    assert "top_p" not in body


def test_bad_json_in_a_request_is_the_clients_fault() -> None:
    sdk, requests = importlib.import_module("corral_backend_sdk"), importlib.import_module("llama_requests")
    with pytest.raises(sdk.RequestRefused, match="LogitBias is not JSON"):
        requests.body_for(sdk.PredictOptions(Prompt="x", LogitBias="{"))
