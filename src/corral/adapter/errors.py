"""Which HTTP status an error becomes, and OpenAI's words for it."""

from typing import Final, NamedTuple

from corral.adapter.bodies import BodyTooLarge
from corral.adapter.replicas import KeyUnknown
from corral.adapter.scratch import ScratchNotUsable
from corral.base.errors import CorralError, InvalidInput
from corral.dialect.answers import error_document
from corral.protocol.adapter import MODEL_GONE_STATUS
from corral.rpc import errors

_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"

_TABLE: Final[tuple[tuple[type[CorralError], int, str], ...]] = (
    (KeyUnknown, 401, _INVALID),
    (BodyTooLarge, 413, _INVALID),
    (ScratchNotUsable, 507, _SERVER),
    (InvalidInput, 400, _INVALID),
    (errors.RequestRefused, 400, _INVALID),
    (errors.ReplyTooLarge, 413, _INVALID),
    (errors.NotOffered, 501, "not_supported_error"),
    (errors.BackendBusy, 504, _SERVER),
    (errors.BackendGone, 503, _SERVER),
    (errors.ModelNotLoaded, MODEL_GONE_STATUS, _SERVER),
    (errors.OtherModelLoaded, MODEL_GONE_STATUS, _SERVER),
    (errors.BackendError, 502, _SERVER),
)


class Failure(NamedTuple):
    status: int
    kind: str


def failure_of(error: CorralError) -> Failure:
    return next(
        (Failure(status, kind) for known, status, kind in _TABLE if isinstance(error, known)), Failure(500, _SERVER)
    )


def document_of(error: CorralError) -> bytes:
    """The error as the body of an answer. What the backend said is for the client; its address is not."""
    param = error.field if isinstance(error, InvalidInput) else None
    return error_document(words_of(error), kind=failure_of(error).kind, code=error.code, param=param or None)


def words_of(error: CorralError) -> str:
    if isinstance(error, errors.BackendError):
        summary = (type(error).__doc__ or "").strip().splitlines()[0].rstrip(".")
        return f"{summary}: {error.said}" if error.said else summary
    return error.message
