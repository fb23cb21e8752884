"""Connections that come together are accepted together."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from corral.base.accepting import Acceptor
from tests.kit.waiting import within_timeout


@pytest.fixture
async def listener() -> AsyncIterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as made:
        yield made


async def test_all_that_wait_are_accepted_in_one_turn_of_the_loop(listener: socket.socket) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(50)]
        accepted: list[object] = []

        def take(connection: socket.socket, peer: object) -> None:
            accepted.append(peer)
            connection.close()

        acceptor = Acceptor(listener, take, failed=pytest.fail)
        stack.callback(acceptor.close)
        turns = 0
        while not accepted:
            await asyncio.sleep(0)
            turns += 1
            assert turns < 1000
        assert accepted == [client.getsockname() for client in clients]


class Exhausted(socket.socket):
    """Has no descriptors left for the first connection."""

    failures = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_it_goes_on_after_the_process_had_no_descriptors() -> None:
    with Exhausted() as listener, ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        told: list[OSError] = []
        taken = asyncio.Event()

        def take(connection: socket.socket, _: object) -> None:
            connection.close()
            taken.set()

        acceptor = Acceptor(listener, take, failed=told.append)
        stack.callback(acceptor.close)
        stack.enter_context(socket.create_connection(listener.getsockname()))

        await within_timeout(taken.wait(), lambda: "the connection")
        assert [error.errno for error in told] == [errno.EMFILE]
