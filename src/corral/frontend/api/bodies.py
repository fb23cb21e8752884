"""Bodies of LocalAI's routes, which name what is wrong with them in one way."""

from typing import TypeVar

import msgspec
from starlette.requests import Request

from corral.base.errors import InvalidInput
from corral.frontend.api.context import AdminContext
from corral.frontend.api.route import BodyTooLarge, read_body
from corral.wire.backends import read_galleries
from corral.wire.go_json import decode

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


async def read_compat(context: AdminContext, request: Request, struct: type[BodyT]) -> BodyT:
    """The field that is wrong is named after the words that LocalAI begins with."""
    try:
        return decode(await read_body(request, context.max_body), struct)
    except BodyTooLarge:
        raise
    except InvalidInput as error:
        raise InvalidInput("", f"invalid request body: {error.message}") from error


def checked_galleries(text: str, field: str) -> str:
    """JSON text of galleries for one request, as it came. It is refused here rather than by every node."""
    try:
        read_galleries(text)
    except InvalidInput as error:
        raise InvalidInput(field, error.problem) from error
    return text
