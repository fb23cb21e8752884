"""Answers as the wire demands them: JSON bodies, and the three shapes that errors have."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from corral.base.errors import CorralError, InvalidInput
from corral.wire.refusals import BEARER_REQUIRED, KEY_REQUIRED, node_refusal

_encoder = msgspec.json.Encoder()

STATUS_OF_CODE: Mapping[str, int] = {
    "invalid_input": 400,
    "access_denied": 403,
    "not_found": 404,
    "node_gone": 404,
    "conflict": 409,
    "node_pending": 409,
    "precondition_failed": 412,
    "database_unavailable": 503,
    "bus_unavailable": 503,
    "no_responders": 503,
    "bus_timeout": 504,
    "galleries_unread": 503,
}
"""HTTP status by the `code` of an error; what is not listed is a 500."""
_RETRY_AFTER_SECONDS = "2"


def answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encoder.encode(body), status, headers=headers, media_type="application/json")


def no_content() -> Response:
    return Response(status_code=204)


def node_error(status: int, message: str) -> Response:
    """An error of LocalAI's node routes."""
    return answer(node_refusal(status, message), status)


def worker_denied(message: str) -> Response:
    """What a worker with a wrong or missing token gets."""
    return answer({"error": message}, 401)


def bearer_required() -> Response:
    """What a worker without a token gets."""
    return answer(BEARER_REQUIRED, 401)


def key_required() -> Response:
    return answer(KEY_REQUIRED, 401, {"WWW-Authenticate": "Bearer"})


def key_lacks_scope(scope: str) -> Response:
    message = f"this key may not do that; it needs the scope {scope}"
    return answer({"error": {"code": 403, "message": message, "type": "authorization_error"}}, 403)


def native_error(error: CorralError, status: int | None = None) -> Response:
    """An error of Corral's own routes: a code for machines, a sentence for people, the field where there is one."""
    body: dict[str, object] = {"code": error.code, "message": error.message}
    if isinstance(error, InvalidInput) and error.field:
        body["field"] = error.field
    return answer({"error": body}, *_status_and_headers(error, status))


def compat_error(error: CorralError, status: int | None = None, *, type: str = "node_error") -> Response:
    """An error that no LocalAI route words itself."""
    code, headers = _status_and_headers(error, status)
    return answer({"error": {"code": code, "message": error.message, "type": type}}, code, headers)


def page_error(error: CorralError, status: int | None = None) -> Response:
    """An error of the routes behind LocalAI's pages."""
    code, headers = _status_and_headers(error, status)
    return answer({"error": error.message}, code, headers)


def _status_and_headers(error: CorralError, status: int | None) -> tuple[int, dict[str, str]]:
    code = status or STATUS_OF_CODE.get(error.code, 500)
    return code, {"Retry-After": _RETRY_AFTER_SECONDS} if error.retryable else {}
