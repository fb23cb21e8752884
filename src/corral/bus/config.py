"""How to reach NATS: URLs of servers, made fit for logs, which of them to try next, and the settings they come from."""

import random
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.setting_kinds import EXISTING_FILE, SECRET, SettingKind, hide_password
from corral.base.settings import setting
from corral.base.values import PartlyPrinted

DEFAULT_PORT: Final = 4222
_SCHEMES: Final = ("nats", "tls")
_HARMLESS: Final = re.compile(r"\s*([a-z]+://)?([\w.-]*|\[[0-9a-f:.]+\])(:\d*)?/?\s*", re.IGNORECASE)


class Endpoint(PartlyPrinted, frozen=True, kw_only=True):
    """One server, with the login of its URL if there is one."""

    unprinted = ("password", "token")

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_name: str | None = None
    """The name that its certificate must have, when that is not the host."""

    @property
    def url(self) -> str:
        """The URL without credentials, which may be logged."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    def sibling(self, host: str, port: int) -> Self:
        """Return another server of the same cluster. It has the same login; one that is known only by its address must
        show a certificate with the same name."""
        try:
            ip_address(host)
            name = self.tls_name or self.host
        except ValueError:
            name = None
        return replace(self, host=host, port=port, tls_name=name)


def parse_endpoints(urls: str) -> tuple[Endpoint, ...]:
    """Parse comma-separated URLs. Raise InvalidInput, without any secret in its text."""
    endpoints = tuple(_parse(part.strip()) for part in urls.split(",") if part.strip())
    if not endpoints:
        raise InvalidInput("NATS URL", "is empty; write for example nats://127.0.0.1:4222")
    return endpoints


def _parse(text: str) -> Endpoint:
    try:
        parts = urlsplit(text if "://" in text else f"nats://{text}")
    except ValueError:
        raise InvalidInput("NATS URL", f"{redact_url(text)!r} cannot be read") from None
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


def names_login(urls: str) -> bool:
    """Whether the URLs carry a user or a token."""
    return bool(urls) and any(endpoint.user or endpoint.token for endpoint in parse_endpoints(urls))


def redact_url(urls: str) -> str:
    """Replace passwords and tokens in URLs by ***; safe also for text that is no proper URL."""
    redacted = []
    for url in urls.split(","):
        before, at, host = url.rpartition("@")
        scheme, separator, login = before.rpartition("://")
        user, colon, _ = login.partition(":")
        if at:
            redacted.append(f"{scheme}{separator}{user + ':' if colon else ''}***@{host}")
        else:  # a part that does not look harmless may be the first half of a password with a comma in it
            redacted.append(url if _HARMLESS.fullmatch(url) else "***")
    return ",".join(redacted)


def _read_nats_urls(text: str) -> str:
    try:
        parse_endpoints(text)
    except InvalidInput:
        raise ValueError from None
    return text.strip()


def _read_public_urls(text: str) -> str:
    if names_login(_read_nats_urls(text)):
        raise ValueError
    return text.strip()


NATS_URLS: Final = SettingKind(
    placeholder="URL[,URL…]",
    allowed="a URL such as nats://10.0.0.1:4222, or several, comma-separated",
    read=_read_nats_urls,
    shown=hide_password,
    holds_password=lambda text: "@" in text,  # a user without a password is a token
)


PUBLIC_NATS_URLS: Final = SettingKind(
    placeholder="URL[,URL…]",
    allowed="a URL without a login such as nats://10.0.0.1:4222, or several, comma-separated",
    read=_read_public_urls,
    shown=hide_password,
)


def without_logins(urls: str) -> str:
    """Return the URLs without user names and passwords, so that they can be shown to everybody."""
    return ",".join(endpoint.url for endpoint in parse_endpoints(urls))


def reached_from(urls: str, host: str) -> str:
    """Return the URLs for a client that reached the frontend at this host.

    A NATS server on loopback, or on all interfaces, is on the frontend's machine, so its host is replaced.
    """
    seen = (replace(endpoint, host=host) if _is_own(endpoint.host) else endpoint for endpoint in parse_endpoints(urls))
    return ",".join(endpoint.url for endpoint in seen)


def _is_own(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return address.is_loopback or address.is_unspecified


class Servers:
    """The NATS servers of the configuration, and those that their cluster reported to the last connection."""

    def __init__(self, urls: str) -> None:
        """Raise InvalidInput for URLs that can never work; none at all is possible."""
        configured = parse_endpoints(urls) if urls else ()
        self._configured = random.sample(configured, len(configured))  # so that a fleet spreads over a cluster
        self._endpoints = deque(self._configured)

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def are_unknown(self) -> bool:
        return not self._configured

    @property
    def have_tls(self) -> bool:
        return any(endpoint.tls for endpoint in self._configured)

    def next(self) -> Endpoint:
        """Return the server to try now. After a loss, and after a failure, the others come first."""
        endpoint = self._endpoints[0]
        self._endpoints.rotate(-1)
        return endpoint

    def learn(self, siblings: Sequence[Endpoint]) -> None:
        """Remember the cluster's other servers as a link knew them, and forget those that it no longer did."""
        by_address = {(sibling.host, sibling.port): sibling for sibling in siblings}
        current = by_address.keys() | {(endpoint.host, endpoint.port) for endpoint in self._configured}
        remaining = {(endpoint.host, endpoint.port): endpoint for endpoint in self._endpoints}
        remaining = {address: endpoint for address, endpoint in remaining.items() if address in current}
        new = [sibling for address, sibling in by_address.items() if address not in remaining]
        self._endpoints = deque([*new, *remaining.values()])


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    """One server or a cluster of them."""

    url: str = setting(
        NATS_URLS,
        """The NATS server, or several of one cluster, comma-separated. Frontends have no default: a bus that nobody
        chose is one that nobody protects. A worker needs none where its frontend is Corral's, which tells it. A URL
        with a user or a token comes from the environment or the file only.""",
        name="nats_url",
        flag="--nats",
        aliases=("LOCALAI_NATS_URL",),
    )
    jwt: str = setting(
        SECRET,
        """User JWT for NATS; needs the seed beside it. None by default: a frontend makes its own with the account's
        seed, and a worker takes the user that its frontend makes at registration. A login in the URL is for servers
        where no users are made.""",
        name="nats_jwt",
        aliases=("LOCALAI_NATS_JWT",),
        default="",
        secret=True,
    )
    seed: str = setting(
        SECRET,
        "Seed that signs for the user JWT. None by default, as the JWT.",
        name="nats_seed",
        aliases=("LOCALAI_NATS_USER_SEED",),
        default="",
        secret=True,
    )
    tls_ca: Path | None = setting(
        EXISTING_FILE,
        "Certificates of the authorities that NATS servers are checked against. By default those of the system.",
        name="nats_tls_ca",
        aliases=("LOCALAI_NATS_TLS_CA",),
        default=None,
    )
    tls_cert: Path | None = setting(
        EXISTING_FILE,
        "Client certificate for NATS; needs its key beside it. None by default: few servers ask for one.",
        name="nats_tls_cert",
        aliases=("LOCALAI_NATS_TLS_CERT",),
        default=None,
    )
    tls_key: Path | None = setting(
        EXISTING_FILE,
        "Key of the client certificate. None by default, as the certificate.",
        name="nats_tls_key",
        aliases=("LOCALAI_NATS_TLS_KEY",),
        default=None,
    )
