"""Lines that backends wrote, for who reads them: which are meant, how long they may be, and what is missing. Pure.

A worker keeps the last thousand lines. Who follows them gets what is there and then each that comes; after a break, the
lines from the last one on that was seen. If that one is not there any more, lines may be missing, and that is marked.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET

from corral.base.errors import InvalidInput
from corral.wire.go_json import parse_time
from corral.wire.logs import InitialLines, LiveLine, LogGap, LogLine, LogLineView, MissedLines

LONGEST_LINE: Final = 16 * 1024
"""Bytes of a line that are shown."""
MOST_LINES: Final = 1000
_LONGEST_TIME: Final = 40
FORGOTTEN: Final = "the worker does not have the lines any more that came after the last one"
TOO_SLOW: Final = "lines came faster than they could be sent"

WorkerFrame = InitialLines | LiveLine | MissedLines
LogFrame = LogLineView | LogGap


class LogPlace(NamedTuple):
    """A line of a log, by its time and by which one of that time it is. Nodes are not trusted to write good times."""

    at: str
    number: int

    def __str__(self) -> str:
        return f"{self.at}/{self.number}"

    def next(self, line: LogLine) -> "LogPlace":
        """The place of the line that comes after this one."""
        at = _time_of(line)
        return LogPlace(at, self.number + 1 if at == self.at else 1)


NOWHERE: Final = LogPlace("", 0)
"""The place before the first line."""


def read_place(text: str) -> LogPlace:
    """The place with this id; NOWHERE for an empty one."""
    if not text:
        return NOWHERE
    at, _, number = text.rpartition("/")
    if not at or len(at) > _LONGEST_TIME or not (number.isascii() and number.isdigit() and len(number) <= 6):
        raise InvalidInput("Last-Event-ID", f"must be the id of a line, got {text[:60]!r}")
    return LogPlace(at, int(number))


class PlacedLine(NamedTuple):
    place: LogPlace
    line: LogLine


def _placed(lines: Iterable[LogLine]) -> list[PlacedLine]:
    place, placed = NOWHERE, []
    for line in lines:
        place = place.next(line)
        placed.append(PlacedLine(place, line))
    return placed


def _time_of(line: LogLine) -> str:
    return "".join(character for character in line.timestamp if "!" <= character <= "~")[:_LONGEST_TIME]


class WantedLines(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines somebody wants to see."""

    lines: int = 200
    """At most so many of those that are there already."""
    since: datetime | None = None
    after: LogPlace = NOWHERE
    """The last line that was seen before."""
    search: str = ""
    """A text that a line has, whatever its case."""

    def means(self, line: LogLine) -> bool:
        if self.search and self.search.lower() not in line.text.lower():
            return False
        return self.since is None or _is_later(line.timestamp, self.since, or_then=True)


def _is_later(time: str, than: datetime, *, or_then: bool = False) -> bool:
    """A time that makes no sense counts as later, so that its line is shown: nobody knows better."""
    try:
        moment = parse_time(time)
    except ValueError:
        return True
    return moment > than or (or_then and moment == than)


def shown(placed: PlacedLine) -> LogLineView:
    """A line as people see it, cut at its longest."""
    place, line = placed
    raw = line.text.encode("utf-8", "replace")
    length = len(raw) if line.length is UNSET else max(line.length, len(raw))
    return LogLineView(
        id=str(place),
        at=place.at,
        stream=line.stream[:20],
        text=raw[:LONGEST_LINE].decode("utf-8", "ignore"),
        truncated=length > min(len(raw), LONGEST_LINE),
        length=length,
    )


class LogTail:
    """What one reader has seen of some processes, and what is new to it."""

    def __init__(self, query: WantedLines) -> None:
        self._query = query
        self._place = query.after
        self._has_begun = query.after != NOWHERE

    def take(self, frame: WorkerFrame) -> Iterator[LogFrame]:
        """What a frame of the worker means for the reader."""
        match frame:
            case InitialLines(lines=lines):
                yield from self._begin(_placed(lines or []))
            case LiveLine(line=line):
                self._place = self._place.next(line)
                if self._query.means(line):
                    yield shown(PlacedLine(self._place, line))
            case MissedLines(count=count):
                yield LogGap(gap=TOO_SLOW, lost=max(count, 0))

    def page(self, lines: Sequence[LogLine]) -> list[LogLineView]:
        """The last lines that are meant."""
        return [frame for frame in self._begin(_placed(lines)) if isinstance(frame, LogLineView)]

    def _begin(self, lines: Sequence[PlacedLine]) -> Iterator[LogFrame]:
        last, is_again = self._place, self._has_begun
        self._has_begun = True
        if lines:
            self._place = lines[-1].place
        new, is_whole = _after(lines, last)
        if not is_whole:
            yield LogGap(gap=FORGOTTEN)
        selected = [placed for placed in new if self._query.means(placed.line)]
        if not is_again:
            selected = selected[-self._query.lines :] if self._query.lines else []
        yield from map(shown, selected)


def _after(lines: Sequence[PlacedLine], last: LogPlace) -> tuple[Sequence[PlacedLine], bool]:
    """The lines after one that was seen, and whether they are all: those of its worker, which may have forgotten it."""
    if last == NOWHERE:
        return lines, True
    for index in reversed(range(len(lines))):
        if lines[index].place == last:
            return lines[index + 1 :], True
    try:
        then = parse_time(last.at)
    except ValueError:
        return lines, False
    return [placed for placed in lines if _is_later(placed.line.timestamp, then)], False
