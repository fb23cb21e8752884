"""How backends are confined: what a frontend asks for, and what a worker says its machine can give."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec


class BackendNetwork(StrEnum):
    """Where a backend may connect to. Its own ports can listen in any case."""

    NONE = "none"
    LOOPBACK = "loopback"
    """Connections only within the backend's own machine."""
    ANY = "any"


STRICTEST_FIRST: Final = (BackendNetwork.NONE, BackendNetwork.LOOPBACK, BackendNetwork.ANY)


def read_network(word: str) -> BackendNetwork | None:
    """Return the network that a word of a peer or of a manifest means; None for any other word."""
    return BackendNetwork(word) if word in set(BackendNetwork) else None


def strictest(networks: Iterable[BackendNetwork]) -> BackendNetwork:
    return min(networks, key=STRICTEST_FIRST.index)


class ConfinementWish(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """What an administrator decided for a backend, in an install request. Feature `confinement`."""

    network: str = ""
    """A `BackendNetwork`; empty: as the backend's manifest and the worker's setting say."""
    is_off: bool = False
    """The backend runs with all rights of the worker's user."""
    most: dict[str, str] = {}
    """Networks that were decided for other names of backends. A program that has one of them is confined, with no more
    network than that, by whatever name it was asked for."""

    def limits(self, names: Iterable[str]) -> list[BackendNetwork]:
        """Networks that a program with these names may not exceed. A word that nobody knows gives nothing."""
        return [read_network(self.most[name]) or BackendNetwork.NONE for name in names if name in self.most]


class ConfinementReport(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """What a worker's machine offers for confining backends, sent at registration."""

    is_on: bool = False
    landlock: int = 0
    """Version of Landlock; 0 without it."""
    filters_calls: bool = False
    """System calls are filtered (seccomp)."""
    own_users: bool = False
    """Each backend runs as a user of its own."""
    cgroup: str = ""
    """`v2`, `v1` or empty: whether processes of a backend end together."""
    limits: list[str] = []
    """Which limits hold: `memory`, `processes`."""
    loopback: str = ""
    """How the network `loopback` is kept: `address`; `port`: by port numbers alone; empty: not at all."""
    missing: list[str] = []
    """What the machine cannot give and what to do about it, as sentences."""


_MOST_SENTENCES: Final = 20
_LONGEST_SENTENCE: Final = 500
_LONGEST_WORD: Final = 20


def read_confinement(document: object) -> ConfinementReport | None:
    """Return what a worker said, bounded; None when it said nothing that can be read."""
    try:
        report = msgspec.convert(document, ConfinementReport)
    except msgspec.ValidationError:
        return None
    return msgspec.structs.replace(
        report,
        landlock=min(max(report.landlock, 0), 1000),
        cgroup=report.cgroup[:_LONGEST_WORD],
        loopback=report.loopback[:_LONGEST_WORD],
        limits=[word[:_LONGEST_WORD] for word in report.limits[:_MOST_SENTENCES]],
        missing=[sentence[:_LONGEST_SENTENCE] for sentence in report.missing[:_MOST_SENTENCES]],
    )


class PolicyAsk(msgspec.Struct, kw_only=True):
    """Body of `PUT /api/v1/backend-policies/{backend}`."""

    network: str = ""
    is_confined: bool = True
    reason: str = ""
    """Why it is not confined; needed then."""


class PolicyView(msgspec.Struct, kw_only=True):
    """What people decided about one backend: `GET /api/v1/backend-policies`."""

    backend: str
    network: str
    """Empty: as the backend's manifest and the worker's setting say."""
    is_confined: bool
    reason: str
    changed_at: str
    changed_by: str
