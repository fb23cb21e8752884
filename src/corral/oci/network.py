"""How the network is used: which hosts may be asked without TLS, through which proxy, with which patience."""

import ipaddress
from collections.abc import Mapping
from typing import Final, TypedDict
from urllib.parse import urlsplit

import msgspec

from corral.oci.errors import SourceInvalid

_LOOPBACK_NAMES: Final = frozenset({"localhost"})


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Plain values with their units and the reasons of their defaults."""

    plain_hosts: tuple[str, ...] = ()
    """Hosts, with their ports if they have one, that are asked over HTTP. Those on loopback are so anyway."""
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
