"""Lines that backends wrote, as the worker's HTTP port shows them."""

import msgspec


class LogLine(msgspec.Struct, kw_only=True):
    timestamp: str = ""
    """RFC 3339 with a fraction."""
    stream: str = ""
    """`stdout` or `stderr`."""
    text: str = ""


class InitialLines(msgspec.Struct, kw_only=True, tag="initial", tag_field="type"):
    """First frame of a WebSocket: what is there already."""

    lines: list[LogLine] | None = None


class LiveLine(msgspec.Struct, kw_only=True, tag="line", tag_field="type"):
    """Every later frame."""

    line: LogLine


LogFrame = InitialLines | LiveLine
