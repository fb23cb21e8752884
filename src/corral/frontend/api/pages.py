"""The few pages without a key: the way in, and a readable form of the OpenAPI description."""

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from corral.frontend.api.answers import answer
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, RouteSpec
from corral.wire.refusals import NO_FRAMES


async def openapi(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(request.app.state.openapi())


async def reference(context: AdminContext, request: Request, caller: Caller) -> Response:
    return _page("reference.html")


async def home(context: AdminContext, request: Request, caller: Caller) -> Response:
    return _page("home.html")


def _page(name: str) -> Response:
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
    return HTMLResponse(_text(name), headers={"Content-Security-Policy": f"{policy}; {NO_FRAMES}"})


@cache
def _text(name: str) -> str:
    return (files("corral.frontend.api") / "static" / name).read_text(encoding="utf-8")


ROUTES = [
    RouteSpec(
        method="GET",
        path="/",
        handler=home,
        access=Access.PUBLIC,
        summary="A page that says what this is and where to go.",
        codes={200: "HTML"},
    ),
    RouteSpec(
        method="GET",
        path="/docs",
        handler=reference,
        access=Access.PUBLIC,
        summary="The API in readable form.",
        codes={200: "HTML"},
    ),
    RouteSpec(
        method="GET",
        path="/openapi.json",
        handler=openapi,
        access=Access.PUBLIC,
        summary="The OpenAPI description.",
        codes={200: "JSON"},
    ),
]
