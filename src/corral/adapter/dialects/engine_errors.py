"""Translates errors of engines to the formats of OpenAI and Anthropic. Pure.

Engines report client errors in many ways: llama.cpp's server with numeric codes, and with status 500 for invalid
requests. Clients depend on code and status, and retry 404, 501 and 5xx.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.wire.models import COUNT_TOKENS, MESSAGES
from corral.wire.refusals import error_type

_encode: Final = msgspec.json.encode
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
_REQUIRED: Final = re.compile(r"^'(\w+)' is required")
_TOLD: Final = (
    (re.compile(r"^Unknown reasoning format: "), "reasoning_format"),
    (re.compile(r"^The format to return the embeddings in\."), "encoding_format"),
)
"""Messages of llama.cpp that state a client error without the name of the field."""
_FIELD: Final = re.compile(r"^Field '(\w+)'")
_NAMED: Final = re.compile(
    r"\b(tool_choice|tools|response_format|json_schema|top_logprobs|logprobs|grammar|messages|[Pp]rompt|[Ii]nput"
    r"|content|encoding_format|dimensions|suffix|stop|temperature|max_tokens|previous_response_id|query|documents|n)\b"
)
_PROMPTS: Final = frozenset({"Prompt", "Input", "prompt", "content"})
"""What llama.cpp calls the prompt, whatever the field is called that holds it."""
_JARGON: Final = re.compile(r"\[json\.exception\.\w+\.\d+\] ")
"""By which llama.cpp's errors begin that its JSON library found."""
_MENDABLE: Final = re.compile(rb"but is null|Field 'n':")
"""llama.cpp refuses null values, which mean "not given", and more answers than it has slots."""
_PARAMS: Final = {"json_schema": "response_format", "include_usage": "stream_options"}
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
ANTHROPIC_ROUTES: Final = frozenset({MESSAGES, COUNT_TOKENS})
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class EngineRefusal(NamedTuple):
    """A client error that was recognised in an engine's message."""

    code: str
    param: str | None


def refusal_in(message: str, *, about: str = "messages") -> EngineRefusal | None:
    """Return the client error that the message states for certain, whatever the status; else None. `about` is the
    name of the field that holds the prompt."""
    if _TOO_LONG.search(message):
        return EngineRefusal("context_length_exceeded", about)
    if _NO_MEDIA.search(message):
        return EngineRefusal("unsupported_content", about)
    if _NOT_OFFERED.search(message):
        return EngineRefusal("unsupported_by_model", "model")
    if match := _FAULTY.search(message) or _REQUIRED.search(message):
        return EngineRefusal("invalid_value", about if match[1] == "messages" else match[1])
    return next((EngineRefusal("invalid_value", field) for pattern, field in _TOLD if pattern.search(message)), None)


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
    text = (
        _error_text(document, error) or body.decode(errors="replace").strip()[:1000] or f"the engine answered {status}"
    )
    text = _JARGON.sub("", text)
    fault = refusal_in(text, about=about)
    if fault is None and status in (404, 501):  # an unknown path concerns the model
        fault = EngineRefusal("unsupported_by_model", "model")
    elif fault is None and status in (400, 422):  # these concern a field
        match = _FIELD.search(text) or _NAMED.search(text)
        fault = EngineRefusal("invalid_value", _param(match[1], about) if match else None)
    if fault is not None:
        status = 400
    code, param = fault or (_CODES.get(status, "engine_error"), None)
    more = {name: value for name, value in error.items() if name != "code"} if isinstance(error, dict) else {}
    document = {**more, "message": text, "type": error_type(status), "param": param, "code": code}
    return status, _encode({"error": document})


def _param(name: str, about: str) -> str:
    return about if name in _PROMPTS else _PARAMS.get(name, name)


def _error_text(document: Any, error: Any) -> str:
    """Return the error text: `error.message` in llama.cpp and OpenAI, `message` in vLLM, `detail` in FastAPI."""
    for text in (
        error.get("message") if isinstance(error, dict) else error,
        document.get("message") if isinstance(document, dict) else None,
        document.get("detail") if isinstance(document, dict) else None,
    ):
        if text:
            return text if isinstance(text, str) else _encode(text).decode()
    return ""


class _ErrorMessage(msgspec.Struct):
    message: str


class _OpenAiError(msgspec.Struct):
    error: _ErrorMessage


def anthropic_error(status: int, message: str) -> dict[str, object]:
    """Return the error body for a status and a message."""
    type = _ANTHROPIC_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": type, "message": message}}


def ollama_error_of(body: bytes) -> bytes:
    """Convert an error body in OpenAI's format, or plain text, to Ollama's format."""
    return msgspec.json.encode({"error": _message_of(body)})


def anthropic_error_of(status: int, body: bytes) -> bytes:
    """Convert an error body in OpenAI's format, or plain text, to Anthropic's format."""
    return msgspec.json.encode(anthropic_error(status, _message_of(body)))


def _message_of(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_OpenAiError).error.message
    except UNREADABLE_JSON:
        return body.decode(errors="replace")
