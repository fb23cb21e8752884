"""Counting the calls that are open at a backend."""

import asyncio
import socket

import pytest

from corral.worker.processes.ports import count_connections


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_each_connection_is_counted_once_and_only_while_it_is_open(family: int, host: str) -> None:
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        assert await count_connections({port}) == 0
        clients = [socket.create_connection((host, port)) for _ in range(2)]
        accepted = [server.accept()[0] for _ in clients]
        assert await count_connections({port}) == 2
        assert await count_connections({1}) == 0
        for connection in (*clients, *accepted):
            connection.close()
        assert await count_connections({port}) == 0


async def test_without_backends_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "to_thread", None)
    assert await count_connections(set()) == 0
