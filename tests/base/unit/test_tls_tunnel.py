"""A plain socket that leads through TLS."""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from corral.base.tls import TlsPeer, server_context
from corral.base.tls_tunnel import open_tunnel
from corral.wire.fleet_tls import FleetRole, file_server_name
from tests.kit.fleet_tls import NODE, OTHER_NODE, TestFleet

NAME = file_server_name(NODE)
SIZE = 8 * 1024 * 1024


@contextmanager
def echo_server(fleet: TestFleet) -> Iterator[int]:
    """Sends back what comes, to callers with a certificate; one after the other."""
    context = server_context(fleet.identity(FleetRole.NODE, node_id=NODE))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(accepted, server_side=True) as caller:
                    while data := caller.recv(65536):
                        caller.sendall(data)
            except OSError:
                accepted.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_bytes_pass_both_ways_at_once() -> None:
    fleet, sent = TestFleet(), os.urandom(SIZE)
    with echo_server(fleet) as port, open_tunnel(fleet.peer(port, NAME), connect_seconds=5) as end:
        writer = threading.Thread(target=end.sendall, args=(sent,))
        writer.start()
        received = bytearray()
        while len(received) < SIZE:
            received += end.recv(65536)
        writer.join()
    assert bytes(received) == sent


def test_the_kernel_sends_a_file_through_it(tmp_path: os.PathLike[str]) -> None:
    fleet, sent = TestFleet(), os.urandom(200_000)
    file = os.path.join(tmp_path, "file")
    with open(file, "wb") as target:
        target.write(sent)
    with (
        echo_server(fleet) as port,
        open_tunnel(fleet.peer(port, NAME), connect_seconds=5) as end,
        open(file, "rb") as source,
    ):
        offset, received = 0, bytearray()
        while offset < len(sent):
            offset += os.sendfile(end.fileno(), source.fileno(), offset, len(sent) - offset)
        while len(received) < len(sent):
            received += end.recv(65536)
    assert bytes(received) == sent


def test_the_end_of_the_peer_is_the_end_of_the_plain_side() -> None:
    fleet = TestFleet()
    context = server_context(fleet.identity(FleetRole.NODE, node_id=NODE))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with context.wrap_socket(accepted, server_side=True) as caller:
                caller.sendall(b"the last words")

        thread = threading.Thread(target=serve)
        thread.start()
        with open_tunnel(fleet.peer(listener.getsockname()[1], NAME), connect_seconds=5) as end:
            received = b""
            while piece := end.recv(100):
                received += piece
        thread.join()
    assert received == b"the last words"


@pytest.mark.parametrize("name", [file_server_name(OTHER_NODE), "127.0.0.1"])
def test_a_peer_that_is_another_node_is_refused(name: str) -> None:
    fleet = TestFleet()
    with echo_server(fleet) as port, pytest.raises(ssl.SSLCertVerificationError):
        open_tunnel(fleet.peer(port, name), connect_seconds=5)


def test_a_peer_of_another_fleet_is_refused() -> None:
    stranger = TestFleet()
    with echo_server(TestFleet()) as port, pytest.raises(ssl.SSLCertVerificationError):
        open_tunnel(stranger.peer(port, NAME), connect_seconds=5)


def test_nobody_there_is_an_error_of_the_operating_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    peer = TlsPeer(address=f"127.0.0.1:{port}", context=TestFleet().caller(FleetRole.CONTROL), name=NAME)
    with pytest.raises(OSError, match="refused"):
        open_tunnel(peer, connect_seconds=5)
