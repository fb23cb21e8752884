"""What a model is for, which backends its names mean, and what loading it needs."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from corral.base import config_fields as fields
from corral.base.config_fields import Config
from corral.wire.models import ModelUse


class Meant(NamedTuple):
    """What a name stands for."""

    backend: str
    type: str = ""
    """The kind of model that the backend is told, where the name says that as well."""


_OTHER_NAMES: Final[Mapping[str, Meant]] = {
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
    return _OTHER_NAMES.get(name.lower(), Meant(name))


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


class _RequestField(NamedTuple):
    """A name on the other side, the key that feeds it, and how that is read."""

    name: str
    key: str
    read: Callable[[Config, str, object], object]


def request_rules(config: Config) -> dict[str, object]:
    """Parts by name: those of `_RULES`, `templates` and `defaults`. InvalidInput names the key."""
    return {
        **_said(config, _RULES),
        "templates": _said(config, _TEMPLATES),
        "defaults": _said(config, _DEFAULTS),
    }


def _said(config: Config, keys: tuple[_RequestField, ...]) -> dict[str, object]:
    values = {one.name: one.read(config, one.key, fields.MISSING) for one in keys}
    return {name: value for name, value in values.items() if value is not fields.MISSING}


def _opposite(config: Config, key: str, default: object) -> object:
    value = fields.switch(config, key, default)
    return not value if isinstance(value, bool) else value


_RULES: Final = (
    _RequestField("use_tokenizer_template", "template.use_tokenizer_template", fields.switch),
    _RequestField("system_prompt", "system_prompt", fields.text),
    _RequestField("voice", "tts.voice", fields.text),
    _RequestField("reasoning_effort", "reasoning_effort", fields.text),
    _RequestField("thinks", "reasoning.disable", _opposite),
    _RequestField("template_arguments", "chat_template_kwargs", fields.mapping),
)
_TEMPLATES: Final = (
    _RequestField("chat", "template.chat", fields.text),
    _RequestField("chat_message", "template.chat_message", fields.text),
    _RequestField("completion", "template.completion", fields.text),
    _RequestField("joined_by", "template.join_chat_messages_by_character", fields.text),
)
_DEFAULTS: Final = (
    _RequestField("temperature", "parameters.temperature", fields.number),
    _RequestField("top_p", "parameters.top_p", fields.number),
    _RequestField("top_k", "parameters.top_k", fields.whole),
    _RequestField("min_p", "parameters.min_p", fields.number),
    _RequestField("typical_p", "parameters.typical_p", fields.number),
    _RequestField("tail_free_z", "parameters.tfz", fields.number),
    _RequestField("max_tokens", "parameters.max_tokens", fields.whole),
    _RequestField("repeat_penalty", "parameters.repeat_penalty", fields.number),
    _RequestField("repeat_last_n", "parameters.repeat_last_n", fields.whole),
    _RequestField("frequency_penalty", "parameters.frequency_penalty", fields.number),
    _RequestField("presence_penalty", "parameters.presence_penalty", fields.number),
    _RequestField("mirostat", "mirostat", fields.whole),
    _RequestField("mirostat_eta", "mirostat_eta", fields.number),
    _RequestField("mirostat_tau", "mirostat_tau", fields.number),
    _RequestField("seed", "parameters.seed", fields.whole),
    _RequestField("stop", "stopwords", fields.texts),
    _RequestField("threads", "threads", fields.whole),
    _RequestField("ignore_eos", "parameters.ignore_eos", fields.switch),
)
REQUEST_KEYS: Final = tuple(one.key for one in (*_RULES, *_TEMPLATES, *_DEFAULTS))
"""All that is read here."""
