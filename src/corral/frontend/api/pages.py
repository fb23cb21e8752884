"""The pages without a key: the card, and the OpenAPI description. `web_page.py` has the web page."""

from functools import cache, partial
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec, answer
from corral.wire.refusals import NO_FRAMES


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
    _public("/docs", reference, "The API in readable form.", codes={200: "HTML"}, media="text/html"),
    _public("/openapi.json", openapi, "The OpenAPI description.", codes={200: "JSON"}, gives=dict[str, object]),
]
