"""The web page: its files below `/ui/`, and the way there for browsers."""

import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import NotFound
from corral.base.ids import new_secret
from corral.frontend.api.page_files import ASSETS, MEDIA_TYPES, PageFile, PageFiles
from corral.frontend.api.pages import home
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec
from corral.wire.refusals import NO_FRAMES

PAGE: Final = "/ui/"
NONCE_MARK: Final = b"__CSP_NONCE__"
"""Stands in `index.html` where each answer has a nonce of its own."""
_INDEX: Final = "index.html"
_HTML: Final = "text/html"
_FOLDER: Final = Path(__file__).parent / "static" / "ui"
_FOREVER: Final = "public, max-age=31536000, immutable"
_ASK_EACH_TIME: Final = "no-cache"
_NEVER_KEPT: Final = "no-store"
_NEEDED: Final = re.compile(rb'(?:src|href)="/ui/([^"]+)"')
_NO_WEIGHT: Final = re.compile(r"q\s*=\s*0(?:\.0*)?")


def page_policy(nonce: str = "") -> str:
    """What the page may load: from this host alone. Styles that a script adds need the nonce of the answer."""
    styles = f"'self' 'nonce-{nonce}'" if nonce else "'self'"
    return (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data: blob:;"
        " media-src 'self' blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
        f" {NO_FRAMES}"
    )


_ASSET_POLICY: Final = page_policy()


@cache
def _page_files() -> PageFiles:
    """One for the process; nothing is read before somebody asks."""
    return PageFiles(_FOLDER)


async def lead_browsers(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Browsers get the page; programs get the card, as they always did."""
    if _accepts(request.headers, _HTML):
        return Response(status_code=302, headers={"Location": PAGE, "Cache-Control": _NEVER_KEPT, "Vary": "Accept"})
    card = await home(context, request, caller)
    card.headers["Vary"] = "Accept"
    return card


async def page_file(context: AdminContext, request: Request, caller: Caller) -> Response:
    """A file of the page; or the page itself for every path that is one of its views."""
    name, files = request.path_params["path"], _page_files()
    file = None if name == _INDEX else await files.find(name)
    if file is not None:
        return _file_answer(name, file, request.headers)
    if _asks_for_file(name, request.headers):
        raise NotFound(f"the page has no file {name[:200]!r}")
    index = await files.find(_INDEX)
    if index is None:
        raise NotFound("the page was not built; `make ui` builds it")
    return _index_answer(index)


async def missing_files() -> list[str] | None:
    """The files that the page needs at once and does not have; None where only a placeholder is there."""
    files = _page_files()
    index = await files.find(_INDEX)
    names = [] if index is None else [name.decode() for name in _NEEDED.findall(index.content)]
    return [name for name in names if await files.find(name) is None] if names else None


def _asks_for_file(name: str, headers: Mapping[str, str]) -> bool:
    """Whether a path that is no file was meant as one. Views have names of models and nodes in their paths, which may
    well end like a file's: then the browser says that it wants a page."""
    if name.startswith(ASSETS):
        return True
    return PurePosixPath(name).suffix in MEDIA_TYPES and name != _INDEX and not _accepts(headers, _HTML)


def _index_answer(index: PageFile) -> Response:
    nonce = new_secret()
    headers = _headers(_NEVER_KEPT, page_policy(nonce))
    return Response(index.content.replace(NONCE_MARK, nonce.encode()), headers=headers, media_type=index.media_type)


def _file_answer(name: str, file: PageFile, asked: Mapping[str, str]) -> Response:
    headers = _headers(_FOREVER if name.startswith(ASSETS) else _ASK_EACH_TIME, _ASSET_POLICY)
    body, tag = file.content, f'"{file.digest}"'
    if file.gzipped is not None:
        headers["Vary"] = "Accept-Encoding"
        if _accepts(asked, "gzip", header="accept-encoding"):
            body, tag = file.gzipped, f'"{file.digest}-gzip"'
            headers["Content-Encoding"] = "gzip"
    headers["ETag"] = tag
    if _has_it(asked.get("if-none-match", ""), tag):
        headers.pop("Content-Encoding", None)
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=file.media_type)


def _headers(cache_control: str, policy: str) -> dict[str, str]:
    return {
        "Cache-Control": cache_control,
        "Content-Security-Policy": policy,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


def _has_it(if_none_match: str, tag: str) -> bool:
    tags = {each.strip().removeprefix("W/") for each in if_none_match.split(",")}
    return tag in tags or "*" in tags


def _accepts(headers: Mapping[str, str], wanted: str, *, header: str = "accept") -> bool:
    """Whether a header names exactly this, and not only by a wildcard, with any weight but 0."""
    for choice in headers.get(header, "").lower().split(","):
        name, *parameters = (part.strip() for part in choice.split(";"))
        if name == wanted:
            return not any(_NO_WEIGHT.fullmatch(parameter) for parameter in parameters)
    return False


_public = partial(RouteSpec, "GET", access=Access.PUBLIC, media="text/html")
_WAY = {200: "HTML for programs: a card that says what this is and where to go", 302: "browsers are led to the page"}

ROUTES: Sequence[RouteSpec] = [
    _public("/", lead_browsers, "The way to the web page.", codes=_WAY),
    _public("/ui", lead_browsers, "The way to the web page.", codes=_WAY),
    _public(
        "/ui/{path:path}",
        page_file,
        "A file of the web page; the page itself for every other path.",
        codes={200: "the file", 304: "the browser has it already", 404: "no such file"},
    ),
]
