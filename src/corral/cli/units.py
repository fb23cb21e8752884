"""Sizes, ages, times and durations as people read and write them."""

from datetime import datetime, timedelta
from typing import Any, Final

import click

from corral.base.words import format_duration, parse_duration
from corral.base.words import format_size as size
from corral.wire.go_json import ZERO, parse_time

__all__ = ["age", "ago", "moment", "parse_moment", "share", "short_digest", "size"]
SHORT_ID: Final = 8
"""How many characters of an id commands show."""


def share(available: int, total: int) -> str:
    """`3.1 GiB of 7.8 GiB`; a dash when the total was not reported."""
    return f"{size(available)} of {size(total)}" if total > 0 else "–"


def short_digest(digest: str) -> str:
    return digest[: len("sha256:") + 12]


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
    """How long ago a time of the API was; a dash for none."""
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


class DurationParameter(click.ParamType[timedelta]):
    """The type of flags such as `--within 1m30s`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        try:
            return value if isinstance(value, timedelta) else parse_duration(value)
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)


def duration_text(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Check the text of a flag that is passed on to the API: it must be a duration."""
    if value:
        DurationParameter().convert(value, parameter, context)
    return value
