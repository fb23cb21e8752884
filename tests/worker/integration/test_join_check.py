"""`corral worker --check`: everything that can be wrong before joining, provoked once, with its sentence."""

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from corral.base.http_client import open_session
from corral.base.private_files import held
from corral.base.tls_keys import public_key_hash
from corral.bus.config import BusConfig
from corral.frontend.nodes.dialling import Dialling
from corral.frontend.nodes.fleet_key import FleetKey
from corral.processes.worker_check import check_worker
from corral.wire.joining import DialledAddress, JoinCheck, JoinCheckAnswer
from corral.worker.config import FrontendConfig, WorkerConfig
from corral.worker.membership import addresses
from corral.worker.membership.addresses import AddressConfig
from corral.worker.membership.join_check import CheckedMachine, CheckLimits, CheckLine, JoinChecks, Verdict
from corral.worker.membership.pinned_fleet import PinnedFleet
from tests.kit.ports import lasting_range

Calls = Callable[[list[DialledAddress]], list[DialledAddress]]
NO_NATS = "nats://127.0.0.1:9"


@dataclass
class CheckFrontend:
    """Proves who it is, and calls back as control does; a test may change what it says."""

    key: FleetKey
    url: str = ""
    status: int = 200
    change: Calls = lambda calls: calls
    nats_urls: list[str] | None = None
    presented: str | None = None

    async def prove(self, request: web.Request) -> web.Response:
        proof = await self.key.prove(request.query["nonce"], at=datetime.now(UTC))
        return web.Response(body=msgspec.json.encode(proof))

    async def check(self, request: web.Request) -> web.Response:
        self.presented = request.headers["Authorization"].removeprefix("Bearer ")
        if self.status != 200:
            return web.json_response({"error": {"message": "the join code was revoked"}}, status=self.status)
        wish = msgspec.json.decode(await request.read(), type=JoinCheck)
        calls = await Dialling().try_all(wish.addresses, source="127.0.0.1")
        answer = JoinCheckAnswer(
            seen_from="127.0.0.1", dialled=self.change(calls), invitation="good for one", nats_urls=self.nats_urls
        )
        return web.Response(body=msgspec.json.encode(answer))


