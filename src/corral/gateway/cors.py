"""One CORS policy for all routes: which web pages of other origins may read responses.

CORS headers of engines and of control are removed from their responses (see `upstream.AnswerHead`).
"""

import re
from collections.abc import Collection
from typing import Final

from corral.gateway.answers import Answer, GatewayRefusal
from corral.gateway.head import RequestHead

ANY: Final = "*"
_EXPOSED: Final = b"Access-Control-Expose-Headers: X-Request-ID, Retry-After\r\n"
_VARY: Final = b"Vary: Origin\r\n"
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_FIELD_NAMES: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]*")
_MAX_AGE_SECONDS: Final = 600


class CorsPolicy:
    def __init__(self, origins: Collection[str]) -> None:
        self._allows_any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)
        self.is_on = bool(origins)

    def lines(self, origin: bytes | None) -> bytes:
        """Return the header lines for a response to a request from this origin.

        Credentials are allowed only for origins that are listed by name.
        """
        if self._allows_any:
            return b"" if origin is None else b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
        if origin is None or origin.lower() not in self._origins:
            return _VARY
        named = b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Allow-Credentials: true\r\n" % origin
        return named + _EXPOSED + _VARY

    def preflight(self, head: RequestHead) -> Answer:
        """Return the answer to a preflight request. Raise `GatewayRefusal` for an origin that is not allowed."""
        origin = head.origin or b""
        if not self._allows_any and origin.lower() not in self._origins:
            knob = "the setting gateway.cors_origins (CORRAL_CORS_ORIGINS) names those that may"
            text = f"pages of the origin {origin.decode('latin-1')[:200]} may not send requests; {knob}"
            raise GatewayRefusal(403, text, code="origin_not_allowed")
        names = head.preflight_headers if _FIELD_NAMES.fullmatch(head.preflight_headers) else b""
        headers = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": str(_MAX_AGE_SECONDS)}
        if names:
            headers["Access-Control-Allow-Headers"] = names.decode()
        return Answer(204, b"", headers)
