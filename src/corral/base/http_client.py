"""Asking over HTTP, for all who use aiohttp: sessions, answers of bounded size, and failures without secrets.

What a status means, and whether to try again, is decided by those who ask. `cli/client.py` does without this module,
because importing aiohttp takes longer than a command; so do launchers (`processes/probe.py`), because of the memory.
"""

import errno
import os
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from enum import StrEnum
from typing import Final

import aiohttp
from yarl import URL

from corral.base.errors import CorralError
from corral.base.http_facts import host_of as host_of
from corral.base.http_facts import is_passing as is_passing
from corral.base.http_facts import user_agent as user_agent
from corral.base.own_network import ForbiddenAddress, forbidden_address
from corral.base.tls import TlsPeer

_BUFFER_BYTES: Final = 1024 * 1024
_HEARTBEAT_SECONDS: Final = 20.0
"""Between two questions whether the other side of a WebSocket is still there."""


class HttpFault(StrEnum):
    """Why there is no whole answer."""

    TIMEOUT = "timeout"
    CERTIFICATE = "certificate"
    UNREACHABLE = "unreachable"
    """There was never a connection."""
    DISCONNECTED = "disconnected"
    """The connection ended before the answer, as a kept one may at any time."""
    BROKE_OFF = "broke_off"
    """The connection ended within the answer."""
    TOO_LARGE = "too_large"
    REDIRECTS = "redirects"
    INVALID_URL = "invalid_url"
    NOT_HTTP = "not_http"


_DIAGNOSES: Final[tuple[tuple[tuple[type[Exception], ...], HttpFault, str], ...]] = (
    ((TimeoutError,), HttpFault.TIMEOUT, "timed out"),
    ((aiohttp.ClientSSLError, ssl.SSLError), HttpFault.UNREACHABLE, "TLS cannot be agreed upon"),
    ((aiohttp.ServerFingerprintMismatch,), HttpFault.CERTIFICATE, "it shows another certificate than before"),
    ((aiohttp.ClientPayloadError,), HttpFault.BROKE_OFF, "the connection broke off"),
    ((aiohttp.ServerDisconnectedError, OSError), HttpFault.DISCONNECTED, "the connection broke off"),
    ((aiohttp.TooManyRedirects,), HttpFault.REDIRECTS, "it redirects too often"),
    ((aiohttp.InvalidURL,), HttpFault.INVALID_URL, "this is not a URL"),
)
"""The first matching entry explains the exception."""


class HttpFailed(CorralError):
    """The request got no complete answer."""

    code = "http_failed"
    retryable = True

    def __init__(self, url: str, fault: HttpFault, reason: str) -> None:
        self.host = host_of(url)
        self.fault = fault
        self.reason = reason
        """For people, without the host. Never the text of a library's error, which may hold the whole URL."""
        super().__init__(f"{self.host}: {reason}", fault=fault)


