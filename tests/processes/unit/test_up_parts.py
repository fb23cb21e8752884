"""The parts of `corral up` that need no processes: ports, files, environments, locks."""

import json
import socket
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from corral.base.errors import AddressInUse, DataInUse, PathNotUsable, SettingInvalid
from corral.base.private_files import held
from corral.gateway.config import GatewayConfig
from corral.processes import up_children
from corral.processes.gateway import listen
from corral.processes.probe import ProbeAnswer, http_url, is_free, kept_port, take_port
from corral.processes.up_children import STEP, WorkerPorts, worker_environment
from corral.processes.up_file import UpFile, UpKeys, UpPids, read_up_file, remove_up_file, write_up_file

HOST = "127.0.0.1"


@pytest.fixture
def first_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A stretch of ports of our own, so that a fleet on this machine does not disturb."""
    candidates = range(26001, 31001, 500)
    first = next(
        port for port in candidates if all(is_free(HOST, port + i * STEP - d) for i in range(3) for d in (0, 1))
    )
    monkeypatch.setattr(up_children, "FIRST_PORT", first)
    monkeypatch.setattr(up_children, "LAST_PORT", first + 3 * STEP)
    return first


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"status":"no view","message":"no word from control yet"}', "no word from control yet"),
        (b'{"status":"no view"}', '{"status":"no view"}'),
        (b"[1]", "[1]"),
        (b"not ready: \xff\n", "not ready: \ufffd"),
    ],
)
def test_what_a_process_says_of_itself_is_told_without_its_json(body: bytes, sentence: str) -> None:
    assert ProbeAnswer(503, body).sentence == sentence


@pytest.fixture
def ports(tmp_path: Path, first_port: int) -> Iterator[WorkerPorts]:
    with closing(WorkerPorts(tmp_path / "ports.json")) as ports:
        yield ports


class TestWorkerPorts:
    def test_each_worker_has_its_own_stretch(self, ports: WorkerPorts, first_port: int) -> None:
        assert [ports.choose(1), ports.choose(2)] == [first_port, first_port + STEP]
        assert [ports.choose(1), ports.choose(2)] == [first_port, first_port + STEP]

    def test_they_are_remembered(self, tmp_path: Path, first_port: int) -> None:
        with closing(WorkerPorts(tmp_path / "ports.json")) as ports:
            ports.choose(2)
        assert json.loads((tmp_path / "ports.json").read_text()) == {"2": first_port}
        with closing(WorkerPorts(tmp_path / "ports.json")) as again:
            assert again.choose(1) == first_port + STEP
            assert again.choose(2) == first_port

    def test_fleets_that_start_at_once_share_no_ports(self, tmp_path: Path, ports: WorkerPorts) -> None:
        with closing(WorkerPorts(tmp_path / "other.json")) as other:
            chosen = [fleet.choose(1) for fleet in (ports, other, ports, other)]  # nothing listens on them yet
        assert chosen[:2] == chosen[2:], "each fleet keeps its own"
        assert chosen[0] != chosen[1]

    def test_the_end_of_a_fleet_frees_its_ports(self, tmp_path: Path, ports: WorkerPorts, first_port: int) -> None:
        with closing(WorkerPorts(tmp_path / "other.json")) as other:
            assert other.choose(1) == first_port
        assert ports.choose(1) == first_port

    @pytest.mark.parametrize("below", [0, 1])
    def test_a_taken_port_or_the_one_below_it_is_passed_over(
        self, ports: WorkerPorts, first_port: int, below: int
    ) -> None:
        assert ports.choose(1) == first_port
        with socket.create_server((HOST, first_port - below)):
            assert ports.choose(1) == first_port + STEP
        assert ports.choose(1) == first_port + STEP, "an address that was told stays"

    def test_when_all_are_taken_it_says_so(self, ports: WorkerPorts) -> None:
        for worker in range(3):
            ports.choose(worker)
        with pytest.raises(AddressInUse, match="all ports for workers are taken"):
            ports.choose(3)

    @pytest.mark.parametrize("content", [b"{", b"[]", b'{"1": "x"}', b'{"1": 5}', b'{"x": 21001}', b"null"])
    def test_a_damaged_memory_is_forgotten(self, tmp_path: Path, first_port: int, content: bytes) -> None:
        file = tmp_path / "ports.json"
        file.write_bytes(content)
        file.chmod(0o600)
        with closing(WorkerPorts(file)) as ports:
            assert ports.choose(1) == first_port


def test_workers_do_not_get_what_is_meant_for_others() -> None:
    environment = {
        "PATH": "/bin",
        "LOCALAI_NODE_NAME": "x",
        "CORRAL_ADVERTISE_ADDRESS": "x",
        "MODELS_PATH": "x",
        "LOCALAI_NODE_LABELS": "zone=a",
        "CORRAL_REGISTRATION_TOKEN": "shared",
    }
    assert worker_environment(environment, {"CORRAL_REGISTRATION_TOKEN": "trusted"}) == {
        "PATH": "/bin",
        "LOCALAI_NODE_LABELS": "zone=a",
        "CORRAL_DRAIN_TIMEOUT": "2s",
        "CORRAL_REGISTRATION_RETRY": "200ms",
        "CORRAL_REGISTRATION_TOKEN": "trusted",
    }


class TestUpFile:
    CONTENT = UpFile(
        url="http://127.0.0.1:1",
        nats_url="nats://worker:x@127.0.0.1:2",
        keys=UpKeys(admin="a", registration="r"),
        pids=UpPids(frontend=1, control=2, nats=3, workers=[4, 5]),
    )

    def test_is_private_and_read_back(self, tmp_path: Path) -> None:
        write_up_file(tmp_path, self.CONTENT)
        assert stat.S_IMODE((tmp_path / "up.json").stat().st_mode) == 0o600
        assert read_up_file(tmp_path) == self.CONTENT
        assert json.loads((tmp_path / "up.json").read_text())["pids"]["gateways"] == []

    def test_one_that_others_may_read_is_refused(self, tmp_path: Path) -> None:
        write_up_file(tmp_path, self.CONTENT)
        (tmp_path / "up.json").chmod(0o644)
        with pytest.raises(PathNotUsable, match="chmod 600"):
            read_up_file(tmp_path)

    def test_removing_it_twice_is_no_error(self, tmp_path: Path) -> None:
        write_up_file(tmp_path, self.CONTENT)
        remove_up_file(tmp_path)
        remove_up_file(tmp_path)
        assert read_up_file(tmp_path) is None


class TestLock:
    def test_keeps_others_out_until_the_end(self, tmp_path: Path) -> None:
        with (
            held(tmp_path / "lock", "taken"),
            pytest.raises(DataInUse, match="taken"),
            held(tmp_path / "lock", "taken"),
        ):
            pass
        with held(tmp_path / "lock", "taken"):
            pass

    def test_a_place_that_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(PathNotUsable, match="cannot write"), held(tmp_path / "none" / "lock", "taken"):
            pass


class TestPorts:
    def test_zero_takes_a_free_one(self) -> None:
        assert is_free(HOST, take_port(HOST, 0))

    def test_a_taken_one_names_the_flag(self) -> None:
        with socket.create_server((HOST, 0)) as taken, pytest.raises(AddressInUse, match="choose another with --here"):
            take_port(HOST, taken.getsockname()[1], flag="--here")

    def test_a_kept_one_is_for_servers_that_share_it_and_for_nobody_else(self) -> None:
        config = GatewayConfig(host=HOST, port=0, control_url="unix:/none", control_key="", reuse_port=True)
        with kept_port(HOST, 0) as port:
            with pytest.raises(AddressInUse), kept_port(HOST, port):  # another frontend, before any gateway listens
                pass
            gateways = [listen(replace(config, port=port)) for _ in range(2)]
            socket.create_connection((HOST, port), timeout=5).close()
            for gateway in gateways:
                gateway.close()
            assert not is_free(HOST, port)  # as while a gateway is started again
        assert is_free(HOST, port)

    @pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
    def test_an_address_that_is_not_ours_is_refused(self, host: str) -> None:
        with pytest.raises(SettingInvalid, match=f"host: cannot listen on {host}"):
            take_port(host, 0)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("fd00::5", "http://[fd00::5]:1"),
        ("here.example", "http://here.example:1"),
    ],
)
def test_the_url_is_one_that_this_machine_can_use(host: str, url: str) -> None:
    assert http_url(host, 1) == url
