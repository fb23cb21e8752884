"""Responses of the adapter: errors in OpenAI's format, and streams.

The status of a stream is sent with the first piece, so a failure before it still gets its own status.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web

from corral.adapter.dialects.answers import Failure
from corral.adapter.dialects.engine_errors import refusal_in
from corral.adapter.dialects.requests import UnsupportedContent
from corral.adapter.forms import RequestTooLarge
from corral.adapter.node_files import NodeFilesUnusable
from corral.adapter.replicas import KeyUnknown
from corral.adapter.scratch import ScratchNotUsable
from corral.base.errors import CorralError, InvalidInput
from corral.rpc import errors
from corral.templates import TemplateFailed, TemplateRefused
from corral.wire.adapter import BACKEND_GONE_HEADER, MODEL_GONE_STATUS

log = logging.getLogger(__name__)

_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_TABLE: Final[tuple[tuple[type[CorralError], int, str], ...]] = (
    (KeyUnknown, 401, _INVALID),
    (RequestTooLarge, 413, _INVALID),
    (ScratchNotUsable, 507, _SERVER),
    (NodeFilesUnusable, 502, _SERVER),
    (InvalidInput, 400, _INVALID),
    (TemplateFailed, 400, _INVALID),
    (TemplateRefused, 400, _INVALID),
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
EVENTS: Final = "text/event-stream; charset=utf-8"
LINES: Final = "application/x-ndjson"
"""The type of a stream that has a JSON object in every line."""


class EventStream(msgspec.Struct, frozen=True, kw_only=True):
    """The events of an answer, in the pieces in which they are sent."""

    parts: AsyncGenerator[bytes, None]
    failed: Callable[[Failure], bytes]
    """Returns the last event if the stream fails in the middle."""
    closing: Callable[[], bytes] = bytes
    """Returns the last events, when all parts were sent: they share a write with the end of the answer."""
    content_type: str = EVENTS


def error_response(error: CorralError, *, about: str = "messages") -> web.Response:
    """Return the response for an error. `about` is the name of the field that holds the prompt."""
    failure = _failure(error, about=about)
    headers = {BACKEND_GONE_HEADER: "true"} if isinstance(error, errors.BackendGone) else None
    return web.Response(status=failure.status, body=failure.body(), content_type="application/json", headers=headers)


def _failure(error: CorralError, *, about: str) -> Failure:
    """Say what failed. It contains what the backend said, but never the backend's address."""
    status, kind, code, param = 500, _SERVER, error.code, None
    if isinstance(error, _TELLING) and (fault := refusal_in(error.said, about=about)):
        status, kind, code, param = 400, _INVALID, fault.code, fault.param
    elif isinstance(error, UnsupportedContent):
        status, kind, param = 400, _INVALID, about
    elif isinstance(error, errors.NotOffered):
        status, kind, code, param = 400, _INVALID, "unsupported_by_model", "model"
    else:
        param = error.field or None if isinstance(error, InvalidInput) else None
        for error_class, status_of_class, kind_of_class in _TABLE:
            if isinstance(error, error_class):
                status, kind = status_of_class, kind_of_class
                break
    message = error.message
    if isinstance(error, errors.BackendError):
        summary = (type(error).__doc__ or "").strip().splitlines()[0].rstrip(".")
        message = f"{summary}: {error.said}" if error.said else summary
    return Failure(status=status, message=message, type=kind, code=code, param=param)


async def stream_events(request: web.Request, stream: EventStream) -> web.StreamResponse:
    """Send events. A failure in the middle becomes the last event; no `[DONE]` follows."""
    async with aclosing(stream.parts) as parts:
        response = await _begun(request, parts, {"Content-Type": stream.content_type, "Cache-Control": "no-cache"})
        try:
            await _pass_on(response, parts)
            last = stream.closing()
        except CorralError as error:
            last = stream.failed(_failure(error, about="messages"))
        await response.write_eof(last)
    return response


async def stream_sound(
    request: web.Request, sound: AsyncGenerator[bytes, None], headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send audio. A failure in the middle resets the connection, so that partial audio is not taken for complete."""
    async with aclosing(sound) as parts:
        response = await _begun(request, parts, headers)
        try:
            await _pass_on(response, parts)
        except CorralError:
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
    return response


class _JoinedResponse(web.StreamResponse):
    """A response whose head is sent together with the first piece of its body."""

    _send_headers_immediately = False


async def _begun(
    request: web.Request, parts: AsyncGenerator[bytes, None], headers: Mapping[str, str]
) -> web.StreamResponse:
    first = await anext(parts, b"")
    response = _JoinedResponse(headers=headers)
    await response.prepare(request)
    await response.write(first)
    return response


async def _pass_on(response: web.StreamResponse, parts: AsyncGenerator[bytes, None]) -> None:
    try:
        async for part in parts:
            if part:
                await response.write(part)
    except CorralError as error:
        log.warning("stream broken: %s", error, extra={"event": "adapter.stream_broken"})
        raise
