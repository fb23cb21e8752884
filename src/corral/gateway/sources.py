"""Source addresses, by which limits count, including clients behind trusted proxies."""

import ipaddress
from collections.abc import Sequence
from typing import Final

from corral.base.source_address import IpAddress, parsed_ip

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_LONGEST_FORWARDED: Final = 2048
_MOST_SOURCES: Final = 10_000


class TrustedProxies:
    """The proxies whose `X-Forwarded-For` is believed."""

    def __init__(self, networks: Sequence[IpNetwork]) -> None:
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
