"""A whole worker on a real NATS server is asked for backends: what it answers, byte for byte where that binds."""

import asyncio
import json
import os
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from corral.base.ids import NodeId
from corral.base.tasks import end_tasks
from corral.bus.config import BusConfig
from corral.bus.port import Message
from corral.processes.exit_codes import ExitCode
from corral.rpc.backend import Backend
from corral.wire import go_json, subjects
from corral.wire.backends import InstallReply, InstallRequest
from corral.wire.models import ADAPTED_ROUTES
from corral.wire.replicas import ReplicaExited, RunningReply
from corral.worker.config import WorkerConfig
from corral.worker.installing import directory_source, switching
from corral.worker.membership.addresses import AddressConfig
from corral.worker.membership.identity import SECRET_FILE
from corral.worker.processes.ports import accepts_connections
from tests.kit.backend_scripts import Pipe, open_pipe, write_backend, write_serving_backend
from tests.kit.backends import BACKENDS, SHIPPED
from tests.kit.gates import held_call
from tests.kit.plain_nats import PlainNats
from tests.kit.worker_client import NODE, SOON, WorkerClient

SECOND = timedelta(seconds=1)
CHANGES = {
    "install": subjects.backend_install,
    "upgrade": subjects.backend_upgrade,
    "delete": subjects.backend_delete,
}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return tmp_path / "backends"


@pytest.fixture
def on_nats(config: WorkerConfig, nats: PlainNats, installed: Path) -> WorkerConfig:
    return replace(config, bus=BusConfig(url=nats.worker_url), backends_path=installed, system_backends=(BACKENDS,))


async def test_a_process_is_installed_listed_and_stopped(joined: Any, bus_client: WorkerClient, base_port: int) -> None:
    reply = await bus_client.ask(subjects.backend_install, b'{"BACKEND":"echo","Model_ID":"m1","zzz":{"a":1}}')
    address = f"127.0.0.1:{base_port}"
    assert reply == {"success": True, "address": address}
    assert await bus_client.ask(subjects.models_running) == {
        "models": [{"model_id": "m1", "replica_index": 0, "address": address}]
    }
    async with Backend(address, token="tok") as client:
        await client.health(timeout=SOON)

    await bus_client.stop(b'{"backend":"m1"}')
    await bus_client.until_nothing_runs()

    assert await bus_client.ask(subjects.models_running) == {"models": []}


async def test_the_address_has_the_advertised_host_and_the_local_port(
    worker: Any, on_nats: WorkerConfig, bus_client: WorkerClient, installed: Path, base_port: int
) -> None:
    directory = write_serving_backend(installed, "engine")
    (directory / "corral.json").write_text('{"http": {"protocol": "openai"}}')
    told = replace(on_nats, addresses=replace(on_nats.addresses, advertise_addr="node.example:7777"))
    async with worker(told) as running:
        await running.clock.until_sleeping(1)
        reply = await bus_client.ask(subjects.backend_install, b'{"backend":"engine","model_id":"m1"}')
        listed = (await bus_client.ask(subjects.models_running))["models"][0]
        await bus_client.stop(b"")

    assert reply["address"] == f"node.example:{base_port}"
    assert reply["corral"]["url"] == f"http://node.example:{base_port + 1}"
    assert len(reply["corral"]["key"]) >= 32
    assert listed["address"] == f"127.0.0.1:{base_port}"
    assert listed["corral"] == reply["corral"]


async def test_backends_listen_at_the_loopback_address_that_is_advertised(
    worker: Any, on_nats: WorkerConfig, bus_client: WorkerClient, base_port: int
) -> None:
    address = f"127.0.0.3:{base_port}"
    told = replace(on_nats, addresses=AddressConfig(addr=address))
    async with worker(told) as running:
        await running.clock.until_sleeping(1)
        reply = await bus_client.ask(subjects.backend_install, b'{"backend":"echo","model_id":"m1"}')
        assert reply == {"success": True, "address": address}
        async with Backend(address, token="tok") as client:
            await client.health(timeout=SOON)
        assert not await accepts_connections(f"127.0.0.1:{base_port}")
        await bus_client.stop(b"")


async def test_a_backend_without_http_gets_the_advertised_url_of_the_adapter(
    worker: Any, on_nats: WorkerConfig, bus_client: WorkerClient, base_port: int
) -> None:
    told = replace(on_nats, addresses=replace(on_nats.addresses, advertise_addr="node.example:7777"))
    async with worker(told) as running:
        await running.clock.until_sleeping(1)
        request = b'{"backend":"echo","model_id":"%s","corral":{"model":{"name":"%s","later":1}}}'
        first = await bus_client.ask(subjects.backend_install, request % (b"m1", b"m1"))
        again = await bus_client.ask(subjects.backend_install, request % (b"m1", b"m1"))
        second = await bus_client.ask(subjects.backend_install, request % (b"m2", b"m2"))
        listed = (await bus_client.ask(subjects.models_running))["models"]
        await bus_client.stop(b"")

    assert first == again
    assert first["corral"]["url"] == second["corral"]["url"] == f"http://node.example:{base_port + 1}"
    assert len(first["corral"]["key"]) >= 32
    assert first["corral"]["adapted"] is True
    assert first["corral"]["routes"] == sorted(ADAPTED_ROUTES)
    assert first["corral"]["key"] != second["corral"]["key"]
    assert [one["corral"] for one in listed] == [first["corral"], second["corral"]]


