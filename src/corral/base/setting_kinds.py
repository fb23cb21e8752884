"""Kinds of values: how the text of a flag, a variable or a file becomes a value, and what is allowed.

These are the kinds that any component may use. A kind that only one component has is declared beside its settings.
Every reader raises ValueError for a text that it cannot use, and nothing else.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from corral.base.errors import SettingInvalid
from corral.base.words import parse_duration

T = TypeVar("T")
U = TypeVar("U")

MAX_TEXT: Final = 255
MAX_SECRET: Final = 8192
_TRUE = frozenset({"1", "true", "yes", "on", "t", "y"})
_FALSE = frozenset({"0", "false", "no", "off", "f", "n"})
_SIZE = re.compile(r"([0-9]{1,18})\s*(|b|kb|mb|gb|kib|mib|gib)", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_WHOLE = re.compile(r"-?[0-9]{1,18}")


class Unforgivable(SettingInvalid):
    """A setting cannot be used and must not be passed over, because the next source would be less strict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingKind(Generic[T]):
    """How the text of a setting becomes a value of one type, and what is allowed.

    `salvage` is for texts of LocalAI's variables that cannot be read, where LocalAI uses a part, or passes them on. It
    returns the value and what is wrong, for a warning, or raises ValueError when nothing can be used.
    """

    placeholder: str
    """Stands for the value in help texts."""
    allowed: str
    """Ends the sentence "allowed is …"."""
    read: Callable[[str], T]
    read_table: Callable[[Mapping[str, object]], T] | None = None
    """For kinds that a file may write as a table."""
    read_tables: Callable[[Sequence[object]], T] | None = None
    """For kinds that a file may write as a list of tables."""
    salvage: Callable[[str], tuple[T, str]] | None = None
    is_switch: bool = False
    shown: Callable[[str], str] = str
    """Returns the text as it may appear in messages."""
    holds_password: Callable[[str], bool] | None = None
    """Whether this text would leak something if others could read it; None for kinds that never do."""

    def into(self, convert: Callable[[T], U]) -> "SettingKind[U]":
        """Return a kind that accepts these texts and converts what they mean. Not for kinds with tables."""
        plain: SettingKind[Any] = self
        return replace(plain, read=lambda text: convert(self.read(text)))


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
    placeholder="SECRET", allowed=f"1 to {MAX_SECRET} printable ASCII characters without blanks", read=_read_secret
)
SECRETS: Final = SettingKind(
    placeholder="SECRET[,SECRET…]",
    allowed=f"one secret or several, comma-separated, each of {SECRET.allowed}",
    read=lambda text: tuple(dict.fromkeys(_read_secret(secret.strip()) for secret in text.split(","))),
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
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE


SWITCH: Final = SettingKind(placeholder="true|false", allowed="true or false", read=_read_switch, is_switch=True)


def _read_whole(text: str) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text)


ANY_WHOLE: Final = SettingKind(placeholder="N", allowed="a whole number", read=_read_whole)


def whole(low: int, high: int) -> SettingKind[int]:
    """A whole number within bounds, both included."""
    return SettingKind(
        placeholder="N",
        allowed=f"a whole number from {low} to {high}",
        read=lambda text: _within(_read_whole(text), low, high),
    )


PORT: Final = whole(0, 65535)


def duration(low: str, high: str) -> SettingKind[timedelta]:
    """A duration within bounds, both included and written as a user would."""
    least, most = parse_duration(low), parse_duration(high)

    def read(text: str) -> timedelta:
        try:
            return _within(parse_duration(text), least, most)
        except OverflowError as error:
            raise ValueError(text) from error

    allowed = f"a duration such as 10s, 1m30s or 24h, from {low} to {high}"
    return SettingKind(placeholder="DURATION", allowed=allowed, read=read)


def seconds(low: str, high: str) -> SettingKind[float]:
    """A duration within bounds, read as a number of seconds."""
    return duration(low, high).into(timedelta.total_seconds)


def _read_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _SIZE_UNITS[match[2].lower()]


def size(low: str, high: str) -> SettingKind[int]:
    """A number of bytes within bounds, both included and written as a user would."""
    least, most = _read_size(low), _read_size(high)
    return SettingKind(
        placeholder="SIZE",
        allowed=f"a size such as 1048576, 512KiB or 8MiB, from {low} to {high}",
        read=lambda text: _within(_read_size(text), least, most),
    )


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


def split_url(url: str) -> SplitResult:
    """Split a URL; ValueError for a port that is not one, and for characters that no URL has."""
    if not url.isprintable() or " " in url:
        raise ValueError(url)
    parts = urlsplit(url)
    _ = parts.port
    return parts


def hide_password(text: str) -> str:
    """Remove a login and a query from a URL, from several URLs, or from a text that is no proper URL."""
    scheme, separator, address = text.partition("://") if "://" in text else ("", "", text)
    if "@" in address:
        address = "***@" + address.rpartition("@")[2]
    if "?" in address:
        address = address.partition("?")[0] + "?***"
    return scheme + separator + address


def _read_http_url(text: str) -> str:
    url = text.strip().rstrip("/")
    parts = split_url(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise ValueError(text)
    return url


HTTP_URL: Final = SettingKind(
    placeholder="URL",
    allowed="a URL such as http://10.0.0.1:8080, without a user, a query or a fragment",
    read=_read_http_url,
    shown=hide_password,
    holds_password=lambda text: "@" in text,
)


def items(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A reader of a comma-separated list with at least one item; the same item twice counts once."""

    def read_items(text: str) -> tuple[T, ...]:
        values = tuple(dict.fromkeys(read(item.strip()) for item in text.split(",") if item.strip()))
        if not values:
            raise ValueError(text)
        return values

    return read_items


HTTP_URLS: Final = SettingKind(
    placeholder="URL[,URL…]",
    allowed="a URL such as http://10.0.0.1:8080, or several, comma-separated; without a user, a query or a fragment",
    read=items(_read_http_url),
    shown=hide_password,
    holds_password=lambda text: "@" in text,
)


def _read_host(text: str) -> str:
    host = text.strip()
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not re.fullmatch(r"[\w.:%-]{1,255}", bare, re.ASCII):
        raise ValueError(text)
    return bare


HOST: Final = SettingKind(placeholder="HOST", allowed="a host name or an IP address", read=_read_host)
