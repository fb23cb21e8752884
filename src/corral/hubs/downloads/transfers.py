"""Ranges of remote files, and the way to them.

Redirects are followed here, one request each: credentials stay with the host they are for, TLS is never left, and no
public host leads to a private address. Failures are sorted by what helps; nothing is retried.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, Self
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec.structs import replace

from corral.base.http_facts import REDIRECTS, host_of, is_passing, origin_of, retry_after_seconds
from corral.base.own_network import forbidden_address, is_private_address
from corral.hubs.downloads.curl import CurlClient, CurlRequest, HostUnknown
from corral.hubs.downloads.orders import (
    DownloadError,
    DownloadInvalid,
    DownloadLimits,
    DownloadRefused,
    FileMissing,
    RemoteFileChanged,
    ServerUnavailable,
)
from corral.oci.errors import SourceInvalid
from corral.oci.limits import Network, check_url, proxy_for

_MAX_REDIRECTS: Final = 8
_OK: Final = frozenset({200, 206})
_CROWDED: Final = frozenset({429, 503})
_LONGEST_URL: Final = 8192
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_STRONG_TAG: Final = re.compile(r'"[\x21\x23-\x7e]{1,200}"')


@dataclass(slots=True, kw_only=True)
class DownloadSource:
    """Where one file comes from. Remembers where its URL led, so that not every range is redirected again."""

    url: str
    authorization: str = field(default="", repr=False)
    advice: str = ""
    current: str = field(default="", repr=False)
    """The address that the last redirect led to; empty: not known."""
    is_home_private: bool = False
    """Whether the host of the URL has a private address."""


class ByteSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes to ask for. The end is exclusive; None: to the end of the file."""

    start: int
    end: int | None


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """Status and headers of a successful response: 200 or 206."""

    status: int
    headers: Mapping[str, str]

    @property
    def length(self) -> int | None:
        """Length of the body, if the response states one."""
        text = self.headers.get("content-length", "")
        return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else None

    @property
    def content_range(self) -> tuple[int, int, int | None] | None:
        """Start, exclusive end, and size of the whole file if it is stated; None when the header makes no sense."""
        match = _CONTENT_RANGE.fullmatch(self.headers.get("content-range", ""))
        if match is None or int(match[2]) < int(match[1]):
            return None
        return int(match[1]), int(match[2]) + 1, None if match[3] == "*" else int(match[3])

    @property
    def validator(self) -> str:
        """What tells this version of the file from others, for If-Range; empty: nothing does."""
        tag, modified = self.headers.get("etag", ""), self.headers.get("last-modified", "")
        if _STRONG_TAG.fullmatch(tag):
            return tag
        return modified if re.fullmatch(r"[\x20-\x7e]{1,64}", modified) else ""


class SpanReceiver(Protocol):
    """Takes a response. Whatever it raises ends the transfer, and is raised by `fetch`."""

    def begin(self, head: ResponseHead) -> None: ...

    def write(self, data: bytes) -> None: ...


