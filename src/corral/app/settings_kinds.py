"""Kinds of values: how the text of a flag, a variable or a file becomes a value, and what to say when it does not.

Every reader raises ValueError for what it cannot use, whatever the text, and nothing else.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from corral.base.durations import parse_duration
from corral.base.errors import InvalidInput, SettingInvalid
from corral.domain.labels import label_problem
from corral.domain.vram_budget import VramBudget

if TYPE_CHECKING:
    from corral.domain.gallery import GallerySource
    from corral.protocol.install import Gallery

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
class Kind(Generic[T]):
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


TEXT: Final = Kind(placeholder="TEXT", allowed=f"printable text of 1 to {MAX_TEXT} characters", read=_read_text)


def _read_secret(text: str) -> str:
    if not 0 < len(text) <= MAX_SECRET or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError
    return text


SECRET: Final = Kind(
    placeholder="SECRET",
    allowed=f"1 to {MAX_SECRET} printable ASCII characters without blanks",
    read=_read_secret,
)


def _read_password(text: str) -> str:
    if not 0 < len(text) <= MAX_SECRET or not text.isprintable():
        raise ValueError
    return text


PASSWORD: Final = Kind(placeholder="PASSWORD", allowed=f"1 to {MAX_SECRET} printable characters", read=_read_password)


def _read_switch(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(text)


SWITCH: Final = Kind(placeholder="true|false", allowed="true or false", read=_read_switch, is_switch=True)


def _read_whole(text: str) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text)


ANY_WHOLE: Final = Kind(placeholder="N", allowed="a whole number", read=_read_whole)


def whole(low: int, high: int) -> Kind[int]:
    """A whole number within bounds, both included."""

    def read(text: str) -> int:
        return _within(_read_whole(text), low, high)

    return Kind(placeholder="N", allowed=f"a whole number from {low} to {high}", read=read)


PORT: Final = whole(0, 65535)


def duration(low: timedelta, high: timedelta, *, bounds: str) -> Kind[timedelta]:
    """A duration within bounds; `bounds` says them in words."""

    def read(text: str) -> timedelta:
        try:
            return _within(parse_duration(text), low, high)
        except OverflowError as error:
            raise ValueError(text) from error

    return Kind(placeholder="DURATION", allowed=f"a duration such as 10s, 1m30s or 24h, {bounds}", read=read)


def size(low: int, high: int, *, bounds: str) -> Kind[int]:
    """A number of bytes within bounds; `bounds` says them in words."""

    def read(text: str) -> int:
        match = _SIZE.fullmatch(text.strip())
        if match is None:
            raise ValueError(text)
        return _within(int(match[1]) * _SIZE_UNITS[match[2].lower()], low, high)

    return Kind(placeholder="SIZE", allowed=f"a size such as 1048576, 512KiB or 8MiB, {bounds}", read=read)


Comparable = TypeVar("Comparable", int, timedelta)


def _within(value: Comparable, low: Comparable, high: Comparable) -> Comparable:
    if not low <= value <= high:
        raise ValueError(value)
    return value


def choice(*words: str) -> Kind[str]:
    """One of a few words."""

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(text)
        return word

    listed = ", ".join(words[:-1]) + f" or {words[-1]}"
    return Kind(placeholder="|".join(words), allowed=listed, read=read)


def _read_path(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise ValueError(text)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # `~someone` who is not there
        raise ValueError(text) from error


PATH: Final = Kind(placeholder="PATH", allowed="a path", read=_read_path)


def _read_existing_file(text: str) -> Path:
    path = _read_path(text)
    try:
        is_file = path.is_file()
    except OSError as error:
        raise ValueError(text) from error
    if not is_file:
        raise ValueError(text)
    return path


EXISTING_FILE: Final = Kind(placeholder="FILE", allowed="the path of a file that exists", read=_read_existing_file)


def _split(url: str) -> SplitResult:
    """Split a URL and look at its port once, so that a bad one is noticed here."""
    if not url.isprintable() or " " in url:
        raise ValueError(url)
    parts = urlsplit(url)
    _ = parts.port
    return parts


def hide_password(text: str) -> str:
    """A URL, or several, without anything that may be a login or a query; meant also for what is no proper URL."""
    scheme, separator, rest = text.partition("://") if "://" in text else ("", "", text)
    if "@" in rest:
        rest = "***@" + rest.rpartition("@")[2]
    if "?" in rest:
        rest = rest.partition("?")[0] + "?***"
    return scheme + separator + rest


def _read_http_url(text: str) -> str:
    url = text.strip().rstrip("/")
    parts = _split(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise ValueError(text)
    return url


HTTP_URL: Final = Kind(
    placeholder="URL",
    allowed="a URL such as http://10.0.0.1:8080, without a user, a query or a fragment",
    read=_read_http_url,
    shown=hide_password,
    holds_password=lambda text: "@" in text,
)


def _read_http_urls(text: str) -> tuple[str, ...]:
    urls = tuple(dict.fromkeys(_read_http_url(url) for url in text.split(",") if url.strip()))
    if not urls:
        raise ValueError(text)
    return urls


HTTP_URLS: Final = Kind(
    placeholder="URL[,URL…]",
    allowed="a URL such as http://10.0.0.1:8080, or several, comma-separated; without a user, a query or a fragment",
    read=_read_http_urls,
    shown=hide_password,
    holds_password=lambda text: "@" in text,
)


def _read_nats_urls(text: str) -> str:
    from corral.bus.endpoints import parse_endpoints

    try:
        parse_endpoints(text)
    except InvalidInput:
        raise ValueError from None
    return text.strip()


NATS_URLS: Final = Kind(
    placeholder="URL[,URL…]",
    allowed="a URL such as nats://10.0.0.1:4222, or several, comma-separated",
    read=_read_nats_urls,
    shown=hide_password,
    holds_password=lambda text: "@" in text,  # a user without a password is a token
)


def _read_database_url(text: str) -> str:
    url = text.strip()
    parts = _split(url)
    if parts.scheme == "sqlite":
        if not url.startswith("sqlite:///") or len(url) == len("sqlite:///"):
            raise ValueError(text)
    elif parts.scheme not in ("postgres", "postgresql"):
        raise ValueError(text)
    return url


def _database_password(text: str) -> bool:
    """Deliberately crude, so that it also sees the password of something that is not a proper URL."""
    authority = text.partition("://")[2].rpartition("@")[0]
    return ":" in authority or "password=" in text.lower()


DATABASE_URL: Final = Kind(
    placeholder="URL",
    allowed="sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/NAME",
    read=_read_database_url,
    shown=hide_password,
    holds_password=_database_password,
)


def _read_address(text: str) -> str:
    host, _, port = text.strip().rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError(text)
    if not re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]*)", host, re.ASCII):
        raise ValueError(text)
    return f"{host}:{port}"


ADDRESS: Final = Kind(
    placeholder="HOST:PORT",
    allowed="HOST:PORT, such as 10.0.0.5:50051 or [fd00::5]:50051",
    read=_read_address,
)


def _read_host(text: str) -> str:
    host = text.strip()
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not re.fullmatch(r"[\w.:%-]{1,255}", bare, re.ASCII):
        raise ValueError(text)
    return bare


HOST: Final = Kind(placeholder="HOST", allowed="a host name or an IP address", read=_read_host)


def _read_hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(dict.fromkeys(host.strip().lower() for host in text.split(",") if host.strip()))
    if not hosts or not all(re.fullmatch(r"(\[[0-9a-f:.]+\]|[\w.-]{1,253})(:[0-9]{1,5})?", host) for host in hosts):
        raise ValueError(text)
    return hosts


HOSTS: Final = Kind(
    placeholder="HOST[,HOST…]",
    allowed="a host such as registry.lan or registry.lan:5000, or several, comma-separated",
    read=_read_hosts,
)


def _read_registry_auth(text: str) -> str:
    from corral.images.auth import read_auths

    read_auths(text)
    return text


REGISTRY_AUTH: Final = Kind(
    placeholder="JSON",
    allowed="a Docker configuration with `auths` that hold a login",
    read=_read_registry_auth,
)


def _read_labels(text: str) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    for pair in (part.strip() for part in text.split(",")):
        if not pair:
            continue
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(pair)
        labels[key.strip()] = value.strip()
    return _checked_labels(labels)


def _labels_of_table(table: Mapping[str, object]) -> Mapping[str, str]:
    labels = {key: value for key, value in table.items() if isinstance(value, str)}
    if len(labels) != len(table):
        raise ValueError(table)
    return _checked_labels(labels)


def _checked_labels(labels: dict[str, str]) -> Mapping[str, str]:
    if problem := label_problem(labels):
        raise ValueError(problem)
    return labels


LABELS: Final = Kind(
    placeholder="KEY=VALUE[,…]",
    allowed="pairs such as zone=a,disk=fast, or in a file a table of texts",
    read=_read_labels,
    read_table=_labels_of_table,
)


def _read_vram_budget(text: str) -> str:
    VramBudget.read(text)
    return text.strip()


VRAM_BUDGET: Final = Kind(
    placeholder="BUDGET", allowed="a share or a size such as 80%, 0.8, 12GB or 8GiB", read=_read_vram_budget
)


def _read_galleries(text: str) -> "tuple[GallerySource, ...]":
    from corral.protocol.install import read_galleries

    try:
        found = read_galleries(text.strip())
    except InvalidInput:
        raise ValueError from None
    if found is None:
        raise ValueError
    return _checked_galleries(found)


def _galleries_of_tables(tables: Sequence[object]) -> "tuple[GallerySource, ...]":
    import msgspec

    from corral.protocol.install import Gallery

    try:
        return _checked_galleries(msgspec.convert(tables, type=list[Gallery]))
    except msgspec.ValidationError:
        raise ValueError from None


def _checked_galleries(found: "Sequence[Gallery]") -> "tuple[GallerySource, ...]":
    from corral.galleries.config import sources_of
    from corral.galleries.places import read_place

    sources = sources_of(found)
    names = [source.name.lower() for source in sources if source.name]
    if len(set(names)) < len(names) or not all(name.isprintable() and "@" not in name for name in names):
        raise ValueError
    for source in sources:
        try:
            read_place(source.url)
            for mirror in source.urls[1:]:
                read_place(mirror)
        except InvalidInput:
            raise ValueError from None
        _check_policy(source)
    return sources


def _check_policy(source: "GallerySource") -> None:
    """What is wrong with a policy is told: it holds no secrets, and nobody would find it in a list of galleries."""
    from corral.signatures.policy import read_policy

    try:
        read_policy(source.verification)
    except InvalidInput as error:
        raise Unforgivable("backend_galleries", f"the gallery {source.name!r}: {error}") from None


_LOGIN = re.compile(r"://[^/\"\s]*@")

GALLERIES: Final = Kind(
    placeholder="JSON",
    allowed='a JSON list such as [{"name": "mine", "url": "https://example.org/index.yaml"}], each name once, with '
    "URLs that begin with http://, https://, file:///, oci:// or github:, or are corral:builtin",
    read=_read_galleries,
    read_tables=_galleries_of_tables,
    shown=lambda text: _LOGIN.sub("://***@", text),
    holds_password=lambda text: _LOGIN.search(text) is not None,
)
