"""Whether a request with the cookie of a session comes from Corral's own page, and not from a page of another site that
makes the browser send it."""

from collections.abc import Mapping
from hmac import compare_digest
from typing import Final
from urllib.parse import urlsplit

from corral.wire.sessions import CSRF_HEADER

_READING: Final = frozenset({"GET", "HEAD"})
_PORTS: Final = {"http": 80, "https": 443}
_SHOWN: Final = 200
_SITE_HEADER: Final = "sec-fetch-site"
_OWN_PAGE: Final = "same-origin"


def foreign_origin(headers: Mapping[str, str], *, is_secure: bool) -> str | None:
    """Say why the page that sends this is none of this host; None when it is, or when no browser says where it comes
    from. `is_secure`: the request came over TLS, as far as this process knows.

    Over TLS, browsers themselves say whether a page asks its own host, which pages cannot forge: so a proxy may write
    another Host.
    """
    origin = headers.get("origin")
    if origin is None or headers.get(_SITE_HEADER) == _OWN_PAGE:
        return None
    host = headers.get("host", "")
    if _is_same(origin, host, is_secure=is_secure):
        return None
    asked = f"the host {host[:_SHOWN]!r} was asked" if host else "no host was named"
    text = f"a page of {origin[:_SHOWN]!r} may not act with the session of this one; {asked}"
    return f"{text}. A proxy in between has to pass the Host header on as it came, or to speak TLS with browsers"


def cross_site_problem(method: str, headers: Mapping[str, str], *, csrf: str, is_secure: bool) -> str | None:
    """Say why a request with the cookie of a session is refused; None for one of our own page.

    Also reading is refused to pages of other origins: what they may read must not depend on who visits them.
    """
    problem = foreign_origin(headers, is_secure=is_secure)
    if problem is not None or method in _READING:
        return problem
    if compare_digest(headers.get(CSRF_HEADER, "").encode(), csrf.encode()):
        return None
    return "a change with a session needs the header X-Corral-CSRF, with the `csrf` that GET /api/v1/session tells"


def is_page_secure(headers: Mapping[str, str]) -> bool:
    """Whether the browser speaks TLS, be it with a proxy in between: then its page has such an origin."""
    return headers.get("origin", "").lower().startswith("https://")


def _is_same(origin: str, host: str, *, is_secure: bool) -> bool:
    try:
        ours = urlsplit(f"//{host.strip()}")
        theirs = urlsplit(origin.strip())
        default = _PORTS.get(theirs.scheme)
        if default is None or not host or (is_secure and theirs.scheme != "https"):
            return False
        # A host without a port means that of the scheme, which behind a proxy with TLS only the browser knows.
        return theirs.hostname == ours.hostname and (theirs.port or default) == (ours.port or default)
    except ValueError:  # a port that is no number, or brackets that do not match
        return False
