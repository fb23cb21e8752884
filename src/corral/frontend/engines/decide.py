"""Engines that somebody else runs, as values: which are allowed, and what looks at them mean.

An engine is never started or stopped, only looked at:

| state         | meaning                                                          | gateways        |
|---------------|------------------------------------------------------------------|-----------------|
| unknown       | nobody has looked yet                                            | ask it          |
| up            | the last look was answered                                       | ask it          |
| failing       | a look or a request failed, and not often enough to be sure      | ask it last     |
| down          | several looks in a row failed                                    | do not ask it   |
| misconfigured | it refused the key, or its address is one that nobody is sent to | do not ask it   |
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.own_network import forbidden_address
from corral.base.retry import Backoff
from corral.base.values import PartlyPrinted
from corral.wire.engines import ENGINE_USES

MOST_WEIGHT: Final = 100
LAST_ORDER: Final = 20
_MOST_CONCURRENT: Final = 1_000_000
_LONGEST_URL: Final = 2000
_LONGEST_MODEL: Final = 200
_LONGEST_KEY: Final = 8192
_LONGEST_CA: Final = 256 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KEY: Final = re.compile(r"[!-~]*")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*")
USUAL_PATH: Final = "/v1"
_PORTS: Final = {"http": 80, "https": 443}


class ExternalEngine(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("key", "ca")

    id: str
    model: str
    name: str
    """What people call it; there is one of each name for a model."""
    url: str
    remote_model: str
    uses: tuple[str, ...]
    key: str = ""
    ca: str = ""
    health_path: str = ""
    max_concurrent: int = 0
    weight: int = 1
    fallback_order: int = 0
    is_enabled: bool = True
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str

    @property
    def revision(self) -> str:
        return f"{self.changed_at.timestamp():.6f}"

    @property
    def origin(self) -> str:
        """The URL without its path."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def base(self) -> str:
        """The path in front of `/chat/completions`."""
        return urlsplit(self.url).path

    @property
    def health_url(self) -> str:
        return self.origin + (self.health_path or f"{self.base}/models")

    @property
    def place(self) -> tuple[str, int]:
        """The host and port that the engine's URL leads to."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _PORTS[parts.scheme]

    @property
    def routes(self) -> tuple[str, ...]:
        """The routes of inference that it answers."""
        return tuple(sorted(frozenset().union(*(ENGINE_USES[use] for use in self.uses))))

    def is_asked_alike(self, other: "ExternalEngine") -> bool:
        """Whether what was seen of one holds for the other."""
        return (self.health_url, self.key, self.ca) == (other.health_url, other.key, other.ca)


# What is allowed.


def checked(engine: ExternalEngine) -> ExternalEngine:
    """The engine with its URL in the usual form. InvalidInput names the field and says what is wrong."""
    _check_names(engine)
    url = _checked_url(engine.url)
    unknown = [use for use in engine.uses if use not in ENGINE_USES]
    if unknown or not engine.uses:
        got = f", got {unknown[0][:40]!r}" if unknown else ""
        raise InvalidInput("uses", f"must be some of {', '.join(ENGINE_USES)}{got}")
    if len(engine.key) > _LONGEST_KEY or not _KEY.fullmatch(engine.key):
        raise InvalidInput("key", f"must have at most {_LONGEST_KEY} printable ASCII characters, and no blanks")
    if len(engine.ca) > _LONGEST_CA:
        raise InvalidInput("ca", f"has more than {_LONGEST_CA} characters; it holds certificates in PEM form")
    if engine.ca and not url.startswith("https:"):
        raise InvalidInput("ca", "is for https; the url begins with http:")
    if engine.health_path and (not engine.health_path.startswith("/") or not _PATH.fullmatch(engine.health_path)):
        problem = f"must be a path such as /health, without a query, got {engine.health_path[:100]!r}"
        raise InvalidInput("health_path", problem)
    for name, least, most in (("max_concurrent", 0, _MOST_CONCURRENT), ("weight", 1, MOST_WEIGHT)):
        _check_number(engine, name, least, most)
    _check_number(engine, "fallback_order", 0, LAST_ORDER)
    return replace(engine, url=url, remote_model=engine.remote_model or engine.model)


def _check_names(engine: ExternalEngine) -> None:
    if not _NAME.fullmatch(engine.name):
        problem = f"{engine.name[:80]!r} is no name: up to 63 letters, digits, dots, dashes and underscores"
        raise InvalidInput("name", problem)
    for field_name, value in (("model", engine.model), ("remote_model", engine.remote_model or engine.model)):
        if not value or len(value) > _LONGEST_MODEL or not value.isprintable() or value != value.strip():
            problem = f"must have 1 to {_LONGEST_MODEL} printable characters, got {value[:80]!r}"
            raise InvalidInput(field_name, problem)


def _check_number(engine: ExternalEngine, name: str, least: int, most: int) -> None:
    value = getattr(engine, name)
    if not least <= value <= most:
        raise InvalidInput(name, f"must be a number from {least} to {most}, got {value}")


def _checked_url(text: str) -> str:
    parts = _split(text)
    host, port = parts.hostname or "", parts.port
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("url", "must not have a user or a password; the key is a field of its own")
    if "?" in text or "#" in text:
        raise InvalidInput("url", "must not have a query or a fragment")
    if not host or not _HOST.fullmatch(host):
        raise InvalidInput("url", f"has no host that can be looked up: {host[:80]!r}")
    path = parts.path.rstrip("/")
    if not _PATH.fullmatch(path) or "/../" in f"{path}/" or "/./" in f"{path}/":
        raise InvalidInput("url", f"has a path that is not plain: {path[:80]!r}")
    if why := forbidden_host(host):
        raise InvalidInput("url", why)
    written_host = f"[{host}]" if ":" in host else host.lower()
    number = "" if port is None or port == _PORTS[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{written_host}{number}{path or USUAL_PATH}"


def _split(text: str) -> SplitResult:
    if len(text) > _LONGEST_URL or not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise InvalidInput("url", f"must have at most {_LONGEST_URL} printable ASCII characters, and no blanks")
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in _PORTS and parts.port != 0
    except ValueError:
        raise InvalidInput("url", f"{_shown(text)} cannot be read as a URL") from None
    if not is_usable:
        raise InvalidInput("url", f"must be http://HOST:PORT or https://HOST:PORT with a path, got {_shown(text)}")
    return parts


def _shown(text: str) -> str:
    """A URL without what may be a password."""
    return repr(text.rpartition("@")[2][:100])


def forbidden_host(host: str) -> str:
    """Why nobody may be sent to a host that is written as an address; empty for names, and for other addresses."""
    try:
        why = forbidden_address(host)
    except ValueError:
        return ""
    return f"leads to {host}, {why}" if why else ""


# What looks at it mean.


class EngineState(StrEnum):
    UNKNOWN = "unknown"
    UP = "up"
    FAILING = "failing"
    DOWN = "down"
    MISCONFIGURED = "misconfigured"


ASKED: Final = frozenset({EngineState.UNKNOWN, EngineState.UP, EngineState.FAILING})
"""States in which gateways may ask an engine."""
DOWN_AFTER: Final = 3
"""Failed looks in a row that make an engine count as down."""
_DOUBT: Final = Backoff(first=timedelta(seconds=5), cap=timedelta(minutes=5))
_DOUBT_FADES: Final = timedelta(minutes=10)


class EngineLook(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at an engine found."""

    state: EngineState
    """`up`, `down` or `misconfigured`."""
    reason: str = ""
    seconds: float = 0.0
    models: tuple[str, ...] | None = None
    """The names that it lists; None when it does not list any."""


