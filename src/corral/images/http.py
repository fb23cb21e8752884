"""HTTP as registries need it: redirects that never carry credentials elsewhere, and failures by what can be done.

Owns no retries; see `registry.py` and `blobs.py`.
"""

import asyncio
import email.utils
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec

from corral import __version__
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.images.errors import (
    ContentMismatch,
    ImageError,
    ImageNotFound,
    RegistryRefused,
    RegistryUnavailable,
    SourceInvalid,
)
from corral.images.network import Network, check_url, proxy_for

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 8
_MAX_WORDS: Final = 8192
_WAIT_AND_TRY: Final = frozenset({408, 425, 429})
_ROOM_BYTES: Final = 1024 * 1024

Content = Callable[[], AsyncIterator[bytes]]
"""Gives what is sent, from its beginning, each time it is called."""


class _Problem(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Problems(msgspec.Struct):
    errors: list[_Problem] = msgspec.field(default_factory=list)


@asynccontextmanager
async def open_session(network: Network) -> AsyncIterator[aiohttp.ClientSession]:
    """Without cookies, without the environment's logins, and without unpacking what passes."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=network.connect_seconds, sock_read=network.answer_seconds)
    session = aiohttp.ClientSession(
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": f"corral/{__version__}", "Accept-Encoding": "identity"},
        read_bufsize=_ROOM_BYTES,
    )
    async with session:
        yield session


class Fetcher:
    """Asks, follows redirects, and tells failures apart."""

    def __init__(self, session: aiohttp.ClientSession, network: Network) -> None:
        self._session = session
        self._network = network

    @asynccontextmanager
    async def ask(self, url: str, headers: Mapping[str, str], *, authorization: str = "") -> AsyncIterator["Answer"]:
        """The answer after all redirects, whatever its status. RegistryUnavailable when none comes."""
        original = check_url(url, self._network)
        response = await self._follow(original, headers, authorization)
        try:
            yield Answer(response, original)
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
    ) -> AsyncIterator["Answer"]:
        """The answer to a request that changes something. Redirects are not followed: it might happen twice."""
        check_url(url, self._network)
        own = {"Authorization": authorization} if authorization else {}
        response = await self._send(method, url, {**headers, **own}, content)
        try:
            yield Answer(response, url)
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
        raise RegistryUnavailable(f"{_shown(original)} redirects more than {_MAX_REDIRECTS} times")

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
            raise RegistryRefused(f"{_shown(url)} redirects to where we do not go: {error}") from error
        if is_worse:
            raise RegistryRefused(f"{_shown(url)} redirects from HTTPS to HTTP")
        return onward


class Answer:
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
                parts, size = [], 0
                async for part in self._response.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    if size > most:
                        raise ContentMismatch(f"{_shown(self._asked)}: the answer has more than {most} bytes")
        return b"".join(parts)

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
        text = f"{_shown(self._asked)} answered {self.status} for {what}{said}"
        if self.status in _WAIT_AND_TRY or self.status >= 500:
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


class _told:  # noqa: N801 - reads as a word of the language
    """Turns what may go wrong with a connection into what our callers know."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
            reason = "its certificate is not trusted; SSL_CERT_FILE names further authorities"
            raise RegistryRefused(f"{_shown(self._url)}: {reason}") from error
        if isinstance(error, TimeoutError):
            raise RegistryUnavailable(f"{_shown(self._url)} does not answer in time, or too slowly") from error
        if isinstance(error, aiohttp.InvalidURL):
            raise SourceInvalid(f"{_shown(self._url)} is not a URL") from error
        if isinstance(error, aiohttp.ClientError | ConnectionError | ssl.SSLError):
            raise RegistryUnavailable(f"{_shown(self._url)}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Never the whole text of an error that carries a URL: its query may be a secret."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{error.status} {error.message}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error.os_error.strerror or error.os_error}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer broke off"
    return f"the connection failed: {type(error).__name__}"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)


def _shown(url: str) -> str:
    """Without a query or a login: both may be secrets."""
    return urlsplit(url).netloc.rpartition("@")[2]


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
