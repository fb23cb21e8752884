"""Bodies of requests: asked for, and got rid of."""

import asyncio
from typing import Final

from aiohttp import web

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_INVITED: Final = web.RequestKey("invited", bool)


def invite(request: web.BaseRequest) -> None:
    """Have the body sent, if the client asked first: so whoever is refused need not send it."""
    if _asks_first(request) and request.transport is not None:
        request.transport.write(_CONTINUE)
        request[_INVITED] = True


async def drain(request: web.BaseRequest, *, seconds: float) -> None:
    """Read on and forget, so that the sender comes to see its answer."""
    if _asks_first(request) and _INVITED not in request:
        return
    try:
        async with asyncio.timeout(seconds):
            while await request.content.readany():
                pass
    except (TimeoutError, ConnectionError, web.RequestPayloadError):
        return


def _asks_first(request: web.BaseRequest) -> bool:
    return request.headers.get("Expect", "").lower() == "100-continue"
