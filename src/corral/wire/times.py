"""Times on the wire: RFC 3339 in UTC, fractions without trailing zeros, as Go writes them."""

from datetime import UTC, datetime
from typing import Final

ZERO: Final = "0001-01-01T00:00:00Z"
"""What Go sends for a time that was never set."""


def format_time(time: datetime) -> str:
    moment = time.astimezone(UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    fraction = f"{moment.microsecond:06d}".rstrip("0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


def parse_time(text: str) -> datetime:
    """Read any RFC 3339 time; digits beyond microseconds are cut off. ValueError when it is none."""
    cleaned = text.strip()
    head, dot, tail = cleaned.partition(".")
    if dot:
        digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
        cleaned = f"{head}.{digits[:6].ljust(6, '0')}{tail[len(digits) :]}"
    moment = datetime.fromisoformat(cleaned)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return moment.astimezone(UTC)
