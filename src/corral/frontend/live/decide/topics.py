"""Topics of the live stream: what they are called, who may read them, and where a reader stands.

A reader's place is opaque to it. It names the hub, the version that was seen, the newest event, and the topics that all
this holds for: a reader that comes back with one topic more gets a snapshot of that one, and changes of the others.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from corral.base.errors import InvalidInput
from corral.frontend.access.decide import Permission


class TopicKind(StrEnum):
    SUMMARY = "summary"
    ATTENTION = "attention"
    NODES = "nodes"
    REPLICAS = "replicas"
    OPERATIONS = "operations"
    LOADS = "loads"
    EVENTS = "events"
    OPERATION = "operation"
    NODE = "node"

    @property
    def is_about_one(self) -> bool:
        """Whether its name goes on with an id."""
        return self in (TopicKind.OPERATION, TopicKind.NODE)


PERMISSION: Final[Mapping[TopicKind, Permission]] = {
    TopicKind.SUMMARY: Permission.FLEET_READ,
    TopicKind.ATTENTION: Permission.FLEET_READ,
    TopicKind.NODES: Permission.NODES_READ,
    TopicKind.REPLICAS: Permission.MODELS_READ,
    TopicKind.OPERATIONS: Permission.OPERATIONS_READ,
    TopicKind.LOADS: Permission.MODELS_READ,
    TopicKind.EVENTS: Permission.AUDIT_READ,
    TopicKind.OPERATION: Permission.OPERATIONS_READ,
    TopicKind.NODE: Permission.NODES_READ,
}

MOST_TOPICS: Final = 40
"""Most topics of one reader."""
_ID: Final = re.compile(r"[A-Za-z0-9:._-]{1,100}")
_SHOWN: Final = 60


class Topic(NamedTuple):
    kind: TopicKind
    id: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.id}" if self.id else self.kind.value

    @property
    def mark(self) -> str:
        """A few letters for a reader's place; two topics may share one once in four thousand million times."""
        return f"{zlib.crc32(self.name.encode()):08x}" if self.id else _LETTERS[self.kind]


_LETTERS: Final[Mapping[TopicKind, str]] = {
    kind: letter for kind, letter in zip([kind for kind in TopicKind if not kind.is_about_one], "sanrole", strict=True)
}
EVERYTHING: Final = tuple(
    Topic(kind)
    for kind in (
        TopicKind.SUMMARY,
        TopicKind.ATTENTION,
        TopicKind.NODES,
        TopicKind.REPLICAS,
        TopicKind.OPERATIONS,
        TopicKind.LOADS,
    )
)
"""What a reader gets that names no topic."""


def read_topics(text: str | None) -> tuple[Topic, ...]:
    """Topics by their names with commas between them. InvalidInput names the first that there is not."""
    if text is None:
        return EVERYTHING
    topics = tuple(dict.fromkeys(_topic(name.strip()) for name in text.split(",") if name.strip()))
    if not topics:
        raise InvalidInput("topics", f"names no topic; say some of {_known()}")
    if len(topics) > MOST_TOPICS:
        raise InvalidInput("topics", f"names {len(topics)} topics, and {MOST_TOPICS} are the most")
    return topics


def _topic(name: str) -> Topic:
    kind, separator, id = name.partition(":")
    if kind in set(TopicKind):
        topic = Topic(TopicKind(kind), id)
        if topic.kind.is_about_one and _ID.fullmatch(id):
            return topic
        if not topic.kind.is_about_one and not separator:
            return topic
    raise InvalidInput("topics", f"there is no topic {name[:_SHOWN]!r}; say some of {_known()}")


def _known() -> str:
    return ", ".join(f"{kind}:ID" if kind.is_about_one else kind.value for kind in TopicKind)


def allowed(topics: Iterable[Topic], may: Callable[[Permission], bool]) -> tuple[Topic, ...]:
    """Return the topics that the caller may read."""
    return tuple(topic for topic in topics if may(PERMISSION[topic.kind]))


# Places.


class ReaderPlace(msgspec.Struct, frozen=True, kw_only=True):
    """How far a reader was when it was last heard of."""

    hub: str = ""
    version: int = 0
    sequence: int | None = None
    """The newest event that it has, where it reads events."""
    marks: frozenset[str] = frozenset()

    def covers(self, topic: Topic, hub: str) -> bool:
        """Whether its version says something about a topic of this hub."""
        return self.hub == hub and topic.mark in self.marks

    def __str__(self) -> str:
        letters = "".join(sorted(mark for mark in self.marks if len(mark) == 1))
        long_marks = sorted(mark for mark in self.marks if len(mark) > 1)
        sequence = "" if self.sequence is None else str(self.sequence)
        return f"{self.hub}.{self.version}.{sequence}.{'-'.join([letters, *long_marks])}"


_PLACE: Final = re.compile(r"([0-9a-z]{1,40})\.([0-9]{1,15})\.([0-9]{0,15})\.([a-z]*(?:-[0-9a-f]{8})*)")


def read_place(text: str) -> ReaderPlace:
    """What a reader calls its place; one that makes no sense is the beginning."""
    match = _PLACE.fullmatch(text[:2000])
    if match is None:
        return ReaderPlace()
    hub, version, sequence, marks = match.groups()
    letters, *long_marks = marks.split("-")
    return ReaderPlace(
        hub=hub,
        version=int(version),
        sequence=int(sequence) if sequence else None,
        marks=frozenset([*letters, *long_marks]),
    )
