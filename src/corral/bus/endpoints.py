"""Where NATS servers are: URLs taken apart, and made fit for logs."""

import re
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final, Self
from urllib.parse import SplitResult, unquote, urlsplit

from corral.base.errors import InvalidInput

DEFAULT_PORT: Final = 4222
_SCHEMES: Final = ("nats", "tls")
_HARMLESS: Final = re.compile(r"\s*([a-z]+://)?([\w.-]*|\[[0-9a-f:.]+\])(:\d*)?/?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One server, and how to log in there when the URL said so."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls_name: str | None = None
    """The name its certificate must show, when that is not the host."""

    @property
    def url(self) -> str:
        """Without credentials: those are passed beside it, and this may be logged."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    def sibling(self, host: str, port: int) -> Self:
        """Another server of the same cluster, which this one told us of: same login, same certificate name."""
        name = (self.tls_name or self.host) if _is_address(host) else None
        return replace(self, host=host, port=port, tls_name=name)


def parse_endpoints(urls: str) -> tuple[Endpoint, ...]:
    """Read one URL or several with commas between; InvalidInput without any secret in its text."""
    endpoints = tuple(_parse(part.strip()) for part in urls.split(",") if part.strip())
    if not endpoints:
        raise InvalidInput("NATS URL", "is empty; write for example nats://127.0.0.1:4222")
    return endpoints


def _parse(text: str) -> Endpoint:
    parts = _split(text)
    if parts.scheme not in _SCHEMES:
        raise InvalidInput("NATS URL", f"{redact_url(text)!r} starts with neither nats:// nor tls://")
    try:
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        raise InvalidInput("NATS URL", f"{redact_url(text)!r} has no usable port") from None
    if not host or parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidInput("NATS URL", f"{redact_url(text)!r} is not of the form nats://user:password@host:port")
    user = unquote(parts.username) if parts.username else None
    if user is not None and parts.password is None:
        return Endpoint(host=host, port=port, tls=parts.scheme == "tls", token=user)
    password = unquote(parts.password) if parts.password is not None else None
    return Endpoint(host=host, port=port, tls=parts.scheme == "tls", user=user, password=password)


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text if "://" in text else f"nats://{text}")
    except ValueError:
        raise InvalidInput("NATS URL", f"{redact_url(text)!r} cannot be read") from None


def redact_url(urls: str) -> str:
    """The same URLs with passwords and tokens blotted out; safe also for text that is no proper URL."""
    return ",".join(_redact(part) for part in urls.split(","))


def _redact(url: str) -> str:
    before, at, host = url.rpartition("@")
    if not at:
        # A part that does not look harmless may be the first half of a password with a comma in it.
        return url if _HARMLESS.fullmatch(url) else "***"
    scheme, separator, login = before.rpartition("://")
    user, colon, _ = login.partition(":")
    return f"{scheme}{separator}{user + ':' if colon else ''}***@{host}"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
