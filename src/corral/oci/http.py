"""HTTP for registries: redirects never carry credentials to another host, and failures are sorted by what helps.

Does not retry; see `registry.py` and `blobs.py`.
"""

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Final
from urllib.parse import urljoin, urlsplit

import aiohttp
import msgspec

from corral.base.http_client import (
    HttpFailed,
    HttpFault,
    failures_of,
    host_of,
    is_passing,
    open_session,
    read_body,
    stranger_connector,
)
from corral.base.http_facts import REDIRECTS, origin_of, retry_after_seconds
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.errors import (
    ContentMismatch,
    ImageError,
    ImageNotFound,
    RegistryRefused,
    RegistryUnavailable,
    SourceInvalid,
)
from corral.oci.limits import Network, check_url, proxy_for

_MAX_REDIRECTS: Final = 8
_MAX_WORDS: Final = 8192
_ROOM_BYTES: Final = 1024 * 1024

Content = Callable[[], AsyncIterator[bytes]]
"""Returns the request body from its beginning, each time it is called."""
RedirectCheck = Callable[[str, str], Awaitable[None]]
"""Gets the URL that was asked for first, and the one that a redirect leads to. Raises an ImageError to refuse it."""


async def allow_redirect(original: str, onward: str) -> None:
    """Allow every redirect that TLS allows."""


