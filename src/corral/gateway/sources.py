"""Limits per source address: clients behind trusted proxies, rates, and connections without a proof of identity."""

import ipaddress
from collections import Counter
from collections.abc import Sequence
from typing import Final, Protocol

from corral.base.ids import IpAddress, parsed_ip

TrustedNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_LONGEST_FORWARDED: Final = 2048
_MOST_SOURCES: Final = 10_000
_GRACE_SECONDS: Final = 3.0
"""Younger connections are evicted only at the global limit: their first request may be on its way."""


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` is believed."""

    def __init__(self, networks: Sequence[TrustedNetwork]) -> None:
        self._networks = networks

    def has(self, host: str) -> bool:
        return bool(self._networks) and self._is_one(parsed_ip(host))

    def client_of(self, forwarded_for: str) -> str | None:
        """Return the last address of the header that is not one of our proxies; earlier ones are the client's own
        claims.

        None when the proxy does not name its client.
        """
        for text in reversed(forwarded_for[-_LONGEST_FORWARDED:].split(",")):
            address = parsed_ip(text)
            if address is None:
                return None
            if not self._is_one(address):
                return str(address)
        return None

    def _is_one(self, address: IpAddress | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


class SourceBudget:
    """A rate limit per source address: `per_minute` times (0 is unlimited), and `burst` times at once (default: as
    many)."""

    def __init__(self, per_minute: int, *, burst: int | None = None) -> None:
        self._per_minute = per_minute
        self._burst = per_minute if burst is None else burst
        self._spent: dict[str, tuple[float, float]] = {}
        """How much each source has used, and at which time. Sources that used nothing recently are forgotten."""

    def take(self, source: str, now: float) -> float:
        """Use the budget once. Return 0 when allowed, else the seconds until it is."""
        if not self._per_minute:
            return 0.0
        spent = self._left_of(source, now)
        if spent + 1 > self._burst:
            return (spent + 1 - self._burst) * 60 / self._per_minute
        self._spent.pop(source, None)  # keeps the dictionary in order of last use
        self._spent[source] = (spent + 1, now)
        if len(self._spent) > _MOST_SOURCES:
            del self._spent[next(iter(self._spent))]
        return 0.0

    def give_back(self, source: str) -> None:
        """Undo the last `take` of this source."""
        spent, at = self._spent.get(source, (0.0, 0.0))
        if spent > 1:
            self._spent[source] = (spent - 1, at)
        else:
            self._spent.pop(source, None)

    def _left_of(self, source: str, now: float) -> float:
        spent, at = self._spent.get(source, (0.0, now))
        return max(0.0, spent - (now - at) * self._per_minute / 60)


class AcceptedBearers:
    """Hashes of bearers that control accepted from workers; the least recently used are forgotten."""

    def __init__(self, most: int = _MOST_SOURCES) -> None:
        self._most = most
        self._hashes: dict[str, None] = {}

    def __contains__(self, hash: str) -> bool:
        return hash in self._hashes

    def add(self, hash: str) -> None:
        self._hashes.pop(hash, None)  # keeps the dictionary in order of last use
        self._hashes[hash] = None
        if len(self._hashes) > self._most:
            del self._hashes[next(iter(self._hashes))]

    def drop(self, hash: str) -> None:
        self._hashes.pop(hash, None)


class Evictable(Protocol):
    def abort(self) -> None: ...


class Strangers:
    """Evicts connections that have not proven who they are, when there are too many.

    A proof is a key in the view, or a worker's bearer that control accepts. At a limit the oldest stranger is closed,
    never the newcomer: holding many connections open keeps nobody out, not even from the same address.
    """

    def __init__(self, *, per_source: int, refusals: Counter[str]) -> None:
        """`refusals` counts evicted connections."""
        self._per_source = per_source
        self._refusals = refusals
        self._sources: dict[Evictable, tuple[str, float]] = {}
        """Source address and start time of each stranger, oldest first."""
        self._by_source: dict[str, dict[Evictable, None]] = {}
        self._closing: set[Evictable] = set()

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def closing(self) -> int:
        """Number of evicted connections that the loop has not closed yet."""
        return len(self._closing)

    def add(self, client: Evictable, source: str, now: float) -> None:
        """Count a connection under its source, and evict that source's oldest one when there are too many."""
        self.drop(client)
        self._sources[client] = source, now
        of_source = self._by_source.setdefault(source, {})
        of_source[client] = None
        self._thin_out(of_source, now)

    def sweep(self, now: float) -> None:
        """Evict surplus connections that were too young before."""
        for of_source in list(self._by_source.values()):
            self._thin_out(of_source, now)

    def _thin_out(self, of_source: dict[Evictable, None], now: float) -> None:
        while len(of_source) > self._per_source:
            oldest = next(iter(of_source))
            if now - self._sources[oldest][1] < _GRACE_SECONDS:
                return
            self._evict(oldest)

    def drop(self, client: Evictable) -> None:
        """Stop counting a connection: it has shown its proof, or belongs to a proxy."""
        source, _ = self._sources.pop(client, (None, 0.0))
        if source is not None:
            of_source = self._by_source[source]
            del of_source[client]
            if not of_source:
                del self._by_source[source]

    def closed(self, client: Evictable) -> None:
        self.drop(client)
        self._closing.discard(client)

    def make_room_for(self, newcomer: Evictable) -> bool:
        """Evict the oldest stranger. Return False when there is none except the newcomer."""
        oldest = next(iter(self._sources), newcomer)
        if oldest is newcomer:
            return False
        self._evict(oldest)
        return True

    def _evict(self, client: Evictable) -> None:
        self.drop(client)
        self._closing.add(client)
        self._refusals["connection_evicted"] += 1
        client.abort()
