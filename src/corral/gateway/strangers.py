"""Eviction of connections that have not proven who they are, when there are too many.

A proof is a key in the view, or a worker's bearer that control accepts. At a limit the oldest stranger is closed, never
the newcomer: holding many connections open keeps nobody out, not even from the same address.
"""

from collections import Counter
from typing import Final, Protocol

_GRACE_SECONDS: Final = 3.0
"""Younger connections are evicted only at the global limit: their first request may be on its way."""


class Evictable(Protocol):
    def abort(self) -> None: ...


class Strangers:
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
