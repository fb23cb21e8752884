"""Makes a model's configuration from what its files say about themselves. Pure."""

import re
import unicodedata
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

import msgspec
import yaml

from corral.base.errors import InvalidInput
from corral.hubs.gguf import GgufFacts, GgufKind
from corral.hubs.listings import OwnSettings

_LONGEST_NAME: Final = 100
_LONGEST_GIVEN: Final = 200
_ENDINGS: Final = re.compile(r"([-._ ](gguf|ggml|imatrix|i1|mlx))+$", re.IGNORECASE)
_NO_WORD: Final = re.compile(r"[^a-z0-9._-]+")
GENERIC_NAMES: Final = frozenset(("model", "ggml-model", "weights", "main", "latest", "resolve", "download", ""))
"""Names of files that tell nothing about the model inside."""


class ConfiguredModel(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    """The configuration as YAML."""
    notes: tuple[str, ...] = ()


def clean_name(text: str) -> str:
    """Return a name for a model that is also a good name for a directory: small letters, digits, `.`, `_` and `-`."""
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode().lower()
    while (shorter := _ENDINGS.sub("", plain)) != plain and shorter:
        plain = shorter
    name = re.sub(r"\.{2,}", ".", _NO_WORD.sub("-", plain))
    name = re.sub(r"-{2,}", "-", name).strip("-._")[:_LONGEST_NAME].rstrip("-._")
    return name or f"model-{sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def check_name(name: str) -> str:
    """Return a name that a person gave unchanged. InvalidInput says why it cannot be used."""
    if not name.strip() or name != name.strip() or len(name) > _LONGEST_GIVEN or not name.isprintable() or "#" in name:
        raise InvalidInput("name", f"{name[:80]!r} must be one line of up to {_LONGEST_GIVEN} characters, without #")
    if name.startswith(("/", ".", "~")) or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise InvalidInput("name", f"{name[:80]!r} must not look like a path: no leading / . ~, no .. and no \\")
    return name


def configure_gguf(
    name: str,
    model: str,
    facts: GgufFacts,
    *,
    context: int,
    projector: str = "",
    author_settings: OwnSettings | None = None,
) -> ConfiguredModel:
    """Return the configuration of a model for llama.cpp. `model` and `projector` are paths in the models directory.

    InvalidInput if the file is no model that can be asked.
    """
    if facts.kind in (GgufKind.PROJECTOR, GgufKind.ADAPTER):
        kind = "a projector" if facts.kind is GgufKind.PROJECTOR else "an adapter (LoRA)"
        raise InvalidInput("reference", f"{model} is {kind}, which changes another model; name that one")
    settings, notes = author_settings or OwnSettings(), list[str]()
    config: dict[str, object] = {
        "name": name,
        "backend": "llama-cpp",
        "parameters": {"model": model, **settings.parameters},
        "context_size": min(facts.context_length or context, context),
    }
    config |= settings.top
    match facts.kind:
        case GgufKind.EMBEDDING:
            config |= {"embeddings": True, "known_usecases": ["embeddings"]}
        case GgufKind.RERANK:
            config |= {"reranking": True, "known_usecases": ["rerank"]}
        case _:
            config |= _asked(facts, settings, notes)
            if projector:
                config |= {"mmproj": projector}
                config["known_usecases"] = [*_words(config.get("known_usecases")), "vision"]
    return ConfiguredModel(text=_yaml(config), notes=tuple(notes))


def _asked(facts: GgufFacts, settings: OwnSettings, notes: list[str]) -> dict[str, object]:
    """Return how a model that continues texts is asked."""
    has_other = bool(settings.template or settings.template_problem)
    if facts.chat_template:
        if has_other:
            notes.append(f"{settings.source}'s template is not taken over: the file has its own, which is used")
        return {"template": {"use_tokenizer_template": True}, "known_usecases": ["chat", "completion"]}
    if settings.template:
        return {"template": dict(settings.template), "known_usecases": ["chat", "completion"]}
    if settings.template_problem:
        notes.append(f"{settings.source}'s template is not taken over: {settings.template_problem}")
    notes.append("the file has no chat template: it is set up for completions; for chats add a template to its YAML")
    return {"known_usecases": ["completion"]}


def configure_directory(
    name: str, model: str, *, facts: Mapping[str, object], tags: frozenset[str], context: int, has_gpu: bool
) -> ConfiguredModel:
    """Return the configuration of a model whose engine loads the directory `model`. `facts` is its `config.json`."""
    config: dict[str, object] = {"name": name, "backend": "transformers", "parameters": {"model": model}}
    if tags & {"sentence-transformers", "feature-extraction", "sentence-similarity"}:
        config |= {"backend": "sentencetransformers", "embeddings": True, "known_usecases": ["embeddings"]}
        return ConfiguredModel(text=_yaml(config))
    if has_gpu:
        config["backend"] = "vllm"
    trained = facts.get("max_position_embeddings")
    is_stated = isinstance(trained, int) and not isinstance(trained, bool) and trained > 0
    config["context_size"] = min(int(str(trained)), context) if is_stated else context
    config |= {"template": {"use_tokenizer_template": True}, "known_usecases": ["chat", "completion"]}
    note = f"the backend {config['backend']} loads it as a directory; set another in its YAML if your fleet has another"
    return ConfiguredModel(text=_yaml(config), notes=(note,))


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def _yaml(config: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=120)
