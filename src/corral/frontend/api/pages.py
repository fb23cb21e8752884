"""The pages without a key: the card, and the OpenAPI description, made from the list of routes. `web_page.py` has the
web page."""

import re
from collections.abc import Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from corral import __version__
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec, answer
from corral.wire.refusals import NO_FRAMES

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_KEY: list[dict[str, list[str]]] = [{"key": []}]
_SECURITY: dict[Access | Permission, list[dict[str, list[str]]]] = {
    Access.PUBLIC: [],
    Access.WORKER: [{"node": []}],
}


def describe(routes: Sequence[RouteSpec]) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.takes, route.gives) if kind is not None]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=_anything
    )
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Corral", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "an API key"},
                "node": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "the registration token, or a node's own secret",
                },
            },
        },
    }


def _anything(kind: type) -> dict[str, Any]:
    """Plain JSON of any form."""
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError(f"{kind} has no JSON form")


def _operation(route: RouteSpec, schema_of: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "security": _SECURITY.get(route.access, _KEY),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in _PARAMETER.findall(route.path)
            ),
            *(
                {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
                for name, text in route.query.items()
            ),
        ],
        "responses": {str(code): {"description": text} for code, text in all_codes(route).items()},
    }
    if route.gives is not None:
        good = str(min(route.codes))
        operation["responses"][good]["content"] = {"application/json": {"schema": schema_of[repr(route.gives)]}}
    if route.takes is not None:
        operation["requestBody"] = {"content": {"application/json": {"schema": schema_of[repr(route.takes)]}}}
    return operation


def all_codes(route: RouteSpec) -> dict[int, str]:
    """What the handler answers, and what stands before every handler."""
    codes = dict(route.codes)
    if (permission := route.permission) is not None:
        missing = f"the key lacks the permission {permission}"
        codes |= {401: "no key, or one that is unknown, expired or revoked", 403: missing}
    if route.access is not Access.PUBLIC:
        codes |= {503: "the database is away; try again"}
    if route.takes is not None or (route.method in ("PUT", "PATCH") and route.path.endswith("/labels")):
        codes |= {413: "the body is too large"}
    return dict(sorted(codes.items()))


async def openapi(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(request.app.state.openapi())


async def reference(context: AdminContext, request: Request, caller: Caller) -> Response:
    return _page("reference.html")


async def home(context: AdminContext, request: Request, caller: Caller) -> Response:
    """A card that says what this is and where to go, for programs."""
    return _page("home.html")


def _page(name: str) -> Response:
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
    return HTMLResponse(_text(name), headers={"Content-Security-Policy": f"{policy}; {NO_FRAMES}"})


@cache
def _text(name: str) -> str:
    return (files("corral.frontend.api") / "static" / name).read_text(encoding="utf-8")


_public = partial(RouteSpec, "GET", access=Access.PUBLIC)

ROUTES = [
    _public("/docs", reference, "The API in readable form.", codes={200: "HTML"}),
    _public("/openapi.json", openapi, "The OpenAPI description.", codes={200: "JSON"}),
]