def open_session(
    *,
    connect_timeout: timedelta,
    timeout: timedelta | None = None,
    read_timeout: timedelta | None = None,
    trust_env: bool = False,
    check_redirect: Callable[[str], Awaitable[None]] | None = None,
    connector: aiohttp.BaseConnector | None = None,
) -> aiohttp.ClientSession:
    """A session without cookies, which unpacks nothing; its opener closes it. With `trust_env`, proxies and their
    exceptions are those of the environment. `timeout` bounds the whole answer, `read_timeout` each silence in it.
    `check_redirect` gets every URL that a redirect leads to before it is asked; what it raises ends the request."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(
            total=timeout.total_seconds() if timeout is not None else None,
            sock_connect=connect_timeout.total_seconds(),
            sock_read=read_timeout.total_seconds() if read_timeout is not None else None,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": user_agent(), "Accept-Encoding": "identity"},
        auto_decompress=False,
        read_bufsize=_BUFFER_BYTES,
        trust_env=trust_env,
        connector=connector,
        trace_configs=[] if check_redirect is None else [_redirect_checks(check_redirect)],
    )


def stranger_connector() -> aiohttp.TCPConnector:
    """Return a connector for hosts that others name: it connects to no address that nobody may be sent to. The address
    is checked where the connection is made, so a name that leads elsewhere by then helps nobody."""
    return aiohttp.TCPConnector(socket_factory=_allowed_socket)


def _allowed_socket(place: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, address = place
    if why := forbidden_address(str(address[0])):
        raise ForbiddenAddress(errno.EACCES, f"it has the address {address[0]}, {why}")
    return socket.socket(family=family, type=kind, proto=protocol)


def _redirect_checks(check: Callable[[str], Awaitable[None]]) -> aiohttp.TraceConfig:
    async def on_redirect(_: object, __: object, params: aiohttp.TraceRequestRedirectParams) -> None:
        location = params.response.headers.get("Location") or params.response.headers.get("URI") or ""
        await check(str(params.url.join(URL(location))))

    traces = aiohttp.TraceConfig()
    traces.on_request_redirect.append(on_redirect)
    return traces


@asynccontextmanager
async def asked(  # noqa: PLR0913 - what a request consists of
    session: aiohttp.ClientSession,
    method: str,
    url: str | URL,
    *,
    headers: Mapping[str, str],
    data: bytes | AsyncIterable[bytes] | None = None,
    redirects: int = 0,
    tls: TlsPeer | aiohttp.Fingerprint | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer, of whatever status, as long as the block lasts. HttpFailed when none comes, or when it breaks off
    while it is read inside. `tls` says which name the peer must prove, where that is not the host of the URL, or which
    certificate it must show, where no authority decides that."""
    check: ssl.SSLContext | aiohttp.Fingerprint | bool = True
    if tls is not None:
        check = tls.context if isinstance(tls, TlsPeer) else tls
    with failures_of(str(url)):
        response = await session.request(
            method,
            url,
            headers=headers,
            data=data,
            allow_redirects=redirects > 0,
            max_redirects=redirects,
            ssl=check,
            server_hostname=tls.name if isinstance(tls, TlsPeer) else None,
        )
        try:
            yield response
        finally:
            response.close()  # what was not read is not worth reading


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole body; HttpFailed with TOO_LARGE when it is larger than that, however much of it is announced."""
    body = bytearray()
    if (response.content_length or 0) <= most:
        async for part in response.content.iter_any():
            body += part
            if len(body) > most:
                break
        else:
            return bytes(body)
    raise HttpFailed(str(response.url), HttpFault.TOO_LARGE, f"the answer has more than {most} bytes")


@contextmanager
def failures_of(url: str) -> Iterator[None]:
    """A context that turns every failure of a connection into HttpFailed."""
    try:
        yield
    except (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError) as error:
        why = getattr(getattr(error, "certificate_error", error), "verify_message", "")
        reason = f"its certificate is not trusted: {why}".rstrip(": ")
        raise HttpFailed(url, HttpFault.CERTIFICATE, reason) from error
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
            if isinstance(error.os_error, ForbiddenAddress):
                raise HttpFailed(url, HttpFault.UNREACHABLE, error.os_error.strerror or "") from error
            number = error.os_error.errno or 0
            reason = os.strerror(number).lower() if number > 0 else "its name cannot be found"
            raise HttpFailed(url, HttpFault.UNREACHABLE, reason) from error
        for kinds, fault, reason in _DIAGNOSES:
            if isinstance(error, kinds):
                raise HttpFailed(url, fault, reason) from error
        reason = f"it does not speak HTTP as expected ({type(error).__name__})"
        raise HttpFailed(url, HttpFault.NOT_HTTP, reason) from error


class TextSocket:
    """A WebSocket whose texts are read one by one."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def receive(self, within: timedelta) -> str | None:
        """The next text; None when none came in time, and an empty one when the other side has ended."""
        try:
            message = await self._socket.receive(within.total_seconds())
        except TimeoutError:
            return None
        return str(message.data) if message.type is aiohttp.WSMsgType.TEXT and message.data else ""


@asynccontextmanager
async def open_socket(
    session: aiohttp.ClientSession, url: str | URL, *, headers: Mapping[str, str], tls: TlsPeer | None, most: int
) -> AsyncIterator[TextSocket]:
    """A WebSocket as long as the block lasts, for messages of up to `most` bytes. HttpFailed when it cannot be opened,
    or breaks while it is read inside. No redirect is followed."""
    with failures_of(str(url)):
        async with session.ws_connect(
            url,
            headers=headers,
            ssl=True if tls is None else tls.context,
            server_hostname=None if tls is None else tls.name,
            max_msg_size=most,
            heartbeat=_HEARTBEAT_SECONDS,
        ) as socket:
            yield TextSocket(socket)
