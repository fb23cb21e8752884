"""HTTP as registries need it: redirects that never carry credentials elsewhere, and failures by what can be done.

Owns no retries; see `registry.py` and `blobs.py`.
"""

import asyncio
import email.utils
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec

from corral.base.http_client import HttpFailed, HttpFault, failures_of, host_of, is_passing, open_session, read_body
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.errors import (
    ContentMismatch,
    ImageError,
    ImageNotFound,
    RegistryRefused,
    RegistryUnavailable,
    SourceInvalid,
)
from corral.oci.network import Network, check_url, proxy_for

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 8
_MAX_WORDS: Final = 8192
_ROOM_BYTES: Final = 1024 * 1024

Content = Callable[[], AsyncIterator[bytes]]
"""Gives what is sent, from its beginning, each time it is called."""


class _Problem(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Problems(msgspec.Struct):
    errors: list[_Problem] = msgspec.field(default_factory=list)


def open_fetcher_session(network: Network) -> aiohttp.ClientSession:
    """A session with the patience of these settings; its opener closes it. Proxies are chosen for each request."""
    return open_session(
        connect_timeout=timedelta(seconds=network.connect_seconds),
        read_timeout=timedelta(seconds=network.answer_seconds),
    )


class HttpFetcher:
    """Asks, follows redirects, and tells failures apart."""

    def __init__(self, session: aiohttp.ClientSession, network: Network) -> None:
        self._session = session
        self._network = network

    @asynccontextmanager
    async def ask(
        self, url: str, headers: Mapping[str, str], *, authorization: str = ""
    ) -> AsyncIterator["RegistryResponse"]:
        """The answer after all redirects, whatever its status. RegistryUnavailable when none comes."""
        original = check_url(url, self._network)
        response = await self._follow(original, headers, authorization)
        try:
            yield RegistryResponse(response, original)
        finally:
            response.close()  # what was not read is not worth reading

    async def post(self, url: str, form: Mapping[str, str]) -> "tuple[int, bytes]":
        """A form and the status and the bounded body of its answer. Redirects are not followed."""
        check_url(url, self._network)
        with _told(url):
            async with (
                asyncio.timeout(self._network.answer_seconds),
                self._session.post(
                    url, data=dict(form), allow_redirects=False, proxy=proxy_for(url, self._network)
                ) as response,
            ):
                return response.status, await response.content.read(_ROOM_BYTES)

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        content: Content | None = None,
        authorization: str = "",
    ) -> AsyncIterator["RegistryResponse"]:
        """The answer to a request that changes something. Redirects are not followed: it might happen twice."""
        check_url(url, self._network)
        own = {"Authorization": authorization} if authorization else {}
        response = await self._send(method, url, {**headers, **own}, content)
        try:
            yield RegistryResponse(response, url)
        finally:
            response.close()

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], content: Content | None
    ) -> aiohttp.ClientResponse:
        """What is sent may take its time, as long as it moves."""
        loop = asyncio.get_running_loop()
        patience = self._network.answer_seconds + self._network.connect_seconds

        async def moving(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            async for piece in pieces:
                yield piece
                deadline.reschedule(loop.time() + patience)

        with _told(url):
            async with asyncio.timeout(patience) as deadline:
                return await self._session.request(
                    method,
                    url,
                    headers=headers,
                    data=None if content is None else moving(content()),
                    allow_redirects=False,
                    proxy=proxy_for(url, self._network),
                )

    async def _follow(self, original: str, headers: Mapping[str, str], authorization: str) -> aiohttp.ClientResponse:
        url = original
        for _ in range(_MAX_REDIRECTS):
            is_at_home = _origin(url) == _origin(original)
            own = {"Authorization": authorization} if authorization and is_at_home else {}
            response = await self._get(url, {**headers, **own})
            if response.status not in _REDIRECTS or "Location" not in response.headers:
                return response
            response.close()
            url = self._onward(url, response.headers["Location"])
        raise RegistryUnavailable(f"{host_of(original)} redirects more than {_MAX_REDIRECTS} times")

    async def _get(self, url: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        with _told(url):
            async with asyncio.timeout(self._network.connect_seconds + self._network.answer_seconds):
                return await self._session.get(
                    url, headers=headers, allow_redirects=False, proxy=proxy_for(url, self._network)
                )

    def _onward(self, url: str, location: str) -> str:
        """Never from TLS to without it, wherever that leads."""
        try:
            onward = check_url(urljoin(url, location), self._network)
            is_worse = urlsplit(url).scheme == "https" and urlsplit(onward).scheme != "https"
        except (ValueError, SourceInvalid) as error:
            raise RegistryRefused(f"{host_of(url)} redirects to where we do not go: {error}") from error
        if is_worse:
            raise RegistryRefused(f"{host_of(url)} redirects from HTTPS to HTTP")
        return onward


class RegistryResponse:
    """An answer whose body has not been read."""

    def __init__(self, response: aiohttp.ClientResponse, asked: str) -> None:
        self._response = response
        self._asked = asked

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def challenges(self) -> list[str]:
        return self._response.headers.getall("WWW-Authenticate", [])

    @property
    def is_from_home(self) -> bool:
        """Whether it comes from whom we asked, and not from where they sent us."""
        return _origin(str(self._response.url)) == _origin(self._asked)

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    @property
    def length(self) -> int | None:
        """Of the body, where it is stated."""
        return self._response.content_length

    async def body(self, most: int, *, within: float) -> bytes:
        """All of it; ContentMismatch when it is larger than anybody could want."""
        with _told(self._asked):
            async with asyncio.timeout(within):
                return await read_body(self._response, most)

    async def pieces(self, *, stall_seconds: float, stall_bytes: int) -> AsyncIterator[bytes]:
        """The body as it comes; RegistryUnavailable when it comes too slowly, or breaks off."""
        loop = asyncio.get_running_loop()
        window_ends, seen = loop.time() + stall_seconds, 0
        with _told(self._asked):
            while True:
                async with asyncio.timeout_at(window_ends):
                    piece = await self._response.content.readany()
                if not piece:
                    return
                yield piece
                seen += len(piece)
                if seen >= stall_bytes:
                    window_ends, seen = loop.time() + stall_seconds, 0

    async def problem(self, what: str, *, may: str = "read") -> ImageError:
        """What a status that is no success means; `may` is what a login would have to allow."""
        said = await self._words()
        text = f"{host_of(self._asked)} answered {self.status} for {what}{said}"
        if is_passing(self.status):
            return RegistryUnavailable(text, retry_after=_retry_after(self.header("Retry-After")))
        if self.status in (401, 403):
            return RegistryRefused(f"{text}; it is not there, or a login is needed that may {may} it")
        if self.status in (404, 410):
            return ImageNotFound(text)
        return RegistryRefused(text)

    async def _words(self) -> str:
        """What the registry says itself, bounded and in one line."""
        try:
            async with asyncio.timeout(5):
                body = await self._response.content.read(_MAX_WORDS)
            problems = msgspec.json.decode(body, type=_Problems).errors
        except (aiohttp.ClientError, TimeoutError, OSError, *UNREADABLE_JSON):
            return ""
        words = "; ".join(" ".join((one.message or one.code)[:200].split()) for one in problems[:3])
        return f": {words}" if words else ""


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Turns what may go wrong with a connection into the errors of images."""
    try:
        with failures_of(url):
            yield
    except HttpFailed as error:
        raise _as_image_error(error) from error


def _as_image_error(error: HttpFailed) -> ImageError:
    match error.fault:
        case HttpFault.CERTIFICATE:
            reason = "its certificate is not trusted; SSL_CERT_FILE names further authorities"
            return RegistryRefused(f"{error.host}: {reason}")
        case HttpFault.TIMEOUT:
            return RegistryUnavailable(f"{error.host} does not answer in time, or too slowly")
        case HttpFault.INVALID_URL:
            return SourceInvalid(f"{error.host} is not a URL")
        case HttpFault.TOO_LARGE:
            return ContentMismatch(error.message)
        case HttpFault.UNREACHABLE:
            return RegistryUnavailable(f"{error.host}: no connection: {error.reason}")
        case HttpFault.BROKE_OFF:
            return RegistryUnavailable(f"{error.host}: the answer broke off")
        case _:
            return RegistryUnavailable(error.message)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _retry_after(header: str) -> float | None:
    """Seconds, or a date."""
    if header.strip().isdigit():
        return float(header)
    try:
        moment = email.utils.parsedate_to_datetime(header)
    except (TypeError, ValueError):
        return None
    at = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
