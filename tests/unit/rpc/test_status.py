"""What codes and texts of the contract mean."""

import grpc
import pytest

from corral.rpc import errors
from corral.rpc.status import error_for

CASES = [
    (grpc.StatusCode.FAILED_PRECONDITION, "echo: model not loaded", errors.ModelNotLoaded),
    (grpc.StatusCode.FAILED_PRECONDITION, "", errors.ModelNotLoaded),
    (grpc.StatusCode.UNKNOWN, "Model Not Loaded", errors.ModelNotLoaded),
    (grpc.StatusCode.NOT_FOUND, 'x: Model identity mismatch: loaded "a", requested "b"', errors.OtherModelLoaded),
    (grpc.StatusCode.NOT_FOUND, "no face found", errors.BackendFailed),
    (grpc.StatusCode.INTERNAL, "model identity mismatch", errors.BackendFailed),
    (grpc.StatusCode.UNIMPLEMENTED, "", errors.NotOffered),
    (grpc.StatusCode.UNKNOWN, "unimplemented", errors.NotOffered),
    (grpc.StatusCode.UNAUTHENTICATED, "invalid token", errors.TokenRefused),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "", errors.ReplyTooLarge),
    (grpc.StatusCode.UNAVAILABLE, "connection refused", errors.BackendGone),
    (grpc.StatusCode.CANCELLED, "", errors.BackendGone),
    (grpc.StatusCode.DEADLINE_EXCEEDED, "", errors.BackendBusy),
    (grpc.StatusCode.INVALID_ARGUMENT, "too long", errors.RequestRefused),
    (grpc.StatusCode.INTERNAL, "boom", errors.BackendFailed),
    (grpc.StatusCode.UNKNOWN, "boom", errors.BackendFailed),
]


@pytest.mark.parametrize(("code", "details", "kind"), CASES)
def test_a_status_becomes_the_error_that_says_what_to_do(
    code: grpc.StatusCode, details: str, kind: type[errors.BackendError]
) -> None:
    error = error_for("127.0.0.1:1", code, details)
    assert type(error) is kind
    assert error.said == details


def test_only_what_may_pass_by_itself_is_worth_another_try() -> None:
    retryable = {kind for _, _, kind in CASES if kind.retryable}
    assert retryable == {errors.BackendBusy, errors.BackendGone, errors.ModelNotLoaded}
