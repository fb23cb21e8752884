"""From a gRPC status to one of our errors. What LocalAI's own client reads from codes and texts is read here too."""

from enum import IntEnum
from typing import Final, NamedTuple

from corral.rpc import errors


class Code(IntEnum):
    """How a call ended, by gRPC's names and numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Status(NamedTuple):
    """A code and the backend's words, or ours where it said nothing."""

    code: Code
    details: str = ""


_BY_CODE: Final[dict[Code, type[errors.BackendError]]] = {
    Code.DEADLINE_EXCEEDED: errors.BackendBusy,
    Code.UNAVAILABLE: errors.BackendGone,
    Code.CANCELLED: errors.BackendGone,  # our own cancellations never get here: the process is ending
    Code.FAILED_PRECONDITION: errors.ModelNotLoaded,
    Code.UNIMPLEMENTED: errors.NotOffered,
    Code.UNAUTHENTICATED: errors.TokenRefused,
    Code.RESOURCE_EXHAUSTED: errors.ReplyTooLarge,
    Code.INVALID_ARGUMENT: errors.RequestRefused,
    Code.OUT_OF_RANGE: errors.RequestRefused,
}


def error_for(address: str, status: Status) -> errors.BackendError:
    """NOT_FOUND alone is no mismatch (some backends find no face in a picture), and some say in words only."""
    said = status.details.strip()
    lowered = said.lower()
    if status.code is Code.NOT_FOUND and "model identity mismatch" in lowered:
        return errors.OtherModelLoaded(address, said)
    if status.code in _BY_CODE:
        return _BY_CODE[status.code](address, said)
    if "model not loaded" in lowered:
        return errors.ModelNotLoaded(address, said)
    if "unimplemented" in lowered:
        return errors.NotOffered(address, said)
    return errors.BackendFailed(address, said)
