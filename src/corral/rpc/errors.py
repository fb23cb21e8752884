"""Errors of backends, by what to do about them, and how a gRPC status becomes one of them.

BackendError
├── BackendBusy           retryable: no answer before the deadline; the process may be working
├── BackendGone           retryable: nobody serves at the address any more
├── ModelNotLoaded        retryable after a load
├── OtherModelLoaded      the address serves another model: never try it again for this one
├── NotOffered            the backend does not have this method
├── TokenRefused
├── ReplyTooLarge         beyond the limit of the messages, either way
├── RequestRefused        the backend finds fault with the request
├── LoadFailed            the backend could not load the model
└── BackendFailed         anything else
"""

from typing import Final

from corral.base.errors import CorralError
from corral.base.words import abridged
from corral.rpc.grpc_client import Code, Status

_LONGEST: Final = 4000
"""A backend may say megabytes. Why it could not load a model is stored, and waiting requests are answered with it."""


class BackendError(CorralError):
    """The backend did not do it."""

    code = "backend_error"

    def __init__(self, address: str, said: str = "") -> None:
        self.address = address
        self.said = said = abridged(said, _LONGEST)
        summary = (type(self).__doc__ or "").strip().splitlines()[0].rstrip(".")
        super().__init__(f"{summary} ({address}): {said}" if said else f"{summary} ({address})", address=address)


class BackendBusy(BackendError):
    """The backend did not answer before the deadline."""

    code = "backend_busy"
    retryable = True


class BackendGone(BackendError):
    """The backend cannot be reached."""

    code = "backend_gone"
    retryable = True


class ModelNotLoaded(BackendError):
    """The backend has no model loaded."""

    code = "model_not_loaded"
    retryable = True


class OtherModelLoaded(BackendError):
    """The backend has another model loaded."""

    code = "other_model_loaded"


class NotOffered(BackendError):
    """The backend does not offer this."""

    code = "not_offered"


class TokenRefused(BackendError):
    """The backend refused our token."""

    code = "backend_token_refused"


class ReplyTooLarge(BackendError):
    """The message is larger than backend and client allow."""

    code = "backend_message_too_large"


class RequestRefused(BackendError):
    """The backend refused the request."""

    code = "backend_request_refused"


class LoadFailed(BackendError):
    """The backend could not load the model."""

    code = "load_failed"


class BackendFailed(BackendError):
    """The backend failed to answer a call."""

    code = "backend_failed"


_BY_CODE: Final[dict[Code, type[BackendError]]] = {
    Code.DEADLINE_EXCEEDED: BackendBusy,
    Code.UNAVAILABLE: BackendGone,
    Code.CANCELLED: BackendGone,  # by the backend, whose process is ending: our own cancellations do not get here
    Code.FAILED_PRECONDITION: ModelNotLoaded,
    Code.UNIMPLEMENTED: NotOffered,
    Code.UNAUTHENTICATED: TokenRefused,
    Code.RESOURCE_EXHAUSTED: ReplyTooLarge,
    Code.INVALID_ARGUMENT: RequestRefused,
    Code.OUT_OF_RANGE: RequestRefused,
}


def error_for(address: str, status: Status) -> BackendError:
    """Return the error for a call that ended with this status.

    Texts are interpreted as in LocalAI's own client: some backends report errors only in words, and NOT_FOUND alone
    does not mean another model (some backends find no face in a picture).
    """
    text = status.details.strip()
    lowered = text.lower()
    if status.code is Code.NOT_FOUND and "model identity mismatch" in lowered:
        return OtherModelLoaded(address, text)
    if status.code in _BY_CODE:
        return _BY_CODE[status.code](address, text)
    if "model not loaded" in lowered:
        return ModelNotLoaded(address, text)
    if "unimplemented" in lowered:
        return NotOffered(address, text)
    return BackendFailed(address, text)
