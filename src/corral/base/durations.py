"""Durations as people write them: `10s`, `1m30s`, `250ms`, `24h`, or a plain number of seconds."""

import re
from datetime import timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")


def parse_duration(text: str) -> timedelta:
    """Parse a duration. Raise ValueError with a complete sentence when it is not one."""
    cleaned = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        return timedelta(seconds=float(cleaned))
    if not _WHOLE.fullmatch(cleaned):
        raise ValueError(f"{text!r} is not a duration; write for example 10s, 1m30s or 24h")
    return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(cleaned)))


def format_duration(duration: timedelta) -> str:
    """Format a duration in its two largest units: `45s`, `3m 5s`, `2h 10m`, `4d 1h`."""
    seconds = int(duration.total_seconds())
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60}s"
    if seconds < 86400:
        return f"{seconds // 3600}h {seconds % 3600 // 60}m"
    return f"{seconds // 86400}d {seconds % 86400 // 3600}h"