class RangeTransfers:
    """All transfers of one process. A context, which holds the connections."""

    def __init__(
        self, network: Network, limits: DownloadLimits, *, is_private: Callable[[str], bool] = is_private_address
    ) -> None:
        self._network = network
        self._limits = limits
        self._is_private = is_private
        self._places = asyncio.Semaphore(limits.connections_in_all)
        self._client = CurlClient(network, limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    async def fetch(self, remote: DownloadSource, span: ByteSpan, validator: str, receiver: SpanReceiver) -> None:
        """Ask for a range, and hand the response to the receiver. Raise a DownloadError when it fails or breaks off.

        With a validator, a server that has another version by now gives all of it, with the status 200.
        """
        async with self._places:
            start = remote.current
            try:
                await self._follow(start or remote.url, remote, span, validator, receiver)
            except DownloadError as error:
                if remote.current == start:
                    remote.current = ""
                if not start or not isinstance(error, FileMissing | DownloadRefused):
                    raise
                # A signed address has its time. The URL itself leads to a new one.
                await self._follow(remote.url, remote, span, validator, receiver)

    async def _follow(
        self, url: str, remote: DownloadSource, span: ByteSpan, validator: str, receiver: SpanReceiver
    ) -> None:
        url = self._allowed(url)
        for _ in range(_MAX_REDIRECTS):
            proxy = proxy_for(url, self._network) or ""
            hop = _Hop(url, remote, receiver, self._refusals(remote, url, proxy))
            headers = _headers(remote, url, span, validator)
            await self._ask(CurlRequest(url=url, headers=headers, proxy=proxy), hop)
            if hop.status not in REDIRECTS or "location" not in hop.headers:
                break
            url = self._onward(url, hop.headers["location"])
        else:
            raise ServerUnavailable(f"{host_of(remote.url)} redirects more than {_MAX_REDIRECTS} times")
        if hop.status not in _OK:
            raise _problem(hop)

    async def _ask(self, request: CurlRequest, hop: "_Hop") -> None:
        """Send a request; once more over IPv4 if it led to an IPv6 address that nobody may be sent to. Machines of the
        own network often have a link-local one beside one that can be used."""
        try:
            await self._client.ask(request, hop)
        except DownloadRefused as refused:
            if not hop.is_ipv6_forbidden or ":" in (urlsplit(request.url).hostname or ""):
                raise
            try:
                await self._client.ask(replace(request, is_ipv4_only=True), hop)
            except HostUnknown:  # it has no other address
                raise refused from None

    def _allowed(self, url: str) -> str:
        if not re.fullmatch(r"[\x21-\x7e]+", url) or len(url) > _LONGEST_URL:
            raise DownloadInvalid(f"url: it has characters that no URL has, or more than {_LONGEST_URL} of them")
        try:
            return check_url(url, self._network)
        except (SourceInvalid, ValueError) as error:
            raise DownloadInvalid(f"url: {error}") from error

    def _onward(self, url: str, location: str) -> str:
        try:
            onward = self._allowed(urljoin(url, location))
        except (DownloadInvalid, ValueError) as error:
            raise DownloadRefused(f"{host_of(url)} redirects to where we do not go: {error}") from error
        if urlsplit(url).scheme == "https" and urlsplit(onward).scheme != "https":
            raise DownloadRefused(f"{host_of(url)} redirects from HTTPS to HTTP")
        return onward

    def _refusals(self, remote: DownloadSource, url: str, proxy: str) -> Callable[[str], str]:
        """Return what says why a connection to an address is refused; empty: it is not. Behind a proxy, only the proxy
        knows the address."""

        def why(address: str) -> str:
            if proxy:
                return ""
            if reason := forbidden_address(address):
                return f"{host_of(url)} has the address {address}, {reason}"
            is_private = self._is_private(address)
            if url == remote.url:
                remote.is_home_private = is_private
            elif is_private and not remote.is_home_private and not self._limits.is_private_reachable:
                return f"{host_of(remote.url)} redirects to the private address {address}"
            return ""

        return why


class _Hop:
    """One request on the way to the file."""

    def __init__(
        self, url: str, remote: DownloadSource, receiver: SpanReceiver, why_refused: Callable[[str], str]
    ) -> None:
        self.host = host_of(url)
        self.remote = remote
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.is_ipv6_forbidden = False
        """Whether the connection was to an IPv6 address that nobody may be sent to."""
        self.on_body = receiver.write
        self._url = url
        self._receiver = receiver
        self._why_refused = why_refused

    def on_connection(self, address: str) -> None:
        if why := self._why_refused(address):
            self.is_ipv6_forbidden = ":" in address and bool(forbidden_address(address))
            raise DownloadRefused(why)

    def on_head(self, status: int, headers: Mapping[str, str]) -> bool:
        self.status, self.headers = status, headers
        if status not in _OK:
            return False
        coding = headers.get("content-encoding", "identity").lower()
        if coding != "identity":
            raise DownloadRefused(f"{self.host} sends the file packed as {coding[:20]}, which nobody asked for")
        self.remote.current = self._url if self._url != self.remote.url else ""
        self._receiver.begin(ResponseHead(status=status, headers=headers))
        return True


def _headers(remote: DownloadSource, url: str, span: ByteSpan, validator: str) -> list[str]:
    headers = ["Accept: */*", "Accept-Encoding: identity"]
    if span.start or span.end is not None:
        headers.append(f"Range: bytes={span.start}-{'' if span.end is None else span.end - 1}")
        if validator:
            headers.append(f"If-Range: {validator}")
    if remote.authorization and origin_of(url) == origin_of(remote.url):
        headers.append(f"Authorization: {remote.authorization}")
    if not all(header.isascii() and header.isprintable() for header in headers):
        raise DownloadInvalid("authorization: it has characters that no header has")
    return headers


def _problem(hop: _Hop) -> DownloadError:
    text = f"{hop.host} answered {hop.status}"
    if is_passing(hop.status):
        retry_after = retry_after_seconds(hop.headers.get("retry-after", ""))
        return ServerUnavailable(text, retry_after=retry_after, is_crowded=hop.status in _CROWDED)
    if hop.status in (401, 403):
        return DownloadRefused(f"{text}; {hop.remote.advice or 'it is not there, or a login is needed'}")
    if hop.status in (404, 410):
        return FileMissing(text)
    if hop.status == 416:
        return RemoteFileChanged(f"{text}: the file is shorter than it was, or than it should be")
    return DownloadRefused(text)
