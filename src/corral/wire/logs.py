"""Lines that backends wrote: as workers send them, and as the admin API shows them."""

import msgspec
from msgspec import UNSET, UnsetType


class LogLine(msgspec.Struct, kw_only=True):
    timestamp: str = ""
    """RFC 3339 with a fraction."""
    stream: str = ""
    """`stdout` or `stderr`."""
    text: str = ""
    length: int | UnsetType = UNSET
    """Bytes of the whole line, from Corral's workers where the text is only its beginning."""


class InitialLines(msgspec.Struct, kw_only=True, tag="initial", tag_field="type"):
    """First frame of a WebSocket: what is there already."""

    lines: list[LogLine] | None = None


class LiveLine(msgspec.Struct, kw_only=True, tag="line", tag_field="type"):
    """A later frame of a stream of log lines: one new line."""

    line: LogLine


class MissedLines(msgspec.Struct, kw_only=True, tag="missed", tag_field="type"):
    """A frame of Corral's workers for those who ask for it: so many lines were dropped here."""

    count: int = 0


class LogLineView(msgspec.Struct, kw_only=True):
    """A line that a backend wrote, also the `data` of a server-sent event `line`."""

    id: str
    """Its place in the log: `Last-Event-ID` of who goes on after it."""
    at: str
    """When, by the node's clock."""
    stream: str
    """`stdout` or `stderr`."""
    text: str
    truncated: bool = False
    """Whether the line was longer than what is shown."""
    length: int = 0
    """Bytes of the whole line."""


class LogGap(msgspec.Struct, kw_only=True):
    """`data` of a server-sent event `gap`: lines may be missing here."""

    gap: str
    """Why, as a sentence for people."""
    lost: int | None = None
    """How many; null while nobody knows, and 0 where none is missing so far."""


class LogPage(msgspec.Struct, kw_only=True):
    """The last lines of a model's processes on one node."""

    items: list[LogLineView]
