"""Bodies of requests: asked for, taken, and got rid of."""

import asyncio
import math
from typing import Final

from aiohttp import web

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_INVITED: Final = web.RequestKey("invited", bool)
_TAKEN: Final = web.RequestKey("taken", bool)


def invite(request: web.BaseRequest) -> None:
    """Have the body sent, if the client asked first: so whoever is refused need not send it."""
    if _asks_first(request) and request.transport is not None:
        request.transport.write(_CONTINUE)
        request[_INVITED] = True


def mark_taken(request: web.BaseRequest, *, is_whole: bool) -> None:
    """The body was read past the event loop, which therefore can make nothing of this connection any more."""
    request[_TAKEN] = is_whole


def is_left(request: web.BaseRequest) -> bool:
    """Is there something of the body that nobody has read?"""
    return request.body_exists and not request.content.is_eof() and not request.get(_TAKEN, False)


def is_spoilt(request: web.BaseRequest) -> bool:
    """The connection cannot be used for another request."""
    return _TAKEN in request


async def drain(request: web.BaseRequest, *, seconds: float, at_most: float = math.inf) -> None:
    """Read on and forget, until this many seconds have passed or bytes have come: so the sender sees its answer."""
    if _asks_first(request) and _INVITED not in request:
        return
    if is_spoilt(request) and request.transport is not None:
        request.transport.resume_reading()
    try:
        async with asyncio.timeout(seconds):
            while request.content.total_bytes < at_most and await request.content.readany():
                pass
    except (TimeoutError, ConnectionError, web.RequestPayloadError):
        return


def _asks_first(request: web.BaseRequest) -> bool:
    return request.headers.get("Expect", "").lower() == "100-continue"
