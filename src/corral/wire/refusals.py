"""Refusals that control and gateway send alike, and the headers that keep browsers safe."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.sessions import SESSION_EXPIRED, SESSION_EXPIRED_MESSAGE


class RefusalDetail(msgspec.Struct, kw_only=True):
    code: int | str = 0
    """The HTTP status, or a word where an inference client shall tell reasons apart."""
    message: str = ""
    type: str = ""


class Refusal(msgspec.Struct, kw_only=True):
    """Body of an error. Without a valid token, `error` is only a text."""

    error: RefusalDetail | str = ""


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What went wrong."""

    code: str | int
    """For programs: a word, or the HTTP status where no key was accepted."""
    message: str
    """One sentence for people."""
    field: str | UnsetType = UNSET
    """The field or parameter that is wrong."""
    type: str | UnsetType = UNSET
    """Where `code` is a status."""


class ErrorAnswer(msgspec.Struct, kw_only=True):
    """Body of an error of Corral's own routes."""

    error: ErrorDetail


class OpenAiErrorDetail(msgspec.Struct, kw_only=True):
    """What went wrong, for clients of OpenAI's API."""

    message: str
    """One sentence for people."""
    type: str
    param: str | None = None
    """The field that is wrong."""
    code: str
    """A word for programs."""


class OpenAiErrorAnswer(msgspec.Struct, kw_only=True):
    """Body of an error below `/v1/`."""

    error: OpenAiErrorDetail


OPENAI_PATHS: Final = "/v1/"
"""What the paths of OpenAI's API begin with."""
_OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_type(status: int) -> str:
    """Return OpenAI's error type for a status."""
    return _OPENAI_TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")


def openai_refusal(status: int, message: str, code: str) -> OpenAiErrorAnswer:
    """Return an error in the format of OpenAI."""
    return OpenAiErrorAnswer(error=OpenAiErrorDetail(message=message, type=error_type(status), code=code))


class Acknowledged(msgspec.Struct, kw_only=True):
    """Body of an answer that has nothing else to say."""

    message: str = ""


KEY_REQUIRED: Final = Refusal(
    error=RefusalDetail(code=401, message="An authentication key is required", type="invalid_request_error")
)
"""For who has no valid API key, on every route but OpenAI's."""
SESSION_OVER: Final = Refusal(
    error=RefusalDetail(code=SESSION_EXPIRED, message=SESSION_EXPIRED_MESSAGE, type="invalid_request_error")
)
"""For a browser whose cookie opens nothing, or nothing any more."""
BEARER_REQUIRED: Final = Refusal(error="missing or invalid Authorization header")
"""For a worker that presents nothing at all."""


def node_refusal(status: int, message: str) -> Refusal:
    """An error of the routes for workers."""
    return Refusal(error=RefusalDetail(code=status, message=message, type="node_error"))


NO_FRAMES: Final = "frame-ancestors 'none'"
"""No page of another site may show this one inside itself and have people click on it unknowingly."""
SAFETY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": NO_FRAMES,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