class _Problem(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Problems(msgspec.Struct):
    errors: list[_Problem] = msgspec.field(default_factory=list)


def open_fetcher_session(network: Network) -> aiohttp.ClientSession:
    """Open a session with the timeouts of these settings; the caller closes it. Proxies are chosen per request."""
    return open_session(
        connect_timeout=timedelta(seconds=network.connect_seconds),
        read_timeout=timedelta(seconds=network.answer_seconds),
        connector=stranger_connector(),
    )


class HttpFetcher:
    """Sends requests, follows redirects, and maps failures to image errors."""

    def __init__(
        self, session: aiohttp.ClientSession, network: Network, *, check_redirect: RedirectCheck = allow_redirect
    ) -> None:
        self._session = session
        self._network = network
        self._check_redirect = check_redirect

    @asynccontextmanager
    async def ask(
        self, url: str, headers: Mapping[str, str], *, authorization: str = ""
    ) -> AsyncIterator["RegistryResponse"]:
        """Yield the response after all redirects, whatever its status. Raise RegistryUnavailable when there is none."""
        original = check_url(url, self._network)
        for _ in range(_MAX_REDIRECTS):
            is_at_home = origin_of(url) == origin_of(original)
            credentials = {"Authorization": authorization} if authorization and is_at_home else {}
            with _as_image_errors(url):
                async with asyncio.timeout(self._network.connect_seconds + self._network.answer_seconds):
                    response = await self._session.get(
                        url,
                        headers={**headers, **credentials},
                        allow_redirects=False,
                        proxy=proxy_for(url, self._network),
                    )
            if response.status not in REDIRECTS or "Location" not in response.headers:
                break
            response.close()
            url = self._onward(url, response.headers["Location"])
            await self._check_redirect(original, url)
        else:
            raise RegistryUnavailable(f"{host_of(original)} redirects more than {_MAX_REDIRECTS} times")
        try:
            yield RegistryResponse(response, original)
        finally:
            response.close()  # close the connection instead of draining the unread rest

    async def post(self, url: str, form: Mapping[str, str]) -> "tuple[int, bytes]":
        """Post a form; return the status and the bounded body. Does not follow redirects."""
        check_url(url, self._network)
        with _as_image_errors(url):
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
        """Yield the response to a request that changes something. Does not follow redirects: it might happen twice."""
        check_url(url, self._network)
        credentials = {"Authorization": authorization} if authorization else {}
        loop = asyncio.get_running_loop()
        patience = self._network.answer_seconds + self._network.connect_seconds

        async def moving(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            """Put the timeout off with every piece: an upload of any length fails only when it stalls."""
            async for piece in pieces:
                yield piece
                deadline.reschedule(loop.time() + patience)

        with _as_image_errors(url):
            async with asyncio.timeout(patience) as deadline:
                response = await self._session.request(
                    method,
                    url,
                    headers={**headers, **credentials},
                    data=None if content is None else moving(content()),
                    allow_redirects=False,
                    proxy=proxy_for(url, self._network),
                )
        try:
            yield RegistryResponse(response, url)
        finally:
            response.close()

    def _onward(self, url: str, location: str) -> str:
        """Return the absolute redirect target. Refuse to go from TLS to plain HTTP."""
        try:
            onward = check_url(urljoin(url, location), self._network)
            is_worse = urlsplit(url).scheme == "https" and urlsplit(onward).scheme != "https"
        except (ValueError, SourceInvalid) as error:
            raise RegistryRefused(f"{host_of(url)} redirects to where we do not go: {error}") from error
        if is_worse:
            raise RegistryRefused(f"{host_of(url)} redirects from HTTPS to HTTP")
        return onward


class RegistryResponse:
    """A response whose body has not been read."""

    def __init__(self, response: aiohttp.ClientResponse, url: str) -> None:
        self._response = response
        self._url = url

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def challenges(self) -> list[str]:
        return self._response.headers.getall("WWW-Authenticate", [])

    @property
    def is_from_home(self) -> bool:
        """Whether the response comes from the host that we asked, and not from a redirect's."""
        return origin_of(str(self._response.url)) == origin_of(self._url)

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    @property
    def length(self) -> int | None:
        """Length of the body, if the response states one."""
        return self._response.content_length

    async def body(self, most: int, *, within: float) -> bytes:
        """Read the whole body. Raise ContentMismatch when it is larger than `most`."""
        with _as_image_errors(self._url):
            async with asyncio.timeout(within):
                return await read_body(self._response, most)

    async def pieces(self, *, stall_seconds: float, stall_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raise RegistryUnavailable when it is too slow or breaks off."""
        loop = asyncio.get_running_loop()
        window_ends, seen = loop.time() + stall_seconds, 0
        with _as_image_errors(self._url):
            while True:
                async with asyncio.timeout_at(window_ends):
                    piece = await self._response.content.readany()
                if not piece:
                    return
                yield piece
                seen += len(piece)
                if seen >= stall_bytes:
                    window_ends, seen = loop.time() + stall_seconds, 0

    async def problem(self, subject: str, *, may: str = "read") -> ImageError:
        """Return the error for a status that is not a success; `may` is the permission that a login would need."""
        try:
            async with asyncio.timeout(5):
                body = await self._response.content.read(_MAX_WORDS)
            errors = msgspec.json.decode(body, type=_Problems).errors
        except (aiohttp.ClientError, TimeoutError, OSError, *UNREADABLE_JSON):
            errors = []
        # The registry's own words, bounded and on one line.
        words = "; ".join(" ".join((error.message or error.code)[:200].split()) for error in errors[:3])
        text = f"{host_of(self._url)} answered {self.status} for {subject}" + (f": {words}" if words else "")
        if is_passing(self.status):
            return RegistryUnavailable(text, retry_after=retry_after_seconds(self.header("Retry-After")))
        if self.status in (401, 403):
            return RegistryRefused(f"{text}; it is not there, or a login is needed that may {may} it")
        if self.status in (404, 410):
            return ImageNotFound(text)
        return RegistryRefused(text)


_TLS_FAILURES: Final = (aiohttp.ClientSSLError, ssl.SSLError)


def advice_without_tls(host: str) -> str:
    """Return what to set if this registry of the own network speaks plain HTTP; empty for hosts of the internet."""
    name = urlsplit(f"//{host}").hostname or ""
    if "." in name.strip(".") or ":" in name:
        try:
            if not ipaddress.ip_address(name).is_private:
                return ""
        except ValueError:
            return ""
    return f". If it speaks plain HTTP, allow that with images.plain_registries (CORRAL_PLAIN_REGISTRIES={host})"


@contextmanager
def _as_image_errors(url: str) -> Iterator[None]:
    """Convert connection errors into image errors."""
    try:
        with failures_of(url):
            yield
    except HttpFailed as error:
        match error.fault:
            case HttpFault.CERTIFICATE:
                reason = "its certificate is not trusted; SSL_CERT_FILE names further authorities"
                raise RegistryRefused(f"{error.host}: {reason}") from error
            case HttpFault.TIMEOUT:
                raise RegistryUnavailable(f"{error.host} does not answer in time, or too slowly") from error
            case HttpFault.INVALID_URL:
                raise SourceInvalid(f"{error.host} is not a URL") from error
            case HttpFault.TOO_LARGE:
                raise ContentMismatch(error.message) from error
            case HttpFault.UNREACHABLE:
                advice = advice_without_tls(error.host) if isinstance(error.__cause__, _TLS_FAILURES) else ""
                raise RegistryUnavailable(f"{error.host}: no connection: {error.reason}{advice}") from error
            case HttpFault.BROKE_OFF:
                raise RegistryUnavailable(f"{error.host}: the answer broke off") from error
            case _:
                raise RegistryUnavailable(error.message) from error
