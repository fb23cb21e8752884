"""Sessions of the web page: the cookie and its token, the secret against cross-site requests, bodies and answers.

The cookie holds a random token. Only its hash is stored and sent to gateways. The secret that a page must send along
with every change is made of the token, so it is stored nowhere, and of no use without the cookie.
"""

import base64
import hashlib
import hmac
import re
from typing import Final

import msgspec

from corral.base.ids import new_secret
from corral.wire.keys import hash_secret

_COOKIE: Final = "corral_session"
_FLEET_LETTERS: Final = 8
CSRF_HEADER: Final = "x-corral-csrf"
SESSION_SCOPE: Final = "session"
"""Stands in the view for gateways in place of a key's scopes: it opens no model, and control decides what the session
may do."""
SESSION_EXPIRED: Final = "session_expired"
"""The code of a refusal for a cookie of an unknown or ended session: the user can sign in again."""
SESSION_EXPIRED_MESSAGE: Final = "this session is over, or was never one of this fleet; sign in again"
_IN_COOKIE: Final = re.compile(rf"(?:^|[;,])[ \t]*{_COOKIE}(?:_[a-z2-7]{{{_FLEET_LETTERS}}})?=\"?([^;,\" \t]*)")
"""Sessions of the version before have no fleet in the name of their cookie, and are as good."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_MOST_TOKENS: Final = 8
"""Tokens of one request that are looked up. A browser has one for each fleet on this host name; more come from cookies
that others have planted."""


def new_token() -> str:
    return new_secret()


def cookie_name(pin: str) -> str:
    """Return the name of the cookie for the fleet with this pin.

    Cookies know no ports: with one name for all, signing in to one of two fleets on a host would sign out of the other.
    """
    return f"{_COOKIE}_{pin[:_FLEET_LETTERS]}"


def hash_token(token: str) -> str:
    """Never the hash of an API key: a token that is presented as a key opens nothing."""
    return hash_secret(f"session {token}")


def csrf_of(token: str) -> str:
    """Return the secret that pages send along with every change."""
    digest = hmac.digest(token.encode(), b"corral cross-site requests", hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def has_session(cookies: str) -> bool:
    """Whether a `Cookie` header has a session of ours, be it valid or not."""
    return _IN_COOKIE.search(cookies) is not None


def tokens_in(cookies: str) -> list[str]:
    """Return the different tokens in a `Cookie` header, without what cannot be one."""
    tokens = dict.fromkeys(text for text in _IN_COOKIE.findall(cookies) if _TOKEN.fullmatch(text))
    return list(tokens)[:_MOST_TOKENS]


class SignIn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of `POST /api/v1/session`: either a key, or a name with its password."""

    key: str = ""
    name: str = ""
    password: str = ""


class SessionView(msgspec.Struct, kw_only=True):
    """A session as its own page sees it."""

    id: str
    user: str
    """Empty for a session by a key of nobody in particular."""
    key_name: str
    """The name of the key that opened it; empty for one by name and password."""
    scopes: list[str]
    permissions: list[str]
    models: list[str] | None
    """The only models that it may ask; null: all."""
    csrf: str
    """To be sent as `X-Corral-CSRF` with every request but GET and HEAD."""
    expires_at: str
    fleet: str
    """What to call this fleet: the host of `public_url`, or the name of the frontend's machine."""
    version: str
    unconfirmed_gateways: list[str] = []
    """Gateways that did not say within two seconds that they know it; it may not work there yet."""


class InferenceKey(msgspec.Struct, kw_only=True):
    """A short-lived key of scope inference, which ends with its session."""

    key: str
    expires_at: str
    unconfirmed_gateways: list[str] = []
    """Gateways that did not say within two seconds that they know it; it may not work there yet."""


class ListedSession(msgspec.Struct, kw_only=True):
    """A session as administrators see it."""

    id: str
    user: str
    """Empty for a session by a key of nobody in particular."""
    key_name: str
    """The name of the key that opened it; empty for one by name and password."""
    key_id: str
    scopes: list[str]
    source: str
    """The address that it was opened from."""
    agent: str
    """What the browser called itself, shortened."""
    created_at: str
    expires_at: str
    state: str
    """`active`, `expired` or `ended`."""
    is_own: bool
    """Whether it is the session with which this list was asked for."""


class EndedSession(msgspec.Struct, kw_only=True):
    """The answer to the end of a session that some gateways did not confirm."""

    id: str
    unconfirmed_gateways: list[str]
    """Gateways that did not say within two seconds that they refuse it. Control refuses it already."""