@pytest.fixture
async def frontend() -> AsyncIterator[CheckFrontend]:
    peer = CheckFrontend(key=FleetKey(Ed25519PrivateKey.generate(), [], public_key_hash))
    app = web.Application()
    app.add_routes([web.get("/api/v1/fleet", peer.prove), web.post("/api/v1/join-checks", peer.check)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    peer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield peer
    await runner.cleanup()


@pytest.fixture
def machine(frontend: CheckFrontend, tmp_path: Path) -> CheckedMachine:
    ports = lasting_range(10)
    where = AddressConfig(addr=f"127.0.0.1:{ports.start + 1}", grpc_max_port=ports.stop - 1)
    config = WorkerConfig(
        frontend=FrontendConfig(urls=(frontend.url,), is_joining=True),
        bus=BusConfig(url=""),
        data_path=tmp_path / "data",
        models_path=tmp_path / "models",
        backends_path=tmp_path / "backends",
        addresses=where,
    )
    places = addresses.decide(where, "127.0.0.1")
    lock = tmp_path / "data" / "lock"
    return CheckedMachine(config=config, places=places, gpus=(), bearer="code", lock=lock, sys=tmp_path / "sys")


async def checked(
    machine: CheckedMachine, *, pin: str = "", limits: CheckLimits | None = None, ahead: timedelta = timedelta(0)
) -> list[CheckLine]:
    limits = limits or CheckLimits(least_disk=1, low_disk=2, patience=timedelta(seconds=0.5))
    async with open_session(connect_timeout=timedelta(seconds=5), timeout=timedelta(seconds=10)) as session:
        fleet = PinnedFleet(session, pin)
        return await JoinChecks(machine, session, fleet, limits, now=lambda: datetime.now(UTC) + ahead).run()


def failed(findings: list[CheckLine], verdict: Verdict = Verdict.FAILED) -> str:
    """The only finding that is not good."""
    [bad] = [finding for finding in findings if finding.verdict is not Verdict.OK]
    assert bad.verdict is verdict
    return f"{bad.subject}: {bad.sentence}"


async def test_a_machine_without_problems(machine: CheckedMachine, frontend: CheckFrontend) -> None:
    findings = await checked(machine, pin=frontend.key.pin)
    assert {finding.verdict for finding in findings} == {Verdict.OK}
    subjects = [finding.subject for finding in findings]
    assert subjects == ["data", "disk", "disk", "gpu", "frontend", "clock", "code", "ports", "ports", "nats"]
    assert not machine.config.data_path.exists()


@pytest.mark.parametrize(
    ("remembered", "presented"), [(None, "token"), ("node.json", "s" * 43), ("joined.json", "s" * 43)]
)
async def test_a_secret_that_no_frontend_knows_is_not_presented(
    machine: CheckedMachine, frontend: CheckFrontend, remembered: str | None, presented: str
) -> None:
    data = machine.config.data_path
    data.mkdir(mode=0o700)
    for name in filter(None, ["node-secret", remembered]):
        (data / name).write_text("s" * 43)
        (data / name).chmod(0o600)
    by_token = dataclasses.replace(machine.config.frontend, registration_token="token")
    await check_worker(
        dataclasses.replace(machine.config, frontend=by_token), limits=CheckLimits(least_disk=1, low_disk=2)
    )
    assert frontend.presented == presented


async def test_a_worker_with_tls_needs_one_port(machine: CheckedMachine, frontend: CheckFrontend) -> None:
    with_tls = replace(machine, config=dataclasses.replace(machine.config, fleet_tls=True))
    findings = await checked(with_tls, pin=frontend.key.pin)
    [ports] = [finding for finding in findings if finding.subject == "ports"]
    assert ports.verdict is Verdict.OK
    assert f"the frontend reaches the TLS port at {machine.places.advertise_http}" in ports.sentence


async def test_no_frontend(machine: CheckedMachine) -> None:
    elsewhere = dataclasses.replace(machine.config.frontend, urls=("http://127.0.0.1:9",))
    sentence = failed(await checked(replace(machine, config=dataclasses.replace(machine.config, frontend=elsewhere))))
    assert "frontend: 127.0.0.1:9 does not answer: connection refused; is the URL right" in sentence


async def test_another_fleet(machine: CheckedMachine) -> None:
    assert "is another fleet" in failed(await checked(machine, pin="a" * 32))


@pytest.mark.parametrize(
    ("ahead", "verdict", "words"),
    [
        (-90, Verdict.FAILED, "s behind the frontend's"),
        (90, Verdict.FAILED, "s ahead of"),
        (10, Verdict.WARNING, "s ahead"),
    ],
)
async def test_a_wrong_clock(machine: CheckedMachine, ahead: int, verdict: Verdict, words: str) -> None:
    sentence = failed(await checked(machine, ahead=timedelta(seconds=ahead)), verdict)
    assert sentence.startswith("clock: this machine's clock is")
    assert words in sentence


async def test_a_bad_code(machine: CheckedMachine, frontend: CheckFrontend) -> None:
    frontend.status = 401
    assert "code: " in failed(await checked(machine))
    assert "answered 401: the join code was revoked" in failed(await checked(machine))


async def test_no_code(machine: CheckedMachine) -> None:
    sentence = failed(await checked(replace(machine, bearer="")), Verdict.WARNING)
    assert "ports: the frontend was not asked to call back" in sentence


@pytest.mark.parametrize(
    ("problem", "verdict", "words"),
    [
        ("no route to host", Verdict.FAILED, "the frontend does not reach backends at"),
        ("not tried: for the frontend x is y", Verdict.WARNING, "is this machine behind a router?"),
    ],
)
async def test_a_closed_port(
    machine: CheckedMachine, frontend: CheckFrontend, problem: str, verdict: Verdict, words: str
) -> None:
    frontend.change = lambda calls: [calls[0], DialledAddress(address=calls[1].address, problem=problem)]
    sentence = failed(await checked(machine), verdict)
    assert sentence.startswith("ports: ")
    assert words in sentence
    if verdict is Verdict.FAILED:
        assert "open the ports" in sentence


async def test_somebody_else_at_the_address(machine: CheckedMachine, frontend: CheckFrontend) -> None:
    frontend.change = lambda calls: [calls[0], DialledAddress(address=calls[1].address, word="another")]
    sentence = failed(await checked(machine))
    assert "what the frontend said does not arrive at backends" in sentence
    assert "another machine or program has that address" in sentence


async def test_a_frontend_that_tries_nothing(machine: CheckedMachine, frontend: CheckFrontend) -> None:
    frontend.change = lambda calls: calls[:1]
    assert "did not try backends" in failed(await checked(machine), Verdict.WARNING)


async def test_a_port_that_is_taken(machine: CheckedMachine) -> None:
    with socket.create_server(tuple(machine.places.http_bind)):
        sentence = failed(await checked(machine))
    assert "ports: the HTTP server cannot listen on" in sentence
    assert "address already in use" in sentence


async def test_no_nats(machine: CheckedMachine) -> None:
    away = replace(machine, config=dataclasses.replace(machine.config, bus=BusConfig(url=NO_NATS)))
    assert "nats: 127.0.0.1:9 cannot be reached (connection refused)" in failed(await checked(away))


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        ([NO_NATS], "nats: 127.0.0.1:9 cannot be reached (connection refused)"),
        ([], "nats: the frontend does not tell where NATS is; set nats_url (CORRAL_NATS_URL)"),
        (["ftp://x"], "nats: the address of NATS cannot be used"),
    ],
)
async def test_the_nats_that_the_frontend_offers_is_tried(
    machine: CheckedMachine, frontend: CheckFrontend, offered: list[str], words: str
) -> None:
    frontend.nats_urls = offered
    assert words in failed(await checked(machine))


