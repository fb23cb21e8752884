"""Streamed responses. The status is sent with the first piece, so a failure before it still gets its own status."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from aiohttp import web

from corral.adapter.dialects.answers import error_event
from corral.adapter.errors import failure_of, words_of
from corral.base.errors import CorralError

log = logging.getLogger(__name__)

_EVENTS: Final = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


async def stream_events(request: web.Request, events: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """Send events. A failure in the middle becomes the last event."""
    async with aclosing(events) as parts:
        response = await _begun(request, parts, _EVENTS)
        try:
            await _pass_on(response, parts)
        except CorralError as error:
            _tell(error)
            failure = failure_of(error)
            await response.write(error_event(words_of(error), kind=failure.kind, code=failure.code))
        await response.write_eof()
    return response


async def stream_sound(
    request: web.Request, sound: AsyncGenerator[bytes, None], headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send audio. A failure in the middle resets the connection, so that partial audio is not taken for complete."""
    async with aclosing(sound) as parts:
        response = await _begun(request, parts, headers)
        try:
            await _pass_on(response, parts)
        except CorralError as error:
            _tell(error)
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
    return response


async def _begun(
    request: web.Request, parts: AsyncGenerator[bytes, None], headers: Mapping[str, str]
) -> web.StreamResponse:
    first = await anext(parts, b"")
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    await response.write(first)
    return response


async def _pass_on(response: web.StreamResponse, parts: AsyncGenerator[bytes, None]) -> None:
    async for part in parts:
        if part:
            await response.write(part)


def _tell(error: CorralError) -> None:
    log.warning("stream broken: %s", error, extra={"event": "adapter.stream_broken"})
