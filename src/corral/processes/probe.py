"""Probes ports of our own processes: whether one is free, and what its HTTP server answers.

Uses no HTTP client library, which would cost a launcher more memory than everything else it does.
"""

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from corral.base.errors import AddressInUse, CorralError, SettingInvalid

_TIMEOUT_SECONDS: Final = 5.0
_FIRST_LOOK_SECONDS: Final = 0.02
_LAST_LOOK_SECONDS: Final = 0.2
_MAX_ANSWER: Final = 16 * 1024 * 1024


class ProbeAnswer(NamedTuple):
    status: int
    body: bytes

    @property
    def sentence(self) -> str:
        """The message of the answer, or its whole text."""
        try:
            return str(json.loads(self.body)["message"])
        except (ValueError, LookupError, TypeError):
            return self.body.decode(errors="replace").strip()


async def ask_socket(path: Path, request: str) -> ProbeAnswer | None:
    """Send a GET over a Unix socket; None when there is no HTTP answer."""
    return await _answer(asyncio.open_unix_connection(str(path)), "control", request, {})


async def ask(
    host: str, port: int, path: str, headers: Mapping[str, str] | None = None, *, tls: ssl.SSLContext | None = None
) -> ProbeAnswer | None:
    """Send a GET; None when there is no HTTP answer."""
    return await _answer(asyncio.open_connection(host, port, ssl=tls), f"{host}:{port}", path, headers or {})


async def _answer(
    connecting: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    host: str,
    path: str,
    headers: Mapping[str, str],
) -> ProbeAnswer | None:
    # Closed by the server, so that the response ends with the connection.
    fields = {"Host": host, "Connection": "close", **headers}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items())]
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            reader, writer = await connecting
            with closing(writer):
                writer.write("\r\n".join([*lines, "", ""]).encode())
                await writer.drain()
                content = await reader.read(_MAX_ANSWER)
                while chunk := await reader.read(_MAX_ANSWER - len(content)):
                    content += chunk
            head, _, body = content.partition(b"\r\n\r\n")
            return ProbeAnswer(int(head.split(b" ", 2)[1]), body) if head.startswith(b"HTTP/") else ProbeAnswer(0, b"")
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
        return None


def unverified_tls() -> ssl.SSLContext:
    """A TLS context for probes of our own children.

    It does not check the certificate, which need not name this address, so nothing secret may be sent.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def until_ok(look: Callable[[], Awaitable[ProbeAnswer | None]]) -> None:
    """Ask until the answer has the status 200, with growing pauses."""
    pause = _FIRST_LOOK_SECONDS
    while True:
        answer = await look()
        if answer is not None and answer.status == 200:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LAST_LOOK_SECONDS)


def dialled(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on this host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound


def http_url(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL at which this machine reaches a server on this host and port."""
    reached = dialled(host)
    return f"{scheme}://[{reached}]:{port}" if ":" in reached else f"{scheme}://{reached}:{port}"


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """Listen briefly with our servers' socket options: an address that was just in use does not count as taken."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen(1)
        yield probe


def is_free(host: str, port: int) -> bool:
    try:
        with _bound(host, port):
            return True
    except OSError:
        return False


def take_port(host: str, port: int, *, flag: str = "--port") -> int:
    """Return the port, or a free one for 0. AddressInUse and SettingInvalid name the flag to change."""
    try:
        with _bound(host, port) as probe:
            chosen: int = probe.getsockname()[1]
            return chosen
    except OSError as error:
        raise _refusal(error, host, port, flag) from None


@contextmanager
def kept_port(host: str, port: int) -> Iterator[int]:
    """Keep the port for servers of this user that share it, also while none of them listens; 0 takes a free one.

    Servers that share a port cannot tell their own kind from another fleet's, and the kernel would give each of them a
    part of the connections. Listening without sharing is what only one can do; who did it then stops listening, keeps
    the address, and lets others share it.
    """
    chosen = take_port(host, port)  # by its number: the kernel frees a port that it chose itself when listening ends
    with ExitStack() as stack:
        try:
            keeper = stack.enter_context(_bound(host, chosen))
            keeper.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            raise _refusal(error, host, chosen, "--port") from None
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield chosen


def _refusal(error: OSError, host: str, port: int, flag: str) -> CorralError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(f"port {port} on {host} is taken by another program; choose another with {flag}")
    if error.errno == errno.EACCES:
        return SettingInvalid("port", f"only root may listen on port {port}; choose one from 1024 with {flag}")
    return SettingInvalid("host", f"cannot listen on {host} port {port}: {error.strerror or error}")
