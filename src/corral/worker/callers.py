"""Connections that have not shown who they are: how many there may be, and which of them makes room for another.

Decides only: whoever owns the connections closes them.
"""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from corral.base.ids import source_of


class CallerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What callers may take before they have shown who they are."""

    opening_seconds: float = 10.0
    """How long a caller may take to say who it is: to the end of its handshake, or of its first request's head."""
    first_byte_seconds: float = 3.0
    """From the connection to the first byte of a handshake, which every honest caller sends at once."""
    most_opening: int = 1024
    """Callers at once that have not shown a certificate or a token."""
    most_from_one: int = 512
    """How many of these may come from one source address. A gateway may open some hundreds at once when it begins."""


def fitting(limits: CallerLimits, descriptors: int) -> CallerLimits:
    """Reduce the limits so that strangers never hold more than a quarter of a process's descriptors."""
    most = min(limits.most_opening, max(descriptors // 4, 2))
    return msgspec.structs.replace(limits, most_opening=most, most_from_one=min(limits.most_from_one, most // 2))


Connection = TypeVar("Connection", bound=Hashable)


@dataclass(slots=True)
class _Opening:
    source: str
    is_silent: bool = True
    """Whether it has not said anything yet."""


class UnknownCallers(Generic[Connection]):
    """Connections whose callers have not shown who they are, the oldest first."""

    def __init__(self, limits: CallerLimits) -> None:
        self._limits = limits
        self._opening: dict[Connection, _Opening] = {}
        self._from: Counter[str] = Counter()
        """How many of them are from each source address."""

    def admit(self, connection: Connection, host: str) -> Connection | None:
        """Count a new connection. Where there are too many already, return the one to close, which is not counted
        any more: the one that is most likely not honest, which is the oldest that said nothing, else the oldest."""
        source = source_of(host)
        leaving = self._superfluous(source)
        if leaving is not None:
            self.forget(leaving)
        self._opening[connection] = _Opening(source)
        self._from[source] += 1
        return leaving

    def note_words(self, connection: Connection) -> None:
        """The caller said something, although not yet who it is."""
        if connection in self._opening:
            self._opening[connection].is_silent = False

    def forget(self, connection: Connection) -> None:
        """The caller has shown who it is, or has left."""
        opening = self._opening.pop(connection, None)
        if opening is None:
            return
        self._from[opening.source] -= 1
        if not self._from[opening.source]:
            del self._from[opening.source]

    def _superfluous(self, source: str) -> Connection | None:
        if self._from[source] >= self._limits.most_from_one:
            return self._least_honest(each for each, opening in self._opening.items() if opening.source == source)
        if len(self._opening) >= self._limits.most_opening:
            return self._least_honest(self._opening)
        return None

    def _least_honest(self, connections: Iterable[Connection]) -> Connection:
        oldest = list(connections)
        return next((each for each in oldest if self._opening[each].is_silent), oldest[0])
