"""Numbers, durations, lists and sentences in words, and words back to durations."""

import difflib
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

_NAMED: Final = 5
_NAMED_NEAR: Final = 3
_GAP: Final = " […] "
_TELLING: Final = 3
"""A shorter beginning says little about the name that is meant."""


def listed(names: Sequence[str], *, most: int = _NAMED) -> str:
    """Join names with commas, and count those beyond the first few: `w1, w2 and 998 more`."""
    first, more = ", ".join(names[:most]), len(names) - most
    return f"{first} and {more} more" if more > 0 else first


def near_names(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """Return up to three names that may be meant, whatever their case: those that begin with the name, then similar
    ones. `cutoff` is how similar, from 0 to 1."""
    by_case = {other.casefold(): other for other in names if other}
    asked = name.casefold()
    longer = sorted(other for other in by_case if len(asked) >= _TELLING and other.startswith(asked))
    similar = difflib.get_close_matches(asked, by_case, n=_NAMED_NEAR, cutoff=cutoff)
    return [by_case[other] for other in dict.fromkeys([*longer, *similar])][:_NAMED_NEAR]


def counted(count: int, word: str) -> str:
    """A number with its noun: `1 replica`, `2 replicas`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def sentences(parts: Iterable[str]) -> str:
    """Join sentences: all but the last end with a full stop or what they end with, and each next one begins large."""
    first, *following = [part for part in parts if part] or [""]
    for part in following:
        first += f"{'' if first.endswith(('.', '?', '!')) else '.'} {part[0].upper()}{part[1:]}"
    return first


def printable(text: str) -> str:
    """The text without characters that move the cursor, change colours or end a line: names may come from strangers."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "�" for character in text)


def printable_lines(text: str, *, indent: str = "") -> str:
    """The text with the ends of its lines and otherwise as `printable` returns it. All lines but the first get the
    indent, so that none looks like the beginning of another message."""
    return f"\n{indent}".join(map(printable, text.splitlines()))


def abridged(text: str, most: int) -> str:
    """The text, without its middle if it has more characters than that: the beginning of an error says what was done,
    and the end why it failed."""
    if len(text) <= most:
        return text
    half = (most - len(_GAP)) // 2
    return f"{text[:half]}{_GAP}{text[-half:]}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines in which the cells of each column begin at the same place, two blanks after the longest."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


_SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")


def parse_duration(text: str) -> timedelta:
    """Parse a duration. Raise ValueError with a complete sentence when it is not one."""
    cleaned = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        return timedelta(seconds=float(cleaned))
    if not _WHOLE.fullmatch(cleaned):
        raise ValueError(f"{text!r} is not a duration; write for example 10s, 1m30s or 24h")
    return timedelta(seconds=sum(float(number) * _SECONDS_OF[unit] for number, unit in _PART.findall(cleaned)))


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


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_size(count: int) -> str:
    """Format a size with up to three significant digits, such as `7.8 GiB`."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"
