"""Which replica answers a request: the best rank, then the least loaded, then in turn."""

from collections.abc import Container, Iterable
from typing import Protocol, TypeVar


class RoutableReplica(Protocol):
    """A replica as routing sees it."""

    @property
    def id(self) -> str: ...

    @property
    def rank(self) -> int:
        """Lower is better; any rank is better than none."""

    @property
    def limit(self) -> int:
        """How many requests at once; 0 is without limit."""

    @property
    def in_flight(self) -> int: ...


C = TypeVar("C", bound=RoutableReplica)


def pick(candidates: Iterable[C], *, turn: int, exclude: Container[str] = ()) -> C | None:
    """The replica to ask, or None when all are full or excluded: then the request waits.

    A replica of a worse rank is chosen only when all better ones are full. `turn` is any number that grows from
    request to request: equally loaded replicas are taken in turn.
    """
    best: list[C] = []
    best_key: tuple[int, int] | None = None
    for candidate in candidates:
        in_flight = candidate.in_flight
        if candidate.id in exclude or (candidate.limit and in_flight >= candidate.limit):
            continue
        key = (candidate.rank, in_flight)
        if best_key is None or key < best_key:
            best, best_key = [candidate], key
        elif key == best_key:
            best.append(candidate)
    return best[turn % len(best)] if best else None
