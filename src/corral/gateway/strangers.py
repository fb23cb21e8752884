"""Connections that have shown no valid proof of who they are: they make room for others when there are too many.

A proof is a key that the view knows, or what a worker presents and control accepts. At a limit the oldest stranger is
closed, never the newcomer: whoever holds many connections open keeps nobody out, also not from the same address.
"""

from collections import Counter
from typing import Final, Protocol

_GRACE_SECONDS: Final = 3.0
"""So young a connection is closed only when there are too many in all: its first request may be on the way."""


class Evictable(Protocol):
    def abort(self) -> None: ...


class Strangers:
    def __init__(self, *, per_source: int, refusals: Counter[str]) -> None:
        """`refusals` counts those that are closed to make room."""
        self._per_source = per_source
        self._refusals = refusals
        self._sources: dict[Evictable, tuple[str, float]] = {}
        """Of each stranger, and since when it is one; the oldest first."""
        self._by_source: dict[str, dict[Evictable, None]] = {}
        self._closing: set[Evictable] = set()

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def closing(self) -> int:
        """How many were closed to make room, and are still open because the loop has not come to it."""
        return len(self._closing)

    def add(self, client: Evictable, source: str, now: float) -> None:
        """Count a connection under its source; the oldest of that source is closed when there are too many."""
        self.drop(client)
        self._sources[client] = source, now
        of_source = self._by_source.setdefault(source, {})
        of_source[client] = None
        self._thin_out(of_source, now)

    def sweep(self, now: float) -> None:
        """Close what is too much of each source and was too young for it before."""
        for of_source in list(self._by_source.values()):
            self._thin_out(of_source, now)

    def _thin_out(self, of_source: dict[Evictable, None], now: float) -> None:
        while len(of_source) > self._per_source:
            oldest = next(iter(of_source))
            if now - self._sources[oldest][1] < _GRACE_SECONDS:
                return
            self._evict(oldest)

    def drop(self, client: Evictable) -> None:
        """It has shown its proof, or is not to be counted any more."""
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
        """Close the oldest stranger. False when there is none beside the newcomer."""
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
