"""Connections that have shown no valid proof of who they are: they make room for others when there are too many.

A proof is a key that the view knows, or what a worker presents and control accepts. At a limit the oldest stranger is
closed, never the newcomer: whoever holds many connections open keeps nobody out, also not from the same address.
"""

from collections import Counter
from typing import Protocol


class Evictable(Protocol):
    def abort(self) -> None: ...


class Strangers:
    def __init__(self, *, per_source: int, refusals: Counter[str]) -> None:
        """`refusals` counts those that are closed to make room."""
        self._per_source = per_source
        self._refusals = refusals
        self._sources: dict[Evictable, str] = {}
        """Of each stranger, the oldest first."""
        self._by_source: dict[str, dict[Evictable, None]] = {}
        self._closing: set[Evictable] = set()

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def closing(self) -> int:
        """How many were closed to make room, and are still open because the loop has not come to it."""
        return len(self._closing)

    def add(self, client: Evictable, source: str) -> None:
        """Count a connection under its source; the oldest of that source is closed when there are too many."""
        self.drop(client)
        self._sources[client] = source
        of_source = self._by_source.setdefault(source, {})
        of_source[client] = None
        if len(of_source) > self._per_source:
            self._evict(next(iter(of_source)))

    def drop(self, client: Evictable) -> None:
        """It has shown its proof, or is not to be counted any more."""
        source = self._sources.pop(client, None)
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