class EngineObservation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an engine at one frontend."""

    state: EngineState = EngineState.UNKNOWN
    reason: str = ""
    since: datetime | None = None
    checked_at: datetime | None = None
    failures: int = 0
    """Failed looks in a row."""
    doubts: int = 0
    """How often requests failed there lately."""
    doubted_until: datetime | None = None
    """Until then a good look does not make up for requests that failed."""


def after_look(before: EngineObservation, look: EngineLook, now: datetime) -> EngineObservation:
    if look.state is EngineState.UP:
        if _is_doubted(before, now):
            return replace(before, checked_at=now, failures=0)
        has_faded = before.doubted_until is not None and now - before.doubted_until > _DOUBT_FADES
        seen = replace(before, checked_at=now, failures=0, doubts=0 if has_faded else before.doubts)
        return _entered(seen, EngineState.UP, look.reason, now)
    # Looks tell the truth about this engine after all: the next good one is believed at once.
    seen = replace(before, checked_at=now, failures=before.failures + 1, doubts=0, doubted_until=None)
    is_sure = seen.failures >= DOWN_AFTER or before.state is EngineState.DOWN
    state = EngineState.FAILING if look.state is EngineState.DOWN and not is_sure else look.state
    return _entered(seen, state, look.reason, now)


def after_failed_request(before: EngineObservation, reason: str, now: datetime) -> EngineObservation:
    """A gateway got no answer. Looks may go well all the same, so good ones are not believed for a while."""
    if before.state not in ASKED or _is_doubted(before, now):
        return before
    doubts = before.doubts + 1
    doubted = replace(before, doubts=doubts, doubted_until=now + _DOUBT.steady(doubts))
    return _entered(doubted, EngineState.FAILING, f"a request failed: {reason}", now)


def _is_doubted(observation: EngineObservation, now: datetime) -> bool:
    """Not for longer than ever intended, whatever becomes of the clock."""
    until = observation.doubted_until
    return until is not None and now < until <= now + _DOUBT.cap


def _entered(observation: EngineObservation, state: EngineState, reason: str, now: datetime) -> EngineObservation:
    since = observation.since if state is observation.state else now
    return replace(observation, state=state, reason=reason, since=since)


# The part of engines in the gateways' view.

_ORDER_RANK: Final = 20
"""Between a draining node's replica, which still works, and a silent node's."""
_LAST_RANK: Final = 500
_RANKS: Final[Mapping[EngineState, int]] = {EngineState.FAILING: _LAST_RANK}


def rank_of(engine: ExternalEngine, state: EngineState) -> int:
    """Lower is better, as for replicas of the fleet's."""
    order = _ORDER_RANK + engine.fallback_order if engine.fallback_order else 0
    return order + _RANKS.get(state, 0)


def share_of(limit: int, gateways: int) -> int:
    """How many requests one of so many gateways may have there at once, so that all together keep to the limit."""
    return max(limit // max(gateways, 1), 1) if limit else 0
