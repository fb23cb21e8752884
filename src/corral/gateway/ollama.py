"""Ollama's routes about models, answered from the gateway's view, and its administrative routes, which are refused.

What the gateway does not know of a model (size, digest, family) is empty or left out, never guessed.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.gateway.answers import Answer, GatewayRefusal
from corral.gateway.anthropic import rfc3339
from corral.gateway.head import RequestHead
from corral.gateway.view import Directory
from corral.wire.models import ModelUse
from corral.wire.view import ModelEntry

_TAGS: Final = b"/api/tags"
_RUNNING: Final = b"/api/ps"
_VERSION: Final = b"/api/version"
_SHOW: Final = b"/api/show"
_METHODS: Final[Mapping[bytes, Collection[bytes]]] = {
    _TAGS: (b"GET", b"HEAD"),
    _RUNNING: (b"GET", b"HEAD"),
    _VERSION: (b"GET", b"HEAD"),
    _SHOW: (b"POST",),
}
_REFUSED: Final = frozenset({b"/api/pull", b"/api/push", b"/api/create", b"/api/copy", b"/api/delete"})
_BLOBS: Final = b"/api/blobs/"
"""Below it clients send the files of models."""
_API_VERSION: Final = "0.12.0"
"""The version of Ollama whose API is followed. Clients compare it with the oldest one that they can use."""
_CAPABILITIES: Final = {ModelUse.CHAT.value: "completion", ModelUse.EMBEDDINGS.value: "embedding"}
"""Ollama's words for what models are for. Whether one knows tools or pictures is not known here."""
_SERVED: Final = frozenset({*_CAPABILITIES, ModelUse.COMPLETION.value})


class _ShownModel(msgspec.Struct):
    """Body of a question about one model; older clients call the field `name`."""

    model: str | None = None
    name: str | None = None


def is_own(path: bytes) -> bool:
    """Whether the gateway answers this path without asking a replica."""
    return path in _METHODS or path in _REFUSED or path.startswith(_BLOBS)


def answer(directory: Directory, head: RequestHead, body: bytes, *, only: frozenset[str] | None) -> Answer:
    """Return the answer for a key that may ask `only` these models; None is all. Raise `GatewayRefusal`."""
    if head.path not in _METHODS:
        path = _BLOBS.rstrip(b"/") if head.path.startswith(_BLOBS) else head.path
        how = "models are changed with `corral models`, on the web page, or by /api/v1/models"
        raise GatewayRefusal(400, f"{path.decode()} is not offered: {how}", code="not_offered")
    if head.method not in _METHODS[head.path]:
        allowed = b", ".join(_METHODS[head.path]).decode()
        raise GatewayRefusal(405, f"use {allowed} here", code="method_not_allowed", headers={"Allow": allowed})
    match head.path:
        case path if path == _TAGS:
            return Answer(200, {"models": [_listed(entry) for entry in _served(directory, only)]})
        case path if path == _RUNNING:
            loaded = (entry for entry in _served(directory, only) if directory.serves(entry.alias_of or entry.name))
            return Answer(200, {"models": [_listed(entry) for entry in loaded]})
        case path if path == _SHOW:
            return Answer(200, _details(_asked_model(directory, body, only)))
        case _:
            return Answer(200, {"version": _API_VERSION})


def _served(directory: Directory, only: frozenset[str] | None) -> Sequence[ModelEntry]:
    """Return the models that Ollama's routes can ask."""
    return [entry for entry in directory.models(only) if not entry.uses or not _SERVED.isdisjoint(entry.uses)]


def _listed(entry: ModelEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "model": entry.name,
        "size": 0,
        "digest": "",
        "details": _family(),
        **_times(entry),
    }


def _family() -> dict[str, Any]:
    unknown = dict.fromkeys(("parent_model", "format", "family", "parameter_size", "quantization_level"), "")
    return {**unknown, "families": []}


def _asked_model(directory: Directory, body: bytes, only: frozenset[str] | None) -> ModelEntry:
    try:
        asked = msgspec.json.decode(body, type=_ShownModel)
    except UNREADABLE_JSON as error:
        raise GatewayRefusal(400, f"the body must be a JSON object: {error}", code="invalid_body") from None
    name = directory.plain_name(asked.model or asked.name or "")
    if not name:
        raise GatewayRefusal(400, "`model` is missing: name the model", code="missing_model", param="model")
    return directory.find_model(name) if only is None else directory.find_allowed(name, only)


def _details(entry: ModelEntry) -> dict[str, Any]:
    capabilities = [_CAPABILITIES[use] for use in entry.uses if use in _CAPABILITIES]
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _family(),
        "model_info": {},
        "capabilities": capabilities if entry.uses else [_CAPABILITIES[ModelUse.CHAT.value]],
        **_times(entry),
    }


def _times(entry: ModelEntry) -> dict[str, str]:
    if not entry.created:
        return {}
    return {"modified_at": rfc3339(entry.created)}
