"""Routes of the API that may be called without an API key, what is proven instead, and how large a body they then take.

Control's routes and the gateways read this one list: a gateway refuses everything else that comes without a valid key
before it reads the body. Other proofs than keys are to be added here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from corral.wire.registration import MAX_BODY

_WORKER_BODY: Final = 64 * 1024
"""More than any worker says in a heartbeat."""


class RequiredProof(StrEnum):
    """What a request without a valid API key has to show."""

    NOTHING = "nothing"
    """Anybody may call the route."""
    NOTHING_BY_SETTING = "nothing by setting"
    """Anybody, where `metrics_public` is set; otherwise a key is needed."""
    NODE = "node"
    """The registration token, or a node's own secret, as the bearer. Only control can check it."""
    UNCHECKED_KEY = "unchecked key"
    """A key that a gateway without a view can tell nothing about. Only control can check it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessRoute:
    method: str
    path: str
    """As control's router writes it: with names in braces for what differs."""
    proof: RequiredProof = RequiredProof.NOTHING
    max_body: int = 0
    """Bytes; 0 where no body makes sense."""


REGISTER: Final = KeylessRoute(method="POST", path="/api/node/register", proof=RequiredProof.NODE, max_body=MAX_BODY)
HEARTBEAT: Final = KeylessRoute(
    method="POST", path="/api/node/{id}/heartbeat", proof=RequiredProof.NODE, max_body=_WORKER_BODY
)
UNCHECKED: Final = KeylessRoute(method="", path="", proof=RequiredProof.UNCHECKED_KEY, max_body=MAX_BODY)
"""Stands for any route, while a gateway has no view to look keys up in."""
KEYLESS: Final = (
    KeylessRoute(method="GET", path="/"),
    KeylessRoute(method="GET", path="/docs"),
    KeylessRoute(method="GET", path="/openapi.json"),
    KeylessRoute(method="GET", path="/healthz"),
    KeylessRoute(method="GET", path="/health"),
    KeylessRoute(method="GET", path="/readyz"),
    KeylessRoute(method="GET", path="/api/v1/ready"),
    KeylessRoute(method="GET", path="/metrics", proof=RequiredProof.NOTHING_BY_SETTING),
    REGISTER,
    HEARTBEAT,
    KeylessRoute(method="POST", path="/api/node/{id}/drain", proof=RequiredProof.NODE, max_body=_WORKER_BODY),
    KeylessRoute(method="POST", path="/api/node/{id}/resume", proof=RequiredProof.NODE, max_body=_WORKER_BODY),
    KeylessRoute(method="POST", path="/api/node/{id}/deregister", proof=RequiredProof.NODE, max_body=_WORKER_BODY),
    KeylessRoute(method="DELETE", path="/api/node/{id}", proof=RequiredProof.NODE, max_body=_WORKER_BODY),
    KeylessRoute(method="GET", path="/api/node/{id}/models", proof=RequiredProof.NODE),
)


def _pattern(route: KeylessRoute) -> re.Pattern[bytes]:
    return re.compile(re.sub(rb"\\\{\w+\\\}", rb"[^/%]+", re.escape(route.path.encode())))


_EXACT: Final[Mapping[tuple[bytes, bytes], KeylessRoute]] = {
    (route.method.encode(), route.path.encode()): route for route in KEYLESS if "{" not in route.path
}
_PATTERNS: Final = [(route.method.encode(), _pattern(route), route) for route in KEYLESS if "{" in route.path]


def find_keyless(method: bytes, path: bytes) -> KeylessRoute | None:
    """The route that this request may reach without a key. A path that is written in another way is not found."""
    method = b"GET" if method == b"HEAD" else method
    route = _EXACT.get((method, path))
    if route is not None:
        return route
    return next((route for own, pattern, route in _PATTERNS if own == method and pattern.fullmatch(path)), None)
