"""A browser with a session, as far as servers can tell: it keeps the cookie, and its page sends Origin and secret."""

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from corral.wire.sessions import tokens_in

_HTTP_SECONDS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PageReply:
    status: int
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> object:
        """The code of an error."""
        return self.json()["error"]["code"]

    @property
    def token(self) -> str:
        """The token in the cookie that was set."""
        (token,) = tokens_in(self.headers["set-cookie"])
        return token

    @property
    def cookie(self) -> str:
        """Name and token, as browsers send them."""
        return self.headers["set-cookie"].partition(";")[0]


def ask_page(
    method: str,
    url: str,
    body: object = None,
    *,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> PageReply:
    """One request on a connection of its own. Nothing is followed, unpacked or added but the type of a body."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if tls is not None:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=_HTTP_SECONDS, context=tls
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_HTTP_SECONDS)
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {**({} if data is None else {"Content-Type": "application/json"}), **(headers or {})}
    try:
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, data, sent)
        response = connection.getresponse()
        answered = {name.lower(): value for name, value in response.getheaders()}
        return PageReply(status=response.status, headers=answered, body=response.read())
    finally:
        connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    url: str
    token: str
    cookie: str
    session: Mapping[str, Any]
    tls: ssl.SSLContext | None = None

    @classmethod
    def at(cls, url: str, credentials: Mapping[str, str], *, tls: ssl.SSLContext | None = None) -> Self:
        reply = ask_page("POST", f"{url}/api/v1/session", credentials, headers={"Origin": url}, tls=tls)
        assert reply.status == 201, reply.body
        return cls(url=url, token=reply.token, cookie=reply.cookie, session=reply.json(), tls=tls)

    def call(self, method: str, path: str, body: object = None, *, at: str = "", **headers: str) -> PageReply:
        """As the page calls the frontend that it comes from, or another one that is named by its URL."""
        url = at or self.url
        own = {"Origin": url, "Cookie": self.cookie, "X-Corral-CSRF": str(self.session["csrf"])}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask_page(method, url + path, body, headers=own | named, tls=self.tls)

    def is_in(self, *, at: str = "") -> bool:
        reply = self.call("GET", "/api/v1/session", at=at)
        assert reply.status == 200 or (reply.status, reply.code) == (401, "session_expired"), reply.body
        return reply.status == 200
