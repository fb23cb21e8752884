"""What a database URL means, and how much of it people may see."""

import re
from pathlib import Path
from typing import Final

from corral.base.errors import InvalidInput

_SETTING: Final = "database"
_FORMS: Final = "write a path, sqlite:///path or postgresql://user@host/name"
_HOST: Final = r"(?:\[[^\]@/?#]*\]|[^@:,/?#\[\]]*)(?::\d{1,5})?"
_POSTGRES_URL: Final = re.compile(
    rf"postgres(?:ql)?://(?:[^/?#]*@)?(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<path>(?:/[^@/?#]*)?)(?:\?[^@#]*)?"
)
"""Strict, so that a password with a bare `/`, `?` or `#` is noticed and never taken for a host, a port or a name."""


def sqlite_path(url: str) -> Path | None:
    """The file that a URL or a bare path means; None for PostgreSQL. Anything else is refused with a sentence."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        return None
    if separator and scheme != "sqlite":
        raise InvalidInput(_SETTING, f"{scheme}:// is not a database that Corral knows; {_FORMS}")
    if separator and not rest.startswith("/"):
        raise InvalidInput(_SETTING, f"sqlite:// needs three slashes before the path; {_FORMS}")
    name = rest[1:] if separator else url
    if not name or name == ":memory:":
        raise InvalidInput(_SETTING, f"no file is named; {_FORMS}")
    return Path(name).absolute()


def shown_url(url: str) -> str:
    """The URL as people may see it: hosts and the name of the database."""
    match = _POSTGRES_URL.fullmatch(url)
    if match is None:
        problem = "the PostgreSQL URL cannot be read; percent-encode special characters of the user and password"
        raise InvalidInput(_SETTING, problem)
    return f"postgresql://{match['hosts']}{match['path']}"
