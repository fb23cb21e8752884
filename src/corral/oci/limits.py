"""Limits on fetching and unpacking: sizes, counts, times and attempts, hosts without TLS, proxies. Error messages name
the limit.
"""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeVar
from urllib.parse import urlsplit

from corral.base.clock import Clock
from corral.base.retry import Backoff
from corral.base.setting_kinds import SettingKind, items, size, whole
from corral.base.settings import setting
from corral.oci.errors import RegistryUnavailable, SourceInvalid

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB

MANIFEST_BYTES: Final = 4 * _MIB
"""Maximum size of a manifest, an index or a token response; registries have the same limit."""
SIGNATURE_BYTES: Final = _MIB
"""Maximum size of a signed payload or a bundle. Usual ones have about ten kilobytes."""
MAX_SIGNATURES: Final = 32
"""Maximum number of signatures that are checked per image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """Against archives that are made to do harm. The largest backend that we know has 30 GiB in 200,000 entries."""

    entries: int = setting(
        whole(1, 100_000_000),
        """Files, directories and links that one image may have. The largest backends have some 200,000; an archive that
        is made to do harm has no end.""",
        name="unpack_max_entries",
        default="1000000",
    )
    total_bytes: int = setting(
        size("1MiB", "1048576GiB"),
        "What may come out of the layers of one image. The largest backends have some 30 GiB.",
        name="unpack_max_bytes",
        default="100GiB",
    )
    ratio: float = setting(
        whole(1, 1_000_000),
        """How many bytes may come out of a layer for one that goes in, once it is more than 64 MiB. Text has 10; what
        has 1,000 was made to fill disks.""",
        name="unpack_max_ratio",
        default=200,
    )
    free_bytes: int = 256 * _MIB
    """Free disk space that must remain."""
    expected_ratio: float = 2.5
    """Estimated unpacked bytes per compressed byte, for the disk check before the download."""
    path_bytes: int = 4095
    """Maximum length of a path."""
    name_bytes: int = 255
    """Maximum length of each part of a path, as in file systems."""
    depth: int = 128
    """Maximum depth of directories. Each level costs a descriptor when a tree is removed."""
    header_bytes: int = _MIB
    """Maximum size of an extended header in an archive (names and times)."""
    extents: int = 65536
    """Maximum number of extents of one sparse file."""


RATIO_COUNTS_FROM: Final = 64 * _MIB
"""Below this size the compression ratio is not checked."""
ZSTD_WINDOW_BYTES: Final = 128 * _MIB
"""Maximum memory of the decompressor's window, as `zstd` itself allows."""


# Setting names for error messages, so that users know what to change.
ENTRIES_KNOB: Final = "images.unpack_max_entries"
BYTES_KNOB: Final = "images.unpack_max_bytes"
RATIO_KNOB: Final = "images.unpack_max_ratio"
INTEGRITY_KNOB: Final = "images.require_backend_integrity"


_LOOPBACK_NAMES: Final = frozenset({"localhost"})
_SCHEMES_WITH_HOST: Final = frozenset({"http", "https", "oci", "ollama"})
"""The first part of a reference to a model with one of these may be the host that is asked."""


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
    """Proxy variables as in the environment; they may contain a password."""
    connect_seconds: float = 10.0
    """Timeout of connecting, including TLS."""
    answer_seconds: float = 60.0
    """Timeout until the response headers."""
    stall_seconds: float = 60.0
    """Window in which at least `stall_bytes` must arrive."""
    stall_bytes: int = 64 * 1024
    """Minimum per window. At this rate a gigabyte takes more than a week: no real server is that slow."""
    attempts: int = 5
    """Maximum failed attempts in a row without a byte of progress."""
    restarts: int = 3
    """How often a layer may arrive damaged and be downloaded again."""
    first_pause_seconds: float = 0.5
    longest_pause_seconds: float = 30.0
    longest_retry_after_seconds: float = 300.0
    """A registry that asks for a longer wait counts as unavailable."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without port, is loopback."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_loopback(url: str) -> bool:
    """Whether the host of an HTTP URL, or the registry of a reference such as `oci://localhost:5000/a/b`, is loopback.
    No other host is asked over plain HTTP without a setting."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return False
    return parts.scheme in _SCHEMES_WITH_HOST and is_loopback(parts.hostname or "")


def scheme_of(host: str, network: Network) -> str:
    """Return "https", or "http" for loopback and the hosts that settings allow without TLS."""
    return "http" if _may_be_plain(host, network) else "https"


def check_url(url: str, network: Network) -> str:
    """Return the URL unchanged. Raise SourceInvalid when settings forbid it."""
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
    """Return the proxy for a URL by the rules of the usual variables; None for loopback, which no proxy can reach."""
    parts = urlsplit(url)
    chosen = network.https_proxy if parts.scheme == "https" else network.http_proxy
    host = parts.hostname or ""
    if not chosen or is_loopback(host) or any(_covers(entry, host) for entry in network.no_proxy.split(",")):
        return None
    return chosen


def _covers(entry: str, host: str) -> bool:
    """Whether a no_proxy entry matches: a name and its subdomains, a network, or a star. Ports are ignored."""
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


def with_proxies(network: Network, environment: Mapping[str, str]) -> Network:
    """Set the proxies that the usual variables name. Lower case takes precedence, as in other programs."""

    def stated(name: str) -> str:
        return environment.get(name) or environment.get(name.upper()) or ""

    return replace(
        network, http_proxy=stated("http_proxy"), https_proxy=stated("https_proxy"), no_proxy=stated("no_proxy")
    )


T = TypeVar("T")


class FetchRetries:
    """Counts failures in a row, and waits between attempts."""

    def __init__(self, network: Network, clock: Clock) -> None:
        self._network = network
        self._clock = clock
        self._backoff = Backoff(
            first=timedelta(seconds=network.first_pause_seconds), cap=timedelta(seconds=network.longest_pause_seconds)
        )
        self._failures = 0

    def forget(self) -> None:
        """Reset the count after progress."""
        self._failures = 0

    async def after(self, error: RegistryUnavailable) -> None:
        """Wait before the next attempt, at least as long as the registry asks for. Raise the error when no attempt is
        left."""
        self._failures += 1
        retry_after_seconds = error.retry_after or 0.0
        if self._failures >= self._network.attempts or retry_after_seconds > self._network.longest_retry_after_seconds:
            raise error
        pause = self._backoff.delay(self._failures).total_seconds()
        await self._clock.sleep(max(pause, retry_after_seconds))


async def persistently(work: Callable[[], Awaitable[T]], network: Network, clock: Clock) -> T:
    """Do the work, and retry it while the error is retryable."""
    patience = FetchRetries(network, clock)
    while True:
        try:
            return await work()
        except RegistryUnavailable as error:
            await patience.after(error)
