"""What a model is for, and which backend a name in its configuration means."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.frontend.models.decide.keys import usecases_of
from corral.wire.models import ModelUse


class Meant(NamedTuple):
    """What a name stands for."""

    backend: str
    type: str = ""
    """The kind of model that the backend gets, where the name of the backend depends on it."""


OTHER_NAMES: Final[Mapping[str, Meant]] = {
    "go-llama": Meant("llama-cpp"),
    "llama": Meant("llama-cpp"),
    "ik_llama": Meant("ik-llama-cpp"),
    "ik-llama": Meant("ik-llama-cpp"),
    "embedded-store": Meant("local-store"),
    "valkey": Meant("valkey-store"),
    "huggingface-embeddings": Meant("transformers", "SentenceTransformer"),
    "sentencetransformers": Meant("transformers", "SentenceTransformer"),
    "transformers-musicgen": Meant("transformers", "MusicgenForConditionalGeneration"),
    "mamba": Meant("transformers", "Mamba"),
    "stablediffusion": Meant("stablediffusion-ggml"),
}


def meant_by(name: str) -> Meant:
    """Whatever its letter case; any other name stands for itself."""
    return OTHER_NAMES.get(name.lower(), Meant(name))


_U = ModelUse
_TEXT: Final = frozenset({_U.CHAT, _U.COMPLETION})
"""A model with one of these uses has the other too: a chat is a completion of a rendered prompt."""
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
BACKEND_USES: Final[Mapping[str, frozenset[ModelUse]]] = {
    **dict.fromkeys(("llama-cpp", "ik-llama-cpp"), _TEXT),
    "echo": _TEXT | {_U.EMBEDDINGS},
    **dict.fromkeys(_SPEECH, frozenset({_U.SPEECH})),
    **dict.fromkeys(_TRANSCRIPTION, frozenset({_U.TRANSCRIPTION})),
    "minilm-embeddings": frozenset({_U.EMBEDDINGS}),
    "rerankers": frozenset({_U.RERANK}),
    "silero-vad": frozenset({_U.VOICE_ACTIVITY}),
}
"""Backends that do one kind of work, unless the model's configuration says more. Others are not guessed at."""
_CHAT_TEMPLATES: Final = ("template.chat", "template.chat_message", "template.use_tokenizer_template")


def uses_of(config: Config) -> frozenset[ModelUse]:
    """What a model is for, as its configuration and its backend tell; empty when neither does."""
    uses = frozenset().union(*(_USECASES.get(word, frozenset()) for word in usecases_of(config)))
    if fields.switch(config, "embeddings", False):
        uses |= {_U.EMBEDDINGS}
    if fields.switch(config, "reranking", False):
        uses |= {_U.RERANK}
    if uses:
        has_template = any(fields.value_at(config, key) for key in _CHAT_TEMPLATES)
        return uses | _TEXT if has_template else uses
    uses = BACKEND_USES.get(meant_by(fields.text(config, "backend")).backend, frozenset())
    hears = uses == _TEXT and fields.value_at(config, "mmproj")  # a projector takes pictures, sounds, or both
    return uses | {_U.TRANSCRIPTION} if hears else uses


_SPREADING: Final[Mapping[str, str]] = {
    "llama-cpp": "",
    "vllm": "tensor_parallel_size",
    "sglang": "tensor_parallel_size",
}
"""Engines that spread one model over several GPUs. Those with a key here do so only if it says over how many, and then
use exactly as many."""
_DEVELOPMENT: Final = "-development"


class Spreading(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine uses several GPUs for one model."""

    splits: bool = False
    cards: int = 0
    """How many GPUs the configuration asks for; 0 when the engine uses those that it sees."""


def spreading_of(backend: str, config: Config) -> Spreading:
    """By a model's backend, whatever build of it: `cuda12-vllm` is vLLM. Of other engines nothing is assumed."""
    key = next((key for name, key in _SPREADING.items() if _is_build_of(name, backend)), None)
    if key is None:
        return Spreading()
    if not key:
        return Spreading(splits=True)
    value = fields.whole(config, key, 0)
    cards = value if isinstance(value, int) else 0
    return Spreading(splits=cards > 1, cards=max(cards, 0))


def takes_grammars(backend: str) -> bool:
    """Whether a model's backend is a build of llama.cpp, and so keeps to grammars; other engines may ignore them."""
    return _is_build_of("llama-cpp", backend)


def takes_no_media(config: Config) -> bool:
    """Whether a model certainly takes neither pictures, sounds nor videos: llama.cpp needs a projector for them. What
    other engines take depends on the model itself."""
    options = fields.listed(fields.value_at(config, "options"))
    has_projector = fields.value_at(config, "mmproj") or any("mmproj" in str(option) for option in options)
    return _is_build_of("llama-cpp", fields.text(config, "backend")) and not has_projector


def _is_build_of(engine: str, backend: str) -> bool:
    name = meant_by(backend).backend.lower().removesuffix(_DEVELOPMENT)
    return name == engine or name.endswith(f"-{engine}")
