"""The pages without a key: the web page, the card for programs, and the description of the API.

The files of the web page are below `/ui/`; they are read once and kept in memory.
"""

import asyncio
import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from corral.base.errors import NotFound
from corral.base.ids import new_secret
from corral.frontend.api.route import Access, AdminContext, Caller, RouteSpec, answer
from corral.wire.refusals import NO_FRAMES

ASSETS: Final = "assets/"
"""Files below this folder have a digest in their names: under one name there is never another content."""
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".gif": "image/gif",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".mp3": "audio/mpeg",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
    ".wav": "audio/wav",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
_UNKNOWN_TYPE: Final = "application/octet-stream"
_COMPRESSED: Final = frozenset(
    {".css", ".html", ".js", ".json", ".map", ".mjs", ".svg", ".txt", ".wasm", ".webmanifest"}
)
_NAME: Final = re.compile(r"(?:[A-Za-z0-9_@+~-][A-Za-z0-9._@+~-]*/)*[A-Za-z0-9_@+~-][A-Za-z0-9._@+~-]*")
"""No part of a path begins with a dot, is empty, or has a sign that some file system reads in another way."""
_LONGEST_NAME: Final = 256
_WORTHWHILE: Final = 1024
"""Shorter files are not compressed."""


class PageFile(msgspec.Struct, frozen=True, kw_only=True):
    content: bytes
    gzipped: bytes | None
    """None where that would not be shorter."""
    digest: str
    media_type: str
    stamp: tuple[int, int]
    """When it was changed, and its size: another stamp means another content."""


class PageFiles:
    """Serves one folder and nothing outside of it. Memory is bounded by what is in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cache: dict[str, PageFile] = {}

    async def find(self, name: str) -> PageFile | None:
        """The file with this path below the folder; None when there is none. Files that may change are looked at each
        time, in a thread."""
        if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
            return None
        cached = self._cache.get(name)
        if cached is not None and name.startswith(ASSETS):
            return cached
        file = await asyncio.to_thread(self._load, name, cached)
        if file is not None:
            self._cache[name] = file
        return file

    def _load(self, name: str, cached: PageFile | None) -> PageFile | None:
        path = self._folder / name
        try:
            # A link that somebody put into the folder must not lead out of it.
            if not path.resolve().is_relative_to(self._folder.resolve()) or not path.is_file():
                return None
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if cached is not None and cached.stamp == stamp:
                return cached
            return _made(path.suffix, path.read_bytes(), stamp)
        except OSError:  # gone since, or not ours to read: then there is no such file
            return None


def _made(suffix: str, content: bytes, stamp: tuple[int, int]) -> PageFile:
    gzipped = None
    if suffix in _COMPRESSED and len(content) >= _WORTHWHILE:
        gzipped = gzip.compress(content, mtime=0)
    return PageFile(
        content=content,
        gzipped=gzipped if gzipped is not None and len(gzipped) < len(content) else None,
        digest=hashlib.sha256(content).hexdigest()[:32],
        media_type=MEDIA_TYPES.get(suffix, _UNKNOWN_TYPE),
        stamp=stamp,
    )


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


def _file_answer(name: str, file: PageFile, request_headers: Mapping[str, str]) -> Response:
    headers = _headers(_FOREVER if name.startswith(ASSETS) else _ASK_EACH_TIME, _ASSET_POLICY)
    body, tag = file.content, f'"{file.digest}"'
    if file.gzipped is not None:
        headers["Vary"] = "Accept-Encoding"
        if _accepts(request_headers, "gzip", header="accept-encoding"):
            body, tag = file.gzipped, f'"{file.digest}-gzip"'
            headers["Content-Encoding"] = "gzip"
    headers["ETag"] = tag
    if _has_it(request_headers.get("if-none-match", ""), tag):
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


def _accepts(headers: Mapping[str, str], media_type: str, *, header: str = "accept") -> bool:
    """Whether a header names exactly this, and not only by a wildcard, with any weight but 0."""
    for choice in headers.get(header, "").lower().split(","):
        name, *parameters = (part.strip() for part in choice.split(";"))
        if name == media_type:
            return not any(_NO_WEIGHT.fullmatch(parameter) for parameter in parameters)
    return False


# The card, and the description of the API.


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
_html = partial(_public, media="text/html")
_WAY = {200: "HTML for programs: a card that says what this is and where to go", 302: "browsers are led to the page"}

ROUTES: Sequence[RouteSpec] = [
    _html("/docs", reference, "The API in readable form.", codes={200: "HTML"}),
    _public("/openapi.json", openapi, "The OpenAPI description.", codes={200: "JSON"}, gives=dict[str, object]),
    _html("/", lead_browsers, "The way to the web page.", codes=_WAY),
    _html("/ui", lead_browsers, "The way to the web page.", codes=_WAY),
    _html(
        "/ui/{path:path}",
        page_file,
        "A file of the web page; the page itself for every other path.",
        codes={200: "the file", 304: "the browser has it already", 404: "no such file"},
    ),
]
