"""What a model is for."""

import pytest

from corral.frontend.models.decide.uses import Spreading, spreading_of, takes_grammars, takes_no_media, uses_of


@pytest.mark.parametrize(
    ("config", "uses"),
    [
        ({"backend": "llama-cpp"}, {"chat", "completion"}),
        ({"backend": "llama"}, {"chat", "completion"}),
        ({"backend": "llama-cpp", "embeddings": True}, {"embeddings"}),
        ({"backend": "llama-cpp", "reranking": True}, {"rerank"}),
        ({"backend": "llama-cpp", "mmproj": "p.gguf"}, {"chat", "completion", "transcription"}),
        (
            {"backend": "x", "embeddings": True, "template": {"use_tokenizer_template": True}},
            {"chat", "completion", "embeddings"},
        ),
        ({"backend": "x", "known_usecases": ["FLAG_TTS", "transcript"]}, {"speech", "transcription"}),
        ({"backend": "piper", "known_usecases": ["vad"]}, {"vad"}),
        ({"backend": "silero-vad"}, {"vad"}),
        ({"backend": "espeak-tts"}, {"speech"}),
        ({"backend": "pocketsphinx-stt"}, {"transcription"}),
        ({"backend": "minilm-embeddings"}, {"embeddings"}),
        ({"backend": "echo"}, {"chat", "completion", "embeddings"}),
        ({"backend": "something"}, set()),
        ({"backend": "something", "known_usecases": ["image"]}, set()),
        ({"alias": "other"}, set()),
    ],
)
def test_configuration_and_backend_tell_what_a_model_is_for(config: dict[str, object], uses: set[str]) -> None:
    assert uses_of(config) == uses


@pytest.mark.parametrize(
    ("config", "spreading"),
    [
        ({"backend": "llama-cpp"}, Spreading(splits=True)),
        ({"backend": "llama"}, Spreading(splits=True)),
        ({"backend": "ik-llama-cpp"}, Spreading(splits=True)),
        ({"backend": "cuda12-llama-cpp-development"}, Spreading(splits=True)),
        ({"backend": "vllm"}, Spreading()),
        ({"backend": "vllm", "tensor_parallel_size": 1}, Spreading(cards=1)),
        ({"backend": "cuda13-vllm", "tensor_parallel_size": 4}, Spreading(splits=True, cards=4)),
        ({"backend": "sglang", "tensor_parallel_size": -3}, Spreading()),
        ({"backend": "whisper", "tensor_parallel_size": 2}, Spreading()),
        ({}, Spreading()),
    ],
)
def test_only_some_engines_spread_a_model_over_several_gpus(config: dict[str, object], spreading: Spreading) -> None:
    assert spreading_of(str(config.get("backend", "")), config) == spreading


def test_backends_that_are_llama_cpp_keep_to_grammars() -> None:
    names = ("llama-cpp", "LLAMA", "cuda12-llama-cpp", "ik_llama", "vulkan-llama-cpp-development")
    assert [name for name in names if not takes_grammars(name)] == []
    assert [name for name in ("echo", "vllm", "llama-cpp-quantization", "") if takes_grammars(name)] == []


@pytest.mark.parametrize("backend", ["llama-cpp", "llama", "cuda12-llama-cpp", "ik_llama"])
def test_llama_cpp_takes_no_pictures_without_a_projector(backend: str) -> None:
    config = {"backend": backend}
    assert takes_no_media(config)
    assert not takes_no_media(config | {"mmproj": "mmproj.gguf"})
    assert not takes_no_media(config | {"options": ["parallel:2", "mmproj:mmproj.gguf"]})


def test_what_other_engines_take_is_not_guessed_at() -> None:
    assert [name for name in ("vllm", "mlx-vlm", "transformers", "") if takes_no_media({"backend": name})] == []