@asynccontextmanager
async def speaking(greeting: bytes) -> AsyncIterator[int]:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_what_listens_is_no_nats(machine: CheckedMachine) -> None:
    async with speaking(b"SSH-2.0-x\r\n") as port:
        other = replace(
            machine, config=dataclasses.replace(machine.config, bus=BusConfig(url=f"nats://127.0.0.1:{port}"))
        )
        assert "is no NATS server" in failed(await checked(other))
    async with speaking(b'INFO {"server_id":"x"}\r\n') as port:
        good = replace(
            machine, config=dataclasses.replace(machine.config, bus=BusConfig(url=f"nats://127.0.0.1:{port}"))
        )
        assert [finding.verdict for finding in await checked(good)][-1] is Verdict.OK


@pytest.mark.parametrize(
    ("limits", "verdict", "words"),
    [
        (CheckLimits(least_disk=2**60, low_disk=2**60), Verdict.FAILED, "GiB are needed"),
        (CheckLimits(least_disk=1, low_disk=2**60), Verdict.WARNING, "most models take more"),
    ],
)
async def test_a_full_disk(machine: CheckedMachine, limits: CheckLimits, verdict: Verdict, words: str) -> None:
    findings = [finding for finding in await checked(machine, limits=limits) if finding.subject == "disk"]
    assert {finding.verdict for finding in findings} == {verdict}
    assert all(words in finding.sentence for finding in findings)


async def test_a_data_directory_that_cannot_be_used(machine: CheckedMachine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    bad = replace(machine, config=dataclasses.replace(machine.config, data_path=file / "data"))
    assert "is not writable for this user" in failed(await checked(bad))
    machine.config.data_path.mkdir()
    with ExitStack() as stack:
        stack.enter_context(held(machine.lock, "taken"))
        assert "another worker uses the data directory" in failed(await checked(machine))


async def test_a_gpu_without_a_driver(machine: CheckedMachine) -> None:
    device = machine.sys / "bus" / "pci" / "devices" / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text("0x030200")
    (device / "vendor").write_text("0x10de")
    assert "gpu: the GPU 0000:01:00.0 (nvidia) has no driver" in failed(await checked(machine))


async def test_a_frontend_of_localai_is_no_failure_for_who_does_not_join(machine: CheckedMachine) -> None:
    async with speaking(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as port:
        there = dataclasses.replace(machine.config.frontend, urls=(f"http://127.0.0.1:{port}",), is_joining=False)
        findings = await checked(replace(machine, config=dataclasses.replace(machine.config, frontend=there)))
    assert "does not say which fleet it is" in failed(findings, Verdict.WARNING)
