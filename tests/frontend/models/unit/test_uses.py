"""What a model is for."""

import pytest

from corral.frontend.models.decide.uses import uses_of


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
