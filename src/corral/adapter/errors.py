"""Maps errors to HTTP statuses and to OpenAI's error format."""

from typing import Final, NamedTuple

from corral.adapter.dialects.answers import error_document
from corral.adapter.dialects.engine_errors import refusal_in
from corral.adapter.forms import RequestTooLarge
from corral.adapter.replicas import KeyUnknown
from corral.adapter.scratch import ScratchNotUsable
from corral.base.errors import CorralError, InvalidInput
from corral.rpc import errors
from corral.wire.adapter import MODEL_GONE_STATUS

_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"

_TABLE: Final[tuple[tuple[type[CorralError], int, str], ...]] = (
    (KeyUnknown, 401, _INVALID),
    (RequestTooLarge, 413, _INVALID),
    (ScratchNotUsable, 507, _SERVER),
    (InvalidInput, 400, _INVALID),
    (errors.RequestRefused, 400, _INVALID),
    (errors.ReplyTooLarge, 413, _INVALID),
    (errors.BackendBusy, 504, _SERVER),
    (errors.BackendGone, 503, _SERVER),
    (errors.ModelNotLoaded, MODEL_GONE_STATUS, _SERVER),
    (errors.OtherModelLoaded, MODEL_GONE_STATUS, _SERVER),
    (errors.BackendError, 502, _SERVER),
)


_TELLING: Final = (errors.RequestRefused, errors.BackendFailed)
"""Errors whose text may say what the client did wrong: backends in other languages fail where they should refuse."""


class ErrorAnswer(NamedTuple):
    status: int
    kind: str
    code: str
    param: str | None


def failure_of(error: CorralError, *, about: str = "messages") -> ErrorAnswer:
    """Return status, type and code for an error. `about` is the name of the field that holds the prompt."""
    if isinstance(error, _TELLING) and (fault := refusal_in(error.said, about=about)):
        return ErrorAnswer(400, _INVALID, *fault)
    param = error.field or None if isinstance(error, InvalidInput) else None
    if isinstance(error, errors.NotOffered):
        return ErrorAnswer(400, _INVALID, "unsupported_by_model", "model")
    for error_class, status, kind in _TABLE:
        if isinstance(error, error_class):
            return ErrorAnswer(status, kind, error.code, param)
    return ErrorAnswer(500, _SERVER, error.code, param)


def document_of(error: CorralError, failure: ErrorAnswer) -> bytes:
    """Return the error body. It contains what the backend said, but never the backend's address."""
    return error_document(words_of(error), kind=failure.kind, code=failure.code, param=failure.param)


def words_of(error: CorralError) -> str:
    if isinstance(error, errors.BackendError):
        summary = (type(error).__doc__ or "").strip().splitlines()[0].rstrip(".")
        return f"{summary}: {error.said}" if error.said else summary
    return error.message
