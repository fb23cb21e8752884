"""From a gRPC status to one of our errors. What LocalAI's own client reads from codes and texts is read here too."""

from typing import Final

import grpc

from corral.rpc import errors

_BY_CODE: Final[dict[grpc.StatusCode, type[errors.BackendError]]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.BackendBusy,
    grpc.StatusCode.UNAVAILABLE: errors.BackendGone,
    grpc.StatusCode.CANCELLED: errors.BackendGone,  # our own cancellations never get here: the process is ending
    grpc.StatusCode.FAILED_PRECONDITION: errors.ModelNotLoaded,
    grpc.StatusCode.UNIMPLEMENTED: errors.NotOffered,
    grpc.StatusCode.UNAUTHENTICATED: errors.TokenRefused,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ReplyTooLarge,
    grpc.StatusCode.INVALID_ARGUMENT: errors.RequestRefused,
    grpc.StatusCode.OUT_OF_RANGE: errors.RequestRefused,
}


def error_for(address: str, code: grpc.StatusCode, details: str) -> errors.BackendError:
    """NOT_FOUND alone is no mismatch (some backends find no face in a picture), and some say in words only."""
    said = details.strip()
    lowered = said.lower()
    if code is grpc.StatusCode.NOT_FOUND and "model identity mismatch" in lowered:
        return errors.OtherModelLoaded(address, said)
    if code in _BY_CODE:
        return _BY_CODE[code](address, said)
    if "model not loaded" in lowered:
        return errors.ModelNotLoaded(address, said)
    if "unimplemented" in lowered:
        return errors.NotOffered(address, said)
    return errors.BackendFailed(address, said)
