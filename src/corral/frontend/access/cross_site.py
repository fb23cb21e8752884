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
    """Explain why the request comes from a page of another host. None when it comes from a page of this host, or when
    no browser states its origin. `is_secure`: the request came over TLS, as far as this process knows.

    Over TLS, browsers themselves say whether a page asks its own host, which pages cannot forge: so a proxy may write
    another Host.
    """
    origin = headers.get("origin")
    if origin is None or headers.get(_SITE_HEADER) == _OWN_PAGE:
        return None
    host = headers.get("host", "")
    if _is_same(origin, host, is_secure=is_secure):
        return None
    named_host = f"the host {host[:_SHOWN]!r} was asked" if host else "no host was named"
    text = f"a page of {origin[:_SHOWN]!r} may not act with the session of this one; {named_host}"
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
        requested = urlsplit(f"//{host.strip()}")
        sender = urlsplit(origin.strip())
        default = _PORTS.get(sender.scheme)
        if default is None or not host or (is_secure and sender.scheme != "https"):
            return False
        # A host without a port means that of the scheme, which behind a proxy with TLS only the browser knows.
        return sender.hostname == requested.hostname and (sender.port or default) == (requested.port or default)
    except ValueError:  # a port that is no number, or brackets that do not match
        return False
