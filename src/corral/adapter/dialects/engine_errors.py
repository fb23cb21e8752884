"""Translates errors of engines to OpenAI's format. Pure.

Engines report client errors in many ways: llama.cpp's server with numeric codes, and with status 500 for invalid
requests. Clients depend on code and status, and retry 404, 501 and 5xx.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON

_encode: Final = msgspec.json.encode


class EngineRefusal(NamedTuple):
    """A client error that was recognised in an engine's message."""

    code: str
    param: str | None


_TOO_LONG: Final = re.compile(
    r"available context size|maximum context length|context_length_exceeded|too large to process|"
    r"exceeds? (?:the )?(?:model's )?context|longer than the (?:model's )?(?:maximum )?context",
    re.IGNORECASE,
)
_NO_MEDIA: Final = re.compile(
    r"(?:image|audio|video)s? (?:input )?(?:is|are) (?:not supported|unimplemented)"
    r"|does not support (?:image|audio|video)|is not a multimodal model",
    re.IGNORECASE,
)
_NOT_OFFERED: Final = re.compile(
    r"does not support (?:embeddings?|rerank|chat|completions?|transcriptions?)", re.IGNORECASE
)
_FAULTY: Final = re.compile(r"Failed to parse (messages|tools)\b")
_FIELD: Final = re.compile(r"^Field '(\w+)'")
_NAMED: Final = re.compile(
    r"\b(tool_choice|tools|response_format|json_schema|top_logprobs|logprobs|grammar|messages|prompt|input|content"
    r"|encoding_format|dimensions|suffix|stop|temperature|max_tokens|n)\b"
)
_MENDABLE: Final = re.compile(rb"but is null|Field 'n':")
"""llama.cpp refuses null values, which mean "not given", and more answers than it has slots."""
_PARAMS: Final = {"content": "messages", "json_schema": "response_format"}
_CODES: Final = {
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    409: "conflict",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    503: "engine_unavailable",
    504: "engine_timed_out",
}


def refusal_in(message: str, *, about: str = "messages") -> EngineRefusal | None:
    """Return the client error that the message states for certain, whatever the status; else None. `about` is the
    name of the field that holds the prompt."""
    if _TOO_LONG.search(message):
        return EngineRefusal("context_length_exceeded", about)
    if _NO_MEDIA.search(message):
        return EngineRefusal("unsupported_content", about)
    if _NOT_OFFERED.search(message):
        return EngineRefusal("unsupported_by_model", "model")
    if match := _FAULTY.search(message):
        return EngineRefusal("invalid_value", match[1])
    return None


def is_mendable(body: bytes) -> bool:
    """Whether the engine refused something that the server in front of it can express differently."""
    return _MENDABLE.search(body) is not None


def openai_error(status: int, body: bytes, *, about: str = "messages") -> tuple[int, bytes] | None:
    """Return status and body of an engine's error in OpenAI's format, or None when it needs no change."""
    try:
        document = msgspec.json.decode(body)
    except UNREADABLE_JSON:
        document = None
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict) and isinstance(error.get("code"), str) and status not in (404, 501):
        return None
    said = _said(document, error) or body.decode(errors="replace").strip()[:1000] or f"the engine answered {status}"
    fault = refusal_in(said, about=about) or _by_status(status, said)
    if fault is not None:
        status = 400
    code, param = fault or (_CODES.get(status, "engine_error"), None)
    more = {name: value for name, value in error.items() if name != "code"} if isinstance(error, dict) else {}
    document = {**more, "message": said, "type": error_type(status), "param": param, "code": code}
    return status, _encode({"error": document})


def _by_status(status: int, said: str) -> EngineRefusal | None:
    """400 and 422 concern a field; an unknown path and 501 concern the model."""
    if status in (404, 501):
        return EngineRefusal("unsupported_by_model", "model")
    if status not in (400, 422):
        return None
    match = _FIELD.search(said) or _NAMED.search(said)
    return EngineRefusal("invalid_value", _PARAMS.get(match[1], match[1]) if match else None)


def _said(document: Any, error: Any) -> str:
    """Return the error text: `error.message` in llama.cpp and OpenAI, `message` in vLLM, `detail` in FastAPI."""
    for text in (
        error.get("message") if isinstance(error, dict) else error,
        document.get("message") if isinstance(document, dict) else None,
        document.get("detail") if isinstance(document, dict) else None,
    ):
        if text:
            return text if isinstance(text, str) else _encode(text).decode()
    return ""


def error_type(status: int) -> str:
    """Return OpenAI's error type for a status."""
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _ if status >= 500:
            return "server_error"
        case _:
            return "invalid_request_error"
