"""How the network is used: which hosts may be asked without TLS, through which proxy, and when to try again."""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypedDict, TypeVar
from urllib.parse import urlsplit

from corral.base.clock import Clock
from corral.base.retry import Backoff
from corral.base.setting_kinds import SettingKind, items
from corral.base.settings import setting
from corral.oci.errors import RegistryUnavailable, SourceInvalid

_LOOPBACK_NAMES: Final = frozenset({"localhost"})


def _read_host(text: str) -> str:
    host = text.lower()
    if not re.fullmatch(r"(\[[0-9a-f:.]+\]|[\w.-]{1,253})(:[0-9]{1,5})?", host):
        raise ValueError(text)
    return host


HOSTS: Final = SettingKind(
    placeholder="HOST[,HOST…]",
    allowed="a host such as registry.lan or registry.lan:5000, or several, comma-separated",
    read=items(_read_host),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Plain values with their units and the reasons of their defaults."""

    plain_hosts: tuple[str, ...] = setting(
        HOSTS,
        """Hosts that images may be fetched from without TLS. None by default: anybody on the way could change what
        comes. Those on this machine's loopback need no permission.""",
        name="plain_registries",
        default=(),
    )
    http_proxy: str = ""
    https_proxy: str = ""
    no_proxy: str = ""
    """As the environment has them; proxies may carry a password."""
    connect_seconds: float = 10.0
    """For a connection and its TLS."""
    answer_seconds: float = 60.0
    """For the head of an answer."""
    stall_seconds: float = 60.0
    """In such a time at least `stall_bytes` must come."""
    stall_bytes: int = 64 * 1024
    """Ten of these a minute would take a week for a gigabyte; nobody who serves images is that slow."""
    attempts: int = 5
    """In a row without a single byte of progress."""
    restarts: int = 3
    """How often one layer may turn out to be wrong and be fetched anew."""
    first_pause_seconds: float = 0.5
    longest_pause_seconds: float = 30.0
    longest_retry_after_seconds: float = 300.0
    """A registry that asks for more patience than this is told of as unavailable."""


def is_loopback(host: str) -> bool:
    """Of a host name or an address, without a port."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def scheme_of(host: str, network: Network) -> str:
    """How a registry is asked: with TLS, unless it is on this machine or somebody said otherwise."""
    return "http" if _may_be_plain(host, network) else "https"


def check_url(url: str, network: Network) -> str:
    """The URL itself; SourceInvalid when it may not be asked."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and _may_be_plain(parts.netloc.rpartition("@")[2], network)):
        return url
    if parts.scheme == "http":
        advice = "allow it with images.plain_registries"
        raise SourceInvalid(f"{parts.hostname} is not asked over HTTP, which anybody could change: {advice}")
    raise SourceInvalid(f"a URL with the scheme {parts.scheme!r} is not fetched")


def _may_be_plain(host: str, network: Network) -> bool:
    name = urlsplit(f"//{host}").hostname or host
    return is_loopback(name) or host in network.plain_hosts or name in network.plain_hosts


def proxy_for(url: str, network: Network) -> str | None:
    """By the rules of the environment's variables. Never for loopback: no proxy can reach it for us."""
    parts = urlsplit(url)
    chosen = network.https_proxy if parts.scheme == "https" else network.http_proxy
    host = parts.hostname or ""
    if not chosen or is_loopback(host) or any(_covers(entry, host) for entry in network.no_proxy.split(",")):
        return None
    return chosen


def _covers(entry: str, host: str) -> bool:
    """A name covers itself and all below it, a network its addresses, a star everything; a port is not looked at."""
    entry = entry.strip().lower()
    if entry == "*":
        return True
    name = entry.removeprefix("*").lstrip(".")
    if not name:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    except ValueError:
        name = name if name.startswith("[") else name.partition(":")[0]
        return host == name or host.endswith(f".{name}")


class Proxies(TypedDict):
    """The fields of a Network that the usual variables give."""

    http_proxy: str
    https_proxy: str
    no_proxy: str


def proxies_of(environment: Mapping[str, str]) -> Proxies:
    """Small letters win, as everywhere."""

    def stated(name: str) -> str:
        return environment.get(name) or environment.get(name.upper()) or ""

    return Proxies(http_proxy=stated("http_proxy"), https_proxy=stated("https_proxy"), no_proxy=stated("no_proxy"))


T = TypeVar("T")


class FetchRetries:
    """Counts failures in a row, and waits between them."""

    def __init__(self, network: Network, clock: Clock) -> None:
        self._network = network
        self._clock = clock
        self._backoff = Backoff(
            first=timedelta(seconds=network.first_pause_seconds), cap=timedelta(seconds=network.longest_pause_seconds)
        )
        self._failures = 0

    def forget(self) -> None:
        """There was progress."""
        self._failures = 0

    async def after(self, error: RegistryUnavailable) -> None:
        """Wait before the next attempt, as long as the registry asks for; raises the error when there is none left."""
        self._failures += 1
        asked = error.retry_after or 0.0
        if self._failures >= self._network.attempts or asked > self._network.longest_retry_after_seconds:
            raise error
        pause = self._backoff.delay(self._failures).total_seconds()
        await self._clock.sleep(max(pause, asked))


async def persistently(work: Callable[[], Awaitable[T]], network: Network, clock: Clock) -> T:
    """Do it, again and again while it is worth it."""
    patience = FetchRetries(network, clock)
    while True:
        try:
            return await work()
        except RegistryUnavailable as error:
            await patience.after(error)
