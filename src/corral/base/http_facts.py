"""What URLs, statuses and headers of HTTP mean, whatever library speaks it."""

import email.utils
import platform
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from corral import __version__

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PASSING_REFUSALS: Final = frozenset({408, 425, 429})
"""Refusals that say "not now": too slow, too early, too many."""


def user_agent() -> str:
    return f"Corral/{__version__} ({platform.system().lower()}; {platform.machine().lower()})"


def host_of(url: str) -> str:
    """Host and port without a login, path and query, which may be secrets."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return "a URL that cannot be read"


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port: what credentials belong to."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def is_passing(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status >= 500 or status in _PASSING_REFUSALS


def retry_after_seconds(header: str) -> float | None:
    """Parse a Retry-After header, which holds seconds or a date."""
    if header.strip().isdigit():
        return float(header)
    try:
        moment = email.utils.parsedate_to_datetime(header)
    except (TypeError, ValueError):
        return None
    at = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
