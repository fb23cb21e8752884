"""Bodies of requests, never larger than what fits into one message of the contract."""

from typing import Final

from aiohttp import web

from corral.base.errors import InvalidInput

MAX_BODY_BYTES: Final = 48 * 1024 * 1024
"""What fits into one message of the contract, with room for what is added."""


class BodyTooLarge(InvalidInput):
    """The request is too large."""

    code = "request_too_large"

    def __init__(self) -> None:
        super().__init__("", f"the body has more than {MAX_BODY_BYTES} bytes")


async def read_body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLarge from error
