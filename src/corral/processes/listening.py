"""Ports before they are used: is one free, which one is."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from corral.base.errors import AddressInUse, SettingInvalid


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """Listens for a moment, in the way our servers do: an address that just was in use does not count as taken."""
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
    """The port to use, or any free one for 0. AddressInUse and SettingInvalid name the flag to change."""
    try:
        with _bound(host, port) as probe:
            chosen: int = probe.getsockname()[1]
            return chosen
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            problem = f"port {port} on {host} is taken by another program; choose another with {flag}"
            raise AddressInUse(problem) from None
        if error.errno == errno.EACCES:
            problem = f"only root may listen on port {port}; choose one from 1024 with {flag}"
            raise SettingInvalid("port", problem) from None
        raise SettingInvalid("host", f"cannot listen on {host} port {port}: {error.strerror or error}") from error
