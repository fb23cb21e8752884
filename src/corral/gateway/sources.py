"""Where connections come from: the address that limits count by, also behind proxies that we trust."""

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
        """The last address of the header that is no proxy of ours: those before it are what the client itself wrote.

        None when the proxy did not say whom it speaks for.
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
    """How often a source may do something: so many times per minute, 0 is without limit, and `burst` times at once;
    that is as many where it is not given."""

    def __init__(self, per_minute: int, *, burst: int | None = None) -> None:
        self._per_minute = per_minute
        self._burst = per_minute if burst is None else burst
        self._spent: dict[str, tuple[float, float]] = {}
        """How much each source has spent, and when that was true. Sources that spent nothing lately are forgotten."""

    def take(self, source: str, now: float) -> float:
        """0 when the source may go on; otherwise the seconds after which it may."""
        if not self._per_minute:
            return 0.0
        spent = self._left_of(source, now)
        if spent + 1 > self._burst:
            return (spent + 1 - self._burst) * 60 / self._per_minute
        self._spent.pop(source, None)  # so that the dictionary stays in the order of the last use
        self._spent[source] = (spent + 1, now)
        if len(self._spent) > _MOST_SOURCES:
            del self._spent[next(iter(self._spent))]
        return 0.0

    def give_back(self, source: str) -> None:
        """What the source took last is not to be counted."""
        spent, at = self._spent.get(source, (0.0, 0.0))
        if spent > 1:
            self._spent[source] = (spent - 1, at)
        else:
            self._spent.pop(source, None)

    def _left_of(self, source: str, now: float) -> float:
        spent, at = self._spent.get(source, (0.0, now))
        return max(0.0, spent - (now - at) * self._per_minute / 60)


class AcceptedBearers:
    """Hashes of what workers presented and control accepted; those that were used last are remembered."""

    def __init__(self, most: int = _MOST_SOURCES) -> None:
        self._most = most
        self._hashes: dict[str, None] = {}

    def __contains__(self, hash: str) -> bool:
        return hash in self._hashes

    def add(self, hash: str) -> None:
        self._hashes.pop(hash, None)  # so that the dictionary stays in the order of the last use
        self._hashes[hash] = None
        if len(self._hashes) > self._most:
            del self._hashes[next(iter(self._hashes))]

    def drop(self, hash: str) -> None:
        self._hashes.pop(hash, None)