@pytest.mark.parametrize("corral", [b"5", b'{"model":5}', b'{"model":{}}', b'{"model":{"name":["x"]}}'])
async def test_words_about_a_model_that_cannot_be_read_start_nothing(
    joined: Any, bus_client: WorkerClient, corral: bytes
) -> None:
    reply = await bus_client.ask(subjects.backend_install, b'{"backend":"echo","model_id":"m","corral":%s}' % corral)

    assert reply["success"] is False
    assert reply["error"].startswith("invalid request: corral")
    assert await bus_client.running() == []


async def test_what_is_on_disk_is_listed(joined: Any, bus_client: WorkerClient) -> None:
    listed = await bus_client.ask(subjects.backend_list, b"not json at all")
    assert sorted(listed["backends"], key=lambda one: str(one["name"])) == [
        {"name": name, "is_system": True, "is_meta": False} for name in SHIPPED
    ]


async def test_a_worker_without_backends_says_null(
    worker: Any, on_nats: WorkerConfig, bus_client: WorkerClient
) -> None:
    async with worker(replace(on_nats, system_backends=())) as running:
        await running.clock.until_sleeping(1)
        assert await bus_client.ask(subjects.backend_list) == {"backends": None}


@pytest.mark.parametrize("payload", [b"", b"{bad", b"[]", b"5", b'{"backend":5}', b'{"replica_index":"1"}'])
async def test_an_install_that_cannot_be_read_is_refused(joined: Any, bus_client: WorkerClient, payload: bytes) -> None:
    reply = await bus_client.ask(subjects.backend_install, payload)
    assert set(reply) == {"success", "error"}
    assert reply["success"] is False
    assert reply["error"].startswith("invalid request: ")


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"null", "backend name is empty"),
        (b"{}", "backend name is empty"),
        (b'{"backend":"nope"}', f'no backend found with name "nope"; this node has {", ".join(SHIPPED)}'),
        (b'{"uri":"oci://h/i:1"}', "specifying a name is required for OCI images"),
        (b'{"backend":"x","uri":"docker://h/i:1","name":"x"}', "'docker://h/i:1' has the unknown scheme 'docker'"),
        (b'{"backend":"x","uri":"/no/such/place"}', "there is no /no/such/place on this machine"),
    ],
)
async def test_an_install_that_cannot_be_done_is_an_error(
    joined: Any, bus_client: WorkerClient, payload: bytes, error: str
) -> None:
    reply = await bus_client.ask(subjects.backend_install, payload)
    assert set(reply) == {"success", "error"}
    assert reply["success"] is False
    assert reply["error"].startswith(f"installing backend from gallery: {error}")


async def test_what_ships_with_corral_is_used_where_it_lies(
    joined: Any, bus_client: WorkerClient, installed: Path
) -> None:
    reply = await bus_client.ask(subjects.backend_install, b'{"backend":"echo","force":true}')
    assert "echo came with the system and is used where it lies" in reply["error"]
    assert (await bus_client.ask(subjects.backend_install, b'{"backend":"corral@echo"}'))["success"]
    assert not (installed / "echo").exists()


async def test_one_that_dies_answers_with_its_last_words(
    joined: Any, bus_client: WorkerClient, installed: Path
) -> None:
    write_backend(installed, "dies", shell="echo 'no such library' >&2; exit 1")
    reply = await bus_client.install("dies", "m1")
    assert not reply.success
    assert "no such library" in reply.error


@pytest.mark.parametrize("payload", [b"", b"null", b"{}", b'{"backend":"","force":true}'])
async def test_nothing_said_stops_everything(joined: Any, bus_client: WorkerClient, payload: bytes) -> None:
    await bus_client.install("echo", "m1")
    await bus_client.install("echo")
    assert len(await bus_client.running()) == 2
    await bus_client.stop(payload)
    await bus_client.until_nothing_runs()


@pytest.mark.parametrize("payload", [b"{bad", b"[]", b'"m1"', b'{"backend":["m1"]}'])
async def test_a_stop_that_cannot_be_read_stops_nothing(joined: Any, bus_client: WorkerClient, payload: bytes) -> None:
    await bus_client.install("echo", "m1")
    await bus_client.stop(payload)
    assert await bus_client.running() == ["m1#0"]


