"""Which replica answered the beginning of a prompt before: it still has that part in its cache, and answers sooner.

A prompt is cut into windows, and each link of its chain stands for all windows up to there. Only models with several
replicas are remembered, each gateway remembers for itself, and old links make way for new ones.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_WINDOW: Final = 256
_MOST_WINDOWS: Final = 64
MOST_LINKS: Final = 16384
"""Most links in memory, about 3 MB."""
_BEGINNING: Final = re.compile(rb'"(?:messages|prompt|input)"')
"""What a prompt begins with in a body. Fields in front of it differ between requests that go on with a talk."""


class KnownBeginning(NamedTuple):
    """Where a beginning was answered, and how much of a prompt it is."""

    replica: str
    share: float


def chain_of(body: bytes) -> tuple[int, ...]:
    """The links of a request's prompt. They mean nothing outside of this process."""
    match = _BEGINNING.search(body)  # ends at the first one: bodies with pictures have megabytes
    start = 0 if match is None else match.start()
    links, link = [], 0
    for at in range(start, min(len(body), start + _WINDOW * _MOST_WINDOWS), _WINDOW):
        link = hash((link, body[at : at + _WINDOW]))
        links.append(link)
    return tuple(links)


class PrefixMemory:
    """The links of late, least recently used first."""

    def __init__(self, most: int = MOST_LINKS) -> None:
        self._most = most
        self._links: dict[tuple[str, int], tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._links)

    def find(self, model: str, chain: Sequence[int], *, since: float) -> KnownBeginning | None:
        """Who answered the longest beginning that was asked for since then."""
        for at in range(len(chain), 0, -1):
            link = self._links.get((model, chain[at - 1]))
            if link is not None and link[1] >= since:
                return KnownBeginning(link[0], at / len(chain))
        return None

    def keep(self, model: str, chain: Sequence[int], replica: str, *, now: float) -> None:
        links = self._links
        for link in chain:
            place = (model, link)
            links.pop(place, None)
            links[place] = (replica, now)
        while len(links) > self._most:
            del links[next(iter(links))]
