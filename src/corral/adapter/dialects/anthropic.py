"""Errors in Anthropic's format, for the routes below `/v1/messages`. Pure."""

from typing import Final

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.wire.models import COUNT_TOKENS, MESSAGES

ANTHROPIC_ROUTES: Final = frozenset({MESSAGES, COUNT_TOKENS})
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def anthropic_error(status: int, message: str) -> dict[str, object]:
    """Return the error body for a status and a message."""
    type = _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": type, "message": message}}


def anthropic_error_of(status: int, body: bytes) -> bytes:
    """Convert an error body in OpenAI's format, or plain text, to Anthropic's format."""
    try:
        message = msgspec.json.decode(body, type=_OpenAiError).error.message
    except UNREADABLE_JSON:
        message = body.decode(errors="replace")
    return msgspec.json.encode(anthropic_error(status, message))


class _Said(msgspec.Struct):
    message: str


class _OpenAiError(msgspec.Struct):
    error: _Said