async def test_the_end_of_the_worker_answers_whoever_waits_and_leaves_nothing(
    worker: Any, on_nats: WorkerConfig, bus_client: WorkerClient, installed: Path, tmp_path: Path
) -> None:
    with open_pipe(tmp_path / "pipe") as pipe:
        await _stop_while_starting(worker, on_nats, bus_client, installed, pipe)


async def _stop_while_starting(
    worker: Any, on_nats: WorkerConfig, bus_client: WorkerClient, installed: Path, pipe: Pipe
) -> None:
    write_backend(installed, "hangs", shell=f"echo came > {pipe.path}; exec sleep 1000")
    async with worker(on_nats) as running:
        await running.clock.until_sleeping(1)
        await bus_client.install("echo", "m1")
        request = msgspec.json.encode(InstallRequest(backend="hangs", model_id="m2"))
        answer = asyncio.create_task(bus_client.bus.request(subjects.backend_install(NODE), request, timeout=SOON))
        await pipe.line()
        running.stop.set()
        reply = go_json.decode(await answer, InstallReply)
        assert await running.ended() is ExitCode.OK
    assert (reply.success, "stopped before it was ready" in reply.error) == (False, True)


@pytest.mark.parametrize("features", [["node-secret", "replica-exits"], ["node-secret"]])
async def test_a_frontend_that_wants_to_is_told_of_a_death(
    worker: Any, on_nats: WorkerConfig, bus_client: WorkerClient, frontend: Any, answer: Any, features: list[str]
) -> None:
    welcome = {"version": "1", "features": features}
    frontend.will_answer("register", answer(201, {"id": NODE, "corral": welcome}))
    told: asyncio.Queue[Message] = asyncio.Queue()
    await bus_client.bus.subscribe(subjects.REPLICAS_EXITED, told.put)
    async with worker(on_nats) as running:
        await running.clock.until_sleeping(1)
        reply = await bus_client.install("echo", "m1")
        async with Backend(reply.address, token=_secret_of(on_nats)) as client:
            await client.health(timeout=SOON)
        record = next((on_nats.data_path / "processes").iterdir())
        os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
        await bus_client.until_nothing_runs()
        await bus_client.bus.flush()

        if "replica-exits" not in features:
            assert told.empty()
            return
        exited = msgspec.json.decode((await told.get()).data, type=ReplicaExited)
    assert (exited.model_id, exited.address) == ("m1", reply.address)
    assert len(exited.key_hash) == 64
    assert exited.reason == "backend m1#0 ended by itself (signal 9)"


def _secret_of(config: WorkerConfig) -> str:
    return (config.data_path / SECRET_FILE).read_text().strip()


async def test_a_stop_waits_for_calls_that_a_localai_frontend_forgot(
    joined: Any, bus_client: WorkerClient, frontend: Any
) -> None:
    """Told of the drain it drops its replicas, and says that nothing is in flight."""
    reply = await bus_client.install("echo", "m1")
    host, _, port = reply.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await reader.read(1)  # the backend has begun to talk
    await bus_client.bus.publish(subjects.node_stop(NODE), b"null")
    for look in (1, 2, 3):
        await frontend.until_received("models", look)
        await joined.clock.until_sleeping(1)
        assert "deregister" not in frontend.actions
        assert await bus_client.running() == ["m1#0"]
        await joined.pass_time(seconds=1)
    writer.close()
    await writer.wait_closed()
    while "deregister" not in frontend.actions:
        await joined.clock.advance(SECOND)
    assert await joined.ended() is ExitCode.OK


async def test_an_unused_process_of_an_administrator_ends(joined: Any, bus_client: WorkerClient) -> None:
    await bus_client.install("echo")
    await bus_client.install("echo", "m1")
    await joined.clock.until_sleeping(2)
    await joined.clock.advance(joined.config.supervision.unused_after)
    while "echo#0" in await bus_client.running():
        pass
    assert await bus_client.running() == ["m1#0"]


