"""What a kind is, and those that anything may have: text, secrets, numbers, times, sizes, words and paths.

Every reader raises ValueError for what it cannot use, whatever the text, and nothing else.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from corral.base.durations import parse_duration
from corral.base.errors import SettingInvalid

if TYPE_CHECKING:
    pass

T = TypeVar("T")

MAX_TEXT: Final = 255
MAX_SECRET: Final = 8192
_TRUE = frozenset({"1", "true", "yes", "on", "t", "y"})
_FALSE = frozenset({"0", "false", "no", "off", "f", "n"})
_SIZE = re.compile(r"([0-9]{1,18})\s*(|b|kb|mb|gb|kib|mib|gib)", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_WHOLE = re.compile(r"-?[0-9]{1,18}")


class Unforgivable(SettingInvalid):
    """A setting that cannot be used, and must not be passed over: the next source would be less strict."""


def _shown_whole(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingKind(Generic[T]):
    """One kind of value."""

    placeholder: str
    """What stands for the value in help texts."""
    allowed: str
    """Ends the sentence "allowed is …"."""
    read: Callable[[str], T]
    read_table: Callable[[Mapping[str, object]], T] | None = None
    """For kinds that a file may write as a table."""
    read_tables: Callable[[Sequence[object]], T] | None = None
    """For kinds that a file may write as a list of tables."""
    is_switch: bool = False
    shown: Callable[[str], str] = _shown_whole
    """The text as it may appear in messages."""
    holds_password: Callable[[str], bool] | None = None
    """Whether this text would leak something if others could read it; None for kinds that never do."""

    @property
    def may_hold_password(self) -> bool:
        return self.holds_password is not None


def _read_text(text: str) -> str:
    if not text.strip() or len(text) > MAX_TEXT or not text.isprintable():
        raise ValueError(text)
    return text.strip()


TEXT: Final = SettingKind(placeholder="TEXT", allowed=f"printable text of 1 to {MAX_TEXT} characters", read=_read_text)


def _read_secret(text: str) -> str:
    if not 0 < len(text) <= MAX_SECRET or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError
    return text


SECRET: Final = SettingKind(
    placeholder="SECRET",
    allowed=f"1 to {MAX_SECRET} printable ASCII characters without blanks",
    read=_read_secret,
)


def _read_secrets(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_read_secret(one.strip()) for one in text.split(",")))


SECRETS: Final = SettingKind(
    placeholder="SECRET[,SECRET…]",
    allowed=f"one secret or several, comma-separated, each of {SECRET.allowed}",
    read=_read_secrets,
)


def _read_password(text: str) -> str:
    if not 0 < len(text) <= MAX_SECRET or not text.isprintable():
        raise ValueError
    return text


PASSWORD: Final = SettingKind(
    placeholder="PASSWORD", allowed=f"1 to {MAX_SECRET} printable characters", read=_read_password
)


def _read_switch(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(text)


SWITCH: Final = SettingKind(placeholder="true|false", allowed="true or false", read=_read_switch, is_switch=True)


def _read_whole(text: str) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text)


ANY_WHOLE: Final = SettingKind(placeholder="N", allowed="a whole number", read=_read_whole)


def whole(low: int, high: int) -> SettingKind[int]:
    """A whole number within bounds, both included."""

    def read(text: str) -> int:
        return _within(_read_whole(text), low, high)

    return SettingKind(placeholder="N", allowed=f"a whole number from {low} to {high}", read=read)


PORT: Final = whole(0, 65535)


def duration(low: timedelta, high: timedelta, *, bounds: str) -> SettingKind[timedelta]:
    """A duration within bounds; `bounds` says them in words."""

    def read(text: str) -> timedelta:
        try:
            return _within(parse_duration(text), low, high)
        except OverflowError as error:
            raise ValueError(text) from error

    return SettingKind(placeholder="DURATION", allowed=f"a duration such as 10s, 1m30s or 24h, {bounds}", read=read)


def size(low: int, high: int, *, bounds: str) -> SettingKind[int]:
    """A number of bytes within bounds; `bounds` says them in words."""

    def read(text: str) -> int:
        match = _SIZE.fullmatch(text.strip())
        if match is None:
            raise ValueError(text)
        return _within(int(match[1]) * _SIZE_UNITS[match[2].lower()], low, high)

    return SettingKind(placeholder="SIZE", allowed=f"a size such as 1048576, 512KiB or 8MiB, {bounds}", read=read)


Comparable = TypeVar("Comparable", int, timedelta)


def _within(value: Comparable, low: Comparable, high: Comparable) -> Comparable:
    if not low <= value <= high:
        raise ValueError(value)
    return value


def choice(*words: str) -> SettingKind[str]:
    """One of a few words."""

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    listed = ", ".join(words[:-1]) + f" or {words[-1]}"
    return SettingKind(placeholder="|".join(words), allowed=listed, read=read)


def _read_path(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise ValueError(text)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # `~someone` who is not there
        raise ValueError(text) from error


PATH: Final = SettingKind(placeholder="PATH", allowed="a path", read=_read_path)


def _read_existing_file(text: str) -> Path:
    path = _read_path(text)
    try:
        is_file = path.is_file()
    except OSError as error:
        raise ValueError(text) from error
    if not is_file:
        raise ValueError(text)
    return path


EXISTING_FILE: Final = SettingKind(
    placeholder="FILE", allowed="the path of a file that exists", read=_read_existing_file
)
