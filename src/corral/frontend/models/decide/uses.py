"""What a model is for: as its configuration says, or else as its backend tells."""

from collections.abc import Mapping
from typing import Final

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.frontend.models.decide.backend_names import meant_by
from corral.wire.inference import ModelUse

_U = ModelUse
_TEXT: Final = frozenset({_U.CHAT, _U.COMPLETION})
"""Whoever does one of them does the other: a chat is a completion of a rendered prompt."""
_USECASES: Final[Mapping[str, frozenset[ModelUse]]] = {
    "chat": _TEXT,
    "completion": _TEXT,
    "edit": _TEXT,
    "llm": _TEXT,
    "embeddings": frozenset({_U.EMBEDDINGS}),
    "rerank": frozenset({_U.RERANK}),
    "tts": frozenset({_U.SPEECH}),
    "transcript": frozenset({_U.TRANSCRIPTION}),
    "vad": frozenset({_U.VOICE_ACTIVITY}),
}
"""LocalAI's words in `known_usecases`, as far as there are routes for them."""
_SPEECH: Final = ("espeak-tts", "piper", "kokoro", "kokoros", "coqui", "bark", "bark-cpp", "chatterbox", "kitten-tts")
_TRANSCRIPTION: Final = ("whisper", "faster-whisper", "pocketsphinx-stt")
_BACKEND_USES: Final[Mapping[str, frozenset[ModelUse]]] = {
    **dict.fromkeys(("llama-cpp", "ik-llama-cpp"), _TEXT),
    "echo": _TEXT | {_U.EMBEDDINGS},
    **dict.fromkeys(_SPEECH, frozenset({_U.SPEECH})),
    **dict.fromkeys(_TRANSCRIPTION, frozenset({_U.TRANSCRIPTION})),
    "minilm-embeddings": frozenset({_U.EMBEDDINGS}),
    "rerankers": frozenset({_U.RERANK}),
    "silero-vad": frozenset({_U.VOICE_ACTIVITY}),
}
"""Backends that do one kind of work, unless the model's configuration says more. Others are not guessed at."""


def uses_of(config: Config) -> frozenset[ModelUse]:
    """What a model is for, as its configuration and its backend tell; empty when neither does."""
    told = frozenset().union(*(_USECASES.get(word, frozenset()) for word in _usecases(config)))
    if fields.switch(config, "embeddings", False):
        told |= {_U.EMBEDDINGS}
    if fields.switch(config, "reranking", False):
        told |= {_U.RERANK}
    if told and _has_chat_template(config):
        told |= _TEXT
    return told or _uses_of_backend(config)


def _uses_of_backend(config: Config) -> frozenset[ModelUse]:
    known = _BACKEND_USES.get(meant_by(fields.text(config, "backend")).backend, frozenset())
    hears = known == _TEXT and fields.found(config, "mmproj")  # a projector takes pictures, sounds, or both
    return known | {_U.TRANSCRIPTION} if hears else known


def _usecases(config: Config) -> list[str]:
    listed = fields.listed(fields.found(config, "known_usecases"))
    return [str(word).lower().removeprefix("flag_") for word in listed]


def _has_chat_template(config: Config) -> bool:
    keys = ("template.chat", "template.chat_message", "template.use_tokenizer_template")
    return any(fields.found(config, key) for key in keys)