async def test_a_burst_is_answered_to_the_last_message(joined: Any, bus_client: WorkerClient) -> None:
    """Six hundred at once on five subjects, the installs of one process among them; all answers are in and alike."""
    asked = [
        (subjects.backend_install, b'{"backend":"echo","model_id":"m1"}'),
        (subjects.models_running, b"{}"),
        (subjects.backend_list, b"{}"),
        (subjects.model_stop, b'{"process_key":"nobody#0"}'),
        (subjects.backend_install, b"{"),
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [[group.create_task(bus_client.ask(*one)) for _ in range(120)] for one in asked]
    installs = {json.dumps(task.result()) for task in tasks[0]}
    assert len(installs) == 1
    assert json.loads(installs.pop())["success"]
    assert {task.result()["terminated"] for task in tasks[3]} == {True}
    assert {task.result()["success"] for task in tasks[4]} == {False}
    assert await bus_client.running() == ["m1#0"]


async def test_a_nats_server_that_dies_in_the_middle_of_a_start_loses_nothing(
    joined: Any, bus_client: WorkerClient, nats: PlainNats, installed: Path, tmp_path: Path
) -> None:
    """The process starts all the same, whoever asked is answered after the reconnect, and asking again finds it."""
    with open_pipe(tmp_path / "pipe") as pipe:
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        write_serving_backend(installed, "slow", pipe=pipe.path, body=f"say('starting'); open({str(gate)!r}).read()")
        install = asyncio.create_task(bus_client.install("slow", "m1"))
        await pipe.line()
        await nats.kill()
        await joined.until_answers("/readyz", (503, "not ready: not connected to NATS"))
        await nats.start()
        await joined.until_answers("/readyz", (200, "ok"))
        await bus_client.bus.wait_connected()
        await asyncio.to_thread(gate.write_text, "go on")
        first = await install
        assert first.success
        assert (await bus_client.install("slow", "m1")).address == first.address
        assert await bus_client.running() == ["m1#0"]


def backends_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_serving_backend(tmp_path / "sources", "img")


@pytest.mark.parametrize(
    ("doing", "module", "step", "outcome"),
    [
        ("install", directory_source, "copy_tree", ({"success": True}, ["img"], ["m1#0"])),
        ("upgrade", directory_source, "copy_tree", ({"success": True, "stopped_process_keys": ["m1#0"]}, ["img"], [])),
        ("delete", switching, "remove", ({"success": True, "stopped_process_keys": ["m1#0"]}, [], [])),
    ],
)
async def test_a_nats_server_that_dies_in_the_middle_of_a_change_loses_nothing(
    joined: Any,
    bus_client: WorkerClient,
    nats: PlainNats,
    installed: Path,
    source: Path,
    doing: str,
    module: ModuleType,
    step: str,
    outcome: tuple[dict[str, Any], list[str], list[str]],
) -> None:
    """It is done to its end, and whoever asked is answered after the reconnect."""
    request = json.dumps({"backend": "img", "uri": str(source), "model_id": "m1"}).encode()
    if doing != "install":
        assert (await bus_client.ask(subjects.backend_install, request))["success"]
    with held_call(module, step) as holding:
        changing = asyncio.create_task(bus_client.ask(CHANGES[doing], request))
        await holding.begun.wait()
        await nats.kill()
        await joined.until_answers("/readyz", (503, "not ready: not connected to NATS"))
        await nats.start()
        await joined.until_answers("/readyz", (200, "ok"))
        await bus_client.bus.wait_connected()
        holding.go_on.set()
        reply = await changing

    wanted, on_disk, running = outcome
    assert {name: reply.get(name) for name in wanted} == wanted
    assert backends_in(installed) == on_disk
    assert await bus_client.running() == running


async def test_after_a_nats_server_died_in_the_middle_of_a_stop_asking_again_tells_how_it_ended(
    joined: Any, bus_client: WorkerClient, nats: PlainNats
) -> None:
    reply = await bus_client.install("echo", "m1")
    request = json.dumps({"process_key": "m1#0", "expected_address": reply.address}).encode()
    stop = asyncio.create_task(bus_client.ask(subjects.model_stop, request))
    while await bus_client.running():
        pass
    await nats.kill()
    await nats.start()
    await joined.until_answers("/readyz", (200, "ok"))
    await bus_client.bus.wait_connected()
    await end_tasks(stop)  # its answer may have been lost together with the server
    await bus_client.ask(subjects.model_stop, request)  # joins that stop where it still goes on
    assert await bus_client.ask(subjects.model_stop, request) == {
        "matched": False, "freed": False, "terminated": True, "process_key": "m1#0",
    }  # fmt: skip


async def test_a_forgotten_worker_registers_again_with_what_it_runs(
    worker: Any, on_nats: WorkerConfig, bus_client: WorkerClient, frontend: Any, answer: Any
) -> None:
    frontend.will_answer("register", answer(201, {"id": NODE}), answer(201, {"id": "second"}))
    frontend.will_answer("heartbeat", answer(404))
    async with worker(on_nats) as running:
        await running.clock.until_sleeping(1)
        reply = await bus_client.install("echo", "m1")
        await running.pass_time(seconds=10)
        await frontend.until_received("register", 2)
        await running.clock.until_sleeping(1)
        found = await bus_client.bus.request(subjects.models_running(NodeId("second")), b"", timeout=SOON)
        first, second = (request.body for request in frontend.seen("register"))
    assert msgspec.json.decode(found, type=RunningReply).models[0].address == reply.address
    same = {"name", "address", "labels", "capability", "max_replicas_per_model", "corral"}
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
