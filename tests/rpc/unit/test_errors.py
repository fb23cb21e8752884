"""What codes and texts of the contract mean."""

import pytest

from corral.rpc import errors
from corral.rpc.errors import error_for
from corral.rpc.grpc_client import Code, Status

CASES = [
    (Code.FAILED_PRECONDITION, "echo: model not loaded", errors.ModelNotLoaded),
    (Code.FAILED_PRECONDITION, "", errors.ModelNotLoaded),
    (Code.UNKNOWN, "Model Not Loaded", errors.ModelNotLoaded),
    (Code.NOT_FOUND, 'x: Model identity mismatch: loaded "a", requested "b"', errors.OtherModelLoaded),
    (Code.NOT_FOUND, "no face found", errors.BackendFailed),
    (Code.INTERNAL, "model identity mismatch", errors.BackendFailed),
    (Code.UNIMPLEMENTED, "", errors.NotOffered),
    (Code.UNKNOWN, "unimplemented", errors.NotOffered),
    (Code.UNAUTHENTICATED, "invalid token", errors.TokenRefused),
    (Code.RESOURCE_EXHAUSTED, "", errors.ReplyTooLarge),
    (Code.UNAVAILABLE, "connection refused", errors.BackendGone),
    (Code.CANCELLED, "", errors.BackendGone),
    (Code.DEADLINE_EXCEEDED, "", errors.BackendBusy),
    (Code.INVALID_ARGUMENT, "too long", errors.RequestRefused),
    (Code.INTERNAL, "boom", errors.BackendFailed),
    (Code.UNKNOWN, "boom", errors.BackendFailed),
]


@pytest.mark.parametrize(("code", "details", "kind"), CASES)
def test_a_status_becomes_the_error_that_says_what_to_do(
    code: Code, details: str, kind: type[errors.BackendError]
) -> None:
    error = error_for("127.0.0.1:1", Status(code, details))
    assert type(error) is kind
    assert error.said == details


def test_only_what_may_pass_by_itself_is_worth_another_try() -> None:
    retryable = {kind for _, _, kind in CASES if kind.retryable}
    assert retryable == {errors.BackendBusy, errors.BackendGone, errors.ModelNotLoaded}


def test_of_what_a_backend_says_at_length_the_beginning_and_the_end_are_told() -> None:
    error = errors.LoadFailed("127.0.0.1:1", "Traceback: " + "x" * 1_000_000 + " out of memory")
    assert error.said.startswith("Traceback: ")
    assert error.message.endswith(" out of memory")
    assert len(error.message) < 5000
