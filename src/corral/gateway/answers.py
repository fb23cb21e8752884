"""Responses that the gateway writes itself, in the error format of OpenAI, Anthropic, Ollama or LocalAI."""

import math
from collections.abc import Collection, Mapping
from enum import Enum
from http import HTTPStatus
from typing import Final, Self

import msgspec

from corral.adapter.dialects.engine_errors import anthropic_error
from corral.wire.keys import Scope
from corral.wire.models import REASON_SENTENCES, LoadReason
from corral.wire.refusals import SAFETY_HEADERS, error_type
from corral.wire.refusals import Refusal as LocalAiRefusal
from corral.wire.view import Loading

_encoder: Final = msgspec.json.Encoder()
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_SOONEST: Final = 1
_LATEST: Final = 300
"""Upper bound of `Retry-After` in seconds, as in LocalAI."""
_SEEING_LOGS: Final = frozenset({Scope.ADMIN.value, Scope.OPERATOR.value})
_SAFETY: Final = [f"{name}: {value}".encode() for name, value in SAFETY_HEADERS.items()]
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Answer:
    """A complete response: raw bytes, or any value that is encoded as JSON."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int,
        body: object,
        headers: Mapping[str, str] | None = None,
        *,
        content_type: str = "application/json",
    ) -> None:
        self.status = status
        self.body = body if isinstance(body, bytes) else _encoder.encode(body)
        self.headers = headers or {}
        self.content_type = content_type

    def as_bytes(self, *, closes: bool, is_head: bool, added: bytes) -> bytes:
        """Return the whole response. `added` are complete header lines."""
        lines = [b"HTTP/1.1 %d %s" % (self.status, _REASONS.get(self.status, b""))]
        if self.status != HTTPStatus.NO_CONTENT:
            lines.append(b"Content-Type: " + self.content_type.encode("latin-1"))
            lines.append(b"Content-Length: %d" % len(self.body))
        lines += (f"{name}: {value}".encode("latin-1") for name, value in self.headers.items())
        lines += _SAFETY
        if closes:
            lines.append(b"Connection: close")
        return b"\r\n".join([*lines, added + b"\r\n"]) + (b"" if is_head else self.body)


class ErrorShape(Enum):
    """Whose clients read an error."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"


class GatewayRefusal(Exception):
    """The gateway does not relay this request; holds the error response for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.closes = closes
        """Whether the connection must be closed: what follows cannot be trusted or is not worth reading."""
        self._type = error_type(status)
        self._param = param
        self._headers = headers
        self._more: dict[str, object] = {}
        self._body: object = None

    def answer(self, request_id: bytes, *, shape: ErrorShape = ErrorShape.OPENAI) -> Answer:
        if self._body is not None:
            return Answer(self.status, self._body, self._headers)
        more = {"request_id": request_id.decode(), **self._more}
        match shape:
            case ErrorShape.ANTHROPIC:
                body = anthropic_error(self.status, str(self))
            case ErrorShape.OLLAMA:
                body = {"error": str(self)}
            case ErrorShape.OPENAI:
                error = {"message": str(self), "type": self._type, "param": self._param, "code": self.code}
                body = {"error": error}
        return Answer(self.status, body | more, self._headers)

    @classmethod
    def bad_framing(cls, reason: str) -> Self:
        return cls(400, f"this is not a well-formed HTTP request: {reason}", code="malformed_http", closes=True)

    @classmethod
    def busy(cls, status: int, message: str, *, code: str, retry_after: int = 2, closes: bool = False) -> Self:
        return cls(status, message, code=code, headers={"Retry-After": str(retry_after)}, closes=closes)

    @classmethod
    def by_localai(
        cls, status: int, body: LocalAiRefusal, *, code: str, headers: Mapping[str, str] | None = None
    ) -> Self:
        """Return a refusal whose body has the shape that LocalAI uses on its own routes."""
        message = body.error if isinstance(body.error, str) else body.error.message
        refusal = cls(status, message, code=code, headers=headers)
        refusal._body = body
        return refusal

    @classmethod
    def loading(cls, loading: Loading, scopes: Collection[str]) -> Self:
        """Return the 503 for a model that is loading or failed to load, with the details that keys of these scopes
        may see."""
        loading = shown_to(loading, scopes)
        code = "model_load_failed" if loading.state == "failed" else "model_loading"
        seconds = loading.retry_after_seconds if loading.eta_seconds is None else math.ceil(loading.eta_seconds)
        retry_after = min(max(seconds, _SOONEST), _LATEST)
        refusal = cls.busy(503, _load_status(loading), code=code, retry_after=retry_after)
        refusal._type = code
        refusal._more = {"loading": loading.for_client()}
        return refusal


def shown_to(loading: Loading, scopes: Collection[str]) -> Loading:
    """Return the load status as a key with these scopes may see it: complete for administrators and operators.

    Others see progress and a plain reason. Paths, ports, node names, gallery URLs and engine output are left out,
    whatever control reports.
    """
    if not _SEEING_LOGS.isdisjoint(scopes):
        return loading
    is_known = loading.reason in REASON_SENTENCES
    return Loading(
        model=loading.model,
        state=loading.state,
        progress=loading.progress,
        bytes_sent=loading.bytes_sent,
        total_bytes=loading.total_bytes,
        file_index=loading.file_index,
        total_files=loading.total_files,
        bytes_per_second=loading.bytes_per_second,
        eta_seconds=loading.eta_seconds,
        step=loading.step,
        step_seconds=loading.step_seconds,
        is_permanent=loading.is_permanent,
        retry_in_seconds=loading.retry_in_seconds,
        reason=loading.reason if is_known else "",
        message=REASON_SENTENCES[LoadReason(loading.reason)] if is_known else "",
        retry_after_seconds=loading.retry_after_seconds,
    )


def _load_status(loading: Loading) -> str:
    why = f": {loading.message}" if loading.message else ""
    if loading.state == "failed":
        lines = "".join(f"\n    {line}" for line in loading.engine_lines)
        text = f"model {loading.model} cannot be loaded{why}{_again(loading)}"
        return text + (f"\nThe engine's last lines:{lines}" if lines else "")
    where = f" on node {loading.node}" if loading.node else ""
    return f"model {loading.model} is {loading.state}{where}{why}"


def _again(loading: Loading) -> str:
    """When it makes sense to ask again."""
    if loading.is_permanent:
        return "; this does not pass by itself: the model, its files or its engine have to be changed"
    if loading.retry_in_seconds is not None:
        return f"; a request in {loading.retry_in_seconds} s tries it again"
    return ""
