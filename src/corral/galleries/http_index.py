"""Fetching an index over HTTP: only when it changed, never more than allowed, never for longer than allowed."""

import os
import platform
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import aiohttp

from corral import __version__
from corral.base.errors import CorralError, InvalidInput, PeerRefused, PeerUnavailable
from corral.base.sizes import format_size
from corral.galleries.places import without_secrets

_MOST_REDIRECTS: Final = 5
_PASSING_REFUSALS: Final = frozenset({408, 425, 429})
_PART: Final = 64 * 1024
_NOT_MODIFIED: Final = 304


@dataclass(frozen=True, slots=True, kw_only=True)
class Validators:
    """What a server calls the version that we have; empty when it does not."""

    etag: str = ""
    last_modified: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """An etag says more than a time, which counts in seconds."""
        if self.etag:
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.last_modified} if self.last_modified else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A new version of what lies at a URL."""

    content: bytes = field(repr=False)
    validators: Validators = field(default_factory=Validators)


def open_session(*, timeout: timedelta, connect_timeout: timedelta) -> aiohttp.ClientSession:
    """The session that fetching needs; its opener closes it. Proxies and their exceptions are those of the system."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout.total_seconds(), sock_connect=connect_timeout.total_seconds()),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": user_agent(), "Accept-Encoding": "identity"},
        auto_decompress=False,
        trust_env=True,
    )


def user_agent() -> str:
    return f"Corral/{__version__} ({platform.system().lower()}; {platform.machine().lower()})"


async def fetch(session: aiohttp.ClientSession, url: str, known: Validators, *, most_bytes: int) -> Fetched | None:
    """What lies there; None when it is still the known version. PeerUnavailable, PeerRefused or InvalidInput."""
    try:
        async with session.get(url, headers=known.headers, max_redirects=_MOST_REDIRECTS) as response:
            _refuse_downgrade(response)
            if response.status == _NOT_MODIFIED and known.headers:
                return None
            if response.status != 200:
                raise _refusal(response)
            content = await _read_bounded(response, most_bytes)
            return Fetched(content=content, validators=_validators(response))
    except aiohttp.TooManyRedirects:
        raise PeerUnavailable(f"redirects more than {_MOST_REDIRECTS} times") from None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise PeerUnavailable(f"does not answer: {_reason(error)}") from error


def _refuse_downgrade(response: aiohttp.ClientResponse) -> None:
    """What was asked for over TLS must not come without it."""
    hops = [*(hop.url for hop in response.history), response.url]
    if any(hop.scheme == "https" for hop in hops) and response.url.scheme != "https":
        where = without_secrets(str(response.url))
        raise PeerRefused(f"redirects from https to {where}, which is not protected", status=response.status)


def _refusal(response: aiohttp.ClientResponse) -> CorralError:
    if response.status >= 500 or response.status in _PASSING_REFUSALS:
        return PeerUnavailable(f"answers {response.status}")
    return PeerRefused(f"answers {response.status}", status=response.status)


async def _read_bounded(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise InvalidInput("", f"comes packed as {encoding[:40]!r} although that was not asked for")
    too_large = InvalidInput("", f"is larger than {format_size(most_bytes)}; the setting gallery.max_size allows more")
    if (response.content_length or 0) > most_bytes:
        raise too_large
    content = bytearray()
    async for part in response.content.iter_chunked(_PART):
        content += part
        if len(content) > most_bytes:
            raise too_large
    return bytes(content)


def _validators(response: aiohttp.ClientResponse) -> Validators:
    return Validators(etag=response.headers.get("ETag", ""), last_modified=response.headers.get("Last-Modified", ""))


def _reason(error: Exception) -> str:
    """In our words: those of the client library may hold the whole URL."""
    match error:
        case TimeoutError():
            return "timed out; the setting gallery.timeout allows more"
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate is not trusted: {getattr(error.certificate_error, 'verify_message', '')}".rstrip(
                ": "
            )
        case aiohttp.ClientSSLError():
            return "TLS cannot be agreed upon"
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))) if number > 0:
            return os.strerror(number).lower()
        case aiohttp.ClientConnectorError():
            return "its name cannot be found"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError() | OSError():
            return "the connection broke off"
    return f"it does not speak HTTP as expected ({type(error).__name__})"
