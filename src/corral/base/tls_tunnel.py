"""A plain socket that leads through TLS: for code that gives its socket to the kernel, such as `sendfile`.

A thread passes bytes between one end of a socket pair and the TLS connection. It ends with either of them.
"""

import contextlib
import select
import socket
import ssl
import threading
from typing import Final

from corral.base.tls import TlsPeer

_PIECE: Final = 256 * 1024
_READABLE: Final = select.POLLIN | select.POLLHUP | select.POLLERR


def open_tunnel(peer: TlsPeer, *, connect_seconds: float) -> socket.socket:
    """Connect, and return the plain end once the peer has proven its name. OSError, which ssl.SSLError is, if not."""
    host, _, port = peer.address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=connect_seconds)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = peer.context.wrap_socket(connection, server_hostname=peer.name)
    except BaseException:
        connection.close()
        raise
    near_end, far_end = socket.socketpair()
    tunnel = _Tunnel(far_end, tls)
    threading.Thread(target=tunnel.run, name=f"TLS to {peer.address}", daemon=True).start()
    return near_end


class _Tunnel:
    def __init__(self, plain: socket.socket, tls: ssl.SSLSocket) -> None:
        self._plain = plain
        self._tls = tls
        self._to_tls = b""
        self._to_plain = b""
        self._tls_wants_write = False
        """A handshake message or a write waits for room in the connection."""
        self._plain_ended = False

    def run(self) -> None:
        """Until one side ends and what it sent before was passed on."""
        self._plain.setblocking(False)
        self._tls.setblocking(False)
        with contextlib.suppress(OSError), self._plain, self._tls:
            while self._step():
                self._wait()

    def _step(self) -> bool:
        """Pass on what can be passed on now. Whether there may be more later."""
        self._tls_wants_write = False
        is_open = self._from_tls()
        if not self._to_tls and not self._plain_ended:
            try:
                self._to_tls = self._plain.recv(_PIECE)
                self._plain_ended = not self._to_tls
            except BlockingIOError:
                pass
        self._write_tls()
        return is_open and not (self._plain_ended and not self._to_tls)

    def _from_tls(self) -> bool:
        """Pass on all that has come through TLS and fits. False when the peer has ended and all of it is passed on."""
        while True:
            if self._to_plain:
                try:
                    self._to_plain = self._to_plain[self._plain.send(self._to_plain) :]
                except BlockingIOError:
                    return True
                continue
            try:
                self._to_plain = self._tls.recv(_PIECE)
            except ssl.SSLWantReadError:
                return True
            except ssl.SSLWantWriteError:
                self._tls_wants_write = True
                return True
            except ssl.SSLEOFError:
                return False
            if not self._to_plain:
                return False

    def _write_tls(self) -> None:
        while self._to_tls:
            try:
                self._to_tls = self._to_tls[self._tls.send(self._to_tls) :]
            except ssl.SSLWantReadError:
                return
            except ssl.SSLWantWriteError:
                self._tls_wants_write = True
                return

    def _wait(self) -> None:
        poll = select.poll()
        tls_events = 0 if self._to_plain else _READABLE
        tls_events |= select.POLLOUT if self._tls_wants_write else 0
        plain_events = 0 if self._to_tls or self._plain_ended else _READABLE
        plain_events |= select.POLLOUT if self._to_plain else 0
        poll.register(self._tls, tls_events)
        poll.register(self._plain, plain_events)
        poll.poll()
