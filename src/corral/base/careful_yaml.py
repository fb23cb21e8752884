"""Reads YAML from untrusted sources.

A document is first checked as a stream of events, which costs no more than its size. What would cost more later, such
as nested aliases, is refused there. Only then may it be built into objects.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    ScalarEvent,
)

LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C is twenty times as fast as the one in Python; both accept the same documents."""
SHOWN: Final = 80
"""How many characters of untrusted text a message may contain."""


class YamlUnusable(Exception):
    """Why a document cannot be used: the end of a sentence that begins with the document's name."""


class YamlRefused(YamlUnusable):
    """Why nothing of a document can be used, however good its parts may be."""


class YamlLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that no honest document of its kind reaches."""

    deepest: int = 32
    most_values: int
    """Number of values with all aliases expanded."""
    things: str = "entries"
    """Plural of what the document describes, for an error message about lists."""


def check_events(text: str, limits: YamlLimits) -> None:
    """Raise YamlUnusable for a document that would cost more than its size to build."""
    for _ in checked_events(text, limits):
        pass


def checked_events(text: str, limits: YamlLimits) -> Iterator[Event]:
    """Yield the events of a document while checking the limits. Raise YamlUnusable, or YAML's own error."""
    weigher = Weigher(limits)
    for event in one_document(yaml.parse(text, Loader=LOADER), limits):
        weigher.take(event)
        yield event


def one_document(events: Iterable[Event], limits: YamlLimits) -> Iterator[Event]:
    """Yield the events of a stream. Raise YamlRefused when a second document begins."""
    documents = 0
    for event in events:
        documents += isinstance(event, DocumentStartEvent)
        if documents > 1:
            raise YamlRefused(f"holds more than one document; write several {limits.things} as a list")
        yield event


def why(error: Exception, *, first_line: int = 1) -> str:
    """Say in a few words what is wrong with a document, for any exception of a parser or builder. `first_line` is that
    of the text that was read."""
    if isinstance(error, yaml.YAMLError):
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + first_line}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        return f"is not YAML: {problem[:SHOWN]}{where}"
    if isinstance(error, YamlUnusable):
        return str(error)
    return f"holds a value that cannot be read: {str(error)[:SHOWN]}"


UNREADABLE: Final = (YamlUnusable, yaml.YAMLError, ValueError, RecursionError, OverflowError)
"""Everything that reading a document can raise. The last ones are caused by impossible dates and numbers."""


def line_of(event: Event) -> int:
    return 0 if event.start_mark is None else int(event.start_mark.line) + 1


@dataclass(slots=True)
class _Frame:
    """A list or a mapping that is being read."""

    anchor: str | None
    size: int = 1


class Weigher:
    """Computes a document's size with its aliases expanded, without expanding them."""

    def __init__(self, limits: YamlLimits) -> None:
        self._limits = limits
        self.lines_before = 0
        """Lines of the document before the text that events are of."""
        self._frames = [_Frame(None)]
        self._weights: dict[str, int] = {}

    def forget_open(self) -> None:
        """Drop the lists and mappings that are incomplete, but not what they weigh."""
        self._frames = [_Frame(None, sum(frame.size for frame in self._frames))]

    def take(self, event: Event) -> None:
        """Process an event. Raise YamlRefused for what is too large, YamlUnusable for other reasons."""
        match event:
            case CollectionStartEvent():
                if len(self._frames) > self._limits.deepest:
                    raise YamlUnusable(
                        f"is nested more than {self._limits.deepest} levels deep, in line {self._line(event)}"
                    )
                self._frames.append(_Frame(event.anchor))
            case CollectionEndEvent():
                done = self._frames.pop()
                self._finish(done.anchor, done.size)
            case ScalarEvent():
                self._finish(event.anchor, 1)
            case AliasEvent():
                name = event.anchor or ""
                if name not in self._weights:
                    within = any(frame.anchor == name for frame in self._frames)
                    problem = "contains itself" if within else "is not there"
                    raise YamlUnusable(f"has an alias *{name[:SHOWN]} to what {problem}, in line {self._line(event)}")
                self._finish(None, self._weights[name])

    def _line(self, event: Event) -> int:
        return line_of(event) + self.lines_before

    def _finish(self, anchor: str | None, size: int) -> None:
        if anchor is not None:
            self._weights[anchor] = size
        frame = self._frames[-1]
        frame.size += size
        if frame.size > self._limits.most_values:
            most = self._limits.most_values
            raise YamlRefused(f"stands for more than {most} values: do its aliases repeat each other?")
