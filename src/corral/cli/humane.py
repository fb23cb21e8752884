"""Sizes, ages and times as people read them."""

from datetime import datetime, timedelta

from corral.base.durations import format_duration
from corral.base.sizes import format_size as size
from corral.wire.times import ZERO, parse_time

__all__ = ["age", "ago", "moment", "parse_moment", "share", "size"]


def share(available: int, total: int) -> str:
    """`3.1 GiB of 7.8 GiB`; a dash when the total was not reported."""
    return f"{size(available)} of {size(total)}" if total > 0 else "–"


def ago(seconds: float) -> str:
    """`now`, `12s ago`, `3m 5s ago`."""
    return "now" if seconds < 1 else f"{format_duration(timedelta(seconds=seconds))} ago"


def moment(text: str | None, now: datetime) -> str:
    """A time of the API with its age: `2026-03-01 12:00:05 (2h 5m ago)`; a dash for none."""
    at = parse_moment(text)
    if at is None:
        return "–"
    distance = (now - at).total_seconds()
    relation = ago(distance) if distance >= 0 else f"in {format_duration(timedelta(seconds=-distance))}"
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S} ({relation})"


def age(text: str | None, now: datetime) -> str:
    at = parse_moment(text)
    return "–" if at is None else ago(max((now - at).total_seconds(), 0))


def parse_moment(text: str | None) -> datetime | None:
    """Read a time of the API; Go's zero time means never."""
    if not text or text == ZERO:
        return None
    try:
        return parse_time(text)
    except ValueError:
        return None
