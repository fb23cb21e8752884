"""Paths that name a model, as clients of Azure and old clients of OpenAI write them. Each stands for a route of `/v1/`
whose body names the model.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from corral.gateway.admit import asked_in_json, form_boundary, model_parts
from corral.gateway.engine_requests import rename_in_json
from corral.wire.models import ROUTE_USES
from corral.wire.refusals import OPENAI_PATHS

_OPENAI: Final = OPENAI_PATHS.encode()
_AZURE: Final = b"/openai/"
_ROUTES: Final = b"|".join(
    re.escape(route.removeprefix(OPENAI_PATHS)).encode() for route in ROUTE_USES if route.startswith(OPENAI_PATHS)
)
_NAMED: Final = re.compile(rb"/(?:openai/deployments|(?:v1/)?engines)/(.+?)/(%b)" % _ROUTES)
"""A path with the name of a model, which may have slashes, and the end of a route's path."""
_BLANKS: Final = b" \t\r\n"


class PlainRoute(NamedTuple):
    """The route that such a path stands for."""

    path: bytes
    model: str
    """Empty where the path names none."""


def plain_route(path: bytes) -> PlainRoute | None:
    """Return what the path stands for; None when it is not such a path."""
    if (named := _NAMED.fullmatch(path)) is not None:
        return PlainRoute(_OPENAI + named[2], unquote_to_bytes(named[1]).decode(errors="replace"))
    if not path.startswith(_AZURE):
        return None
    rest = path.removeprefix(_AZURE.rstrip(b"/"))
    return PlainRoute(rest if rest.startswith(_OPENAI) else _OPENAI + rest.lstrip(b"/"), "")


def name_in_json(body: bytes, model: str) -> bytes:
    """Return the JSON object with this model. Raise `GatewayRefusal` when the body is none, or has `model` twice."""
    if asked_in_json(body).model:
        return b"".join(rename_in_json(body, model))
    begin = body.index(b"{") + 1
    rest = body[begin:].lstrip(_BLANKS)
    comma = b"" if rest.startswith(b"}") else b","
    return b'{"model":%b%b%b' % (msgspec.json.encode(model), comma, rest)


def name_in_form(lines: Sequence[bytes], body: bytes, model: str) -> bytes:
    """Return the multipart form with this value of its field `model`, which comes first where it had none. Raise
    `GatewayRefusal` when the body is no form."""
    part = next(model_parts(lines, body), None)
    if part is not None:
        return body[: part[0]] + model.encode() + body[part[1] :]
    mark = b"--" + form_boundary(lines)
    field = b'%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % (mark, model.encode())
    return field + body[body.index(mark) :]
