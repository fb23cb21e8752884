"""A whole worker against a frontend in LocalAI's form, with time in the test's hands."""

import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from corral.oci.manifests import this_platform
from corral.processes.exit_codes import ExitCode
from corral.worker.config import DepartureConfig, WorkerConfig
from corral.worker.membership.addresses import AddressConfig
from corral.worker.membership.identity import SECRET_FILE, NodeIdentity
from tests.kit.loop_time import let_loop_time_pass

AUTHORIZED = {"Authorization": "Bearer tok"}
WITH_BODY = {**AUTHORIZED, "Content-Type": "application/json"}
GOLDEN_ID = "11111111-2222-4333-8444-555555555555"
MEASURED = {"total_ram", "available_ram", "total_disk", "available_disk"}


async def test_the_golden_dialogue(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any, base_port: int
) -> None:
    """Refused once, registered with an id alone, one heartbeat, two looks at requests in flight, good-bye."""
    failure = {"error": {"code": 500, "message": "failed to register node", "type": "node_error"}}
    frontend.will_answer("register", answer(500, failure))
    frontend.will_answer("models", answer(200, [{"in_flight": 2}]), answer(200, [{"in_flight": 2}]))

    async with worker(config) as running:
        await running.pass_time(seconds=1)
        await frontend.until_received("register", 2)
        await running.pass_time(seconds=10)
        await frontend.until_received("heartbeat")
        running.stop.set()
        for look in (1, 2):
            await frontend.until_received("models", look)
            await running.pass_time(seconds=1)
        assert await running.ended() is ExitCode.OK

    assert [(request.method, request.path) for request in frontend.received] == [
        ("POST", "/api/node/register"),
        ("POST", "/api/node/register"),
        ("POST", f"/api/node/{GOLDEN_ID}/heartbeat"),
        ("POST", f"/api/node/{GOLDEN_ID}/drain"),
        ("GET", f"/api/node/{GOLDEN_ID}/models"),
        ("GET", f"/api/node/{GOLDEN_ID}/models"),
        ("GET", f"/api/node/{GOLDEN_ID}/models"),
        ("POST", f"/api/node/{GOLDEN_ID}/deregister"),
    ]
    assert [request.headers for request in frontend.received[:3]] == [WITH_BODY] * 3
    assert all(request.headers["Authorization"] == "Bearer tok" for request in frontend.received)
    assert all(request.body is None for request in frontend.received[3:])
    registration = frontend.received[1].body
    assert registration.keys() >= MEASURED
    assert all(type(registration[name]) is int and registration[name] > 0 for name in MEASURED)
    hello = registration["corral"]
    assert {name: value for name, value in registration.items() if name not in MEASURED | {"corral"}} == {
        "name": "w3",
        "address": f"127.0.0.1:{base_port}",
        "http_address": f"127.0.0.1:{base_port - 1}",
        "token": "tok",
        "total_vram": 0,
        "available_vram": 0,
        "gpu_vendor": "",
        "gpu_compute_capability": "",
        "capability": "default",
        "max_replicas_per_model": 2,
        "vram_budget": "80%",
        "labels": {"node.replica-slots": "2", "tier": "test"},
    }
    assert hello.keys() == {
        "version",
        "features",
        "secret",
        "incarnation",
        "nats_login",
        "heartbeat_seconds",
        "platform",
        "one_disk",
        "memory_pool",
        "confinement",
    }
    assert (hello["platform"], hello["one_disk"]) == (str(this_platform()), True)
    assert hello["secret"] == (config.data_path / SECRET_FILE).read_text().strip()
    assert hello["heartbeat_seconds"] == 10
    assert frontend.received[2].body.keys() == {"available_ram", "total_disk", "available_disk"}


async def test_a_corral_frontend_is_shown_the_nodes_own_secret(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any
) -> None:
    welcome = {"version": "0.1.0", "features": ["node-secret", "heartbeat-status"]}
    frontend.will_answer("register", answer(201, {"id": "n1", "status": "pending", "corral": welcome}))

    async with worker(config) as running:
        await running.pass_time(seconds=10)
        beat = await frontend.until_received("heartbeat")
        running.stop.set()
        assert await running.ended() is ExitCode.OK

    hello = frontend.seen("register")[0].body["corral"]
    own = {"Authorization": f"Bearer {hello['secret']}"}
    assert beat.headers == {**own, "Content-Type": "application/json"}
    assert beat.body["corral"] == {"incarnation": hello["incarnation"]}
    assert all(request.headers["Authorization"] == own["Authorization"] for request in frontend.received[1:])


async def test_a_restarted_worker_is_the_same_node_in_a_new_life(
    worker: Any, config: WorkerConfig, frontend: Any
) -> None:
    hellos = []
    for life in (1, 2):
        async with worker(config) as running:
            await frontend.until_received("register", life)
            running.stop.set()
            assert await running.ended() is ExitCode.OK
        hellos.append(frontend.seen("register")[-1].body["corral"])

    assert hellos[0]["secret"] == hellos[1]["secret"]
    assert hellos[0]["incarnation"] != hellos[1]["incarnation"]


async def test_the_secret_is_on_disk_before_it_is_sent(worker: Any, config: WorkerConfig, frontend: Any) -> None:
    frontend.hold("register")

    async with worker(config):
        sent = await frontend.until_received("register")
        assert (config.data_path / SECRET_FILE).read_text().strip() == sent.body["corral"]["secret"]


async def test_the_http_port_is_open_before_the_first_registration(
    worker: Any, config: WorkerConfig, frontend: Any
) -> None:
    let_go = frontend.hold("register")

    async with worker(config) as running:
        await frontend.until_received("register")
        assert await running.ask("/healthz") == (200, "ok")
        assert await running.ask("/readyz") == (
            503,
            "not ready: not registered with a frontend, not connected to NATS",
        )
        let_go()
        await running.until_answers("/readyz", (503, "not ready: not connected to NATS"))


@pytest.mark.parametrize("status", [404, 401])
async def test_a_node_that_was_forgotten_registers_again(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any, status: int
) -> None:
    frontend.will_answer("heartbeat", answer(status, {"error": {"code": status, "message": "node not found"}}))

    async with worker(config) as running:
        await running.pass_time(seconds=10)
        await frontend.until_received("register", 2)
        frontend.usually_answers("register", answer(201, {"id": "another-id"}))
        await running.pass_time(seconds=10)
        await frontend.until_received("heartbeat", 2)
        running.stop.set()
        assert await running.ended() is ExitCode.OK

    asked = ["models"] if status == 404 else []  # LocalAI says it without its database, too
    assert frontend.actions == [
        "register", "heartbeat", *asked, "register", "heartbeat", "drain", "models", "deregister",
    ]  # fmt: skip


async def test_a_localai_frontend_without_its_database_is_not_registered_with_again(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any
) -> None:
    gone = answer(404, {"error": {"code": 404, "message": "node not found", "type": "node_error"}})
    failed = answer(500, {"error": {"code": 500, "message": "failed to list models", "type": "node_error"}})
    frontend.will_answer("heartbeat", gone, gone)
    frontend.will_answer("models", failed, failed)

    async with worker(config) as running:
        for number in (1, 2, 3):
            await running.pass_time(seconds=10)
            await frontend.until_received("heartbeat", number)
        running.stop.set()
        assert await running.ended() is ExitCode.OK

    assert frontend.actions.count("register") == 1, "it would forget which models are loaded"


async def test_a_node_that_counts_as_gone_registers_again(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any
) -> None:
    frontend.will_answer("heartbeat", answer(200, {"corral": {"status": "offline", "deregistered": True}}))

    async with worker(config) as running:
        await running.pass_time(seconds=10)
        await frontend.until_received("register", 2)


async def test_a_new_id_is_used_and_remembered(worker: Any, config: WorkerConfig, frontend: Any, answer: Any) -> None:
    frontend.will_answer("register", answer(201, {"id": "first"}), answer(201, {"id": "second"}))
    frontend.will_answer("heartbeat", answer(404))

    async with worker(config) as running:
        await running.pass_time(seconds=10)
        await running.pass_time(seconds=10)
        beat = await frontend.until_received("heartbeat", 2)

    assert beat.path == "/api/node/second/heartbeat"
    remembered = NodeIdentity(config.data_path).remembered()
    assert remembered is not None
    assert (remembered.id, remembered.name) == ("second", "w3")


async def test_a_refused_later_registration_does_not_end_a_worker_that_serves(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any
) -> None:
    frontend.will_answer("heartbeat", answer(401))

    async with worker(config) as running:
        await frontend.until_received("register")
        await running.clock.until_sleeping(1)
        frontend.usually_answers("register", answer(401, {"error": "invalid registration token"}))
        await running.pass_time(seconds=10)
        for attempt in range(2, 12):
            await frontend.until_received("register", attempt)
            await running.pass_time(seconds=1)
        running.stop.set()
        assert await running.ended() is ExitCode.OK


async def test_a_wrong_token_ends_the_worker_with_a_sentence(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    frontend.usually_answers("register", answer(401, {"error": "invalid registration token"}))
    hasty = replace(config, frontend=replace(config.frontend, token_patience=timedelta(seconds=4)))

    async with worker(hasty) as running:
        for attempt in range(1, 5):
            await frontend.until_received("register", attempt)
            await running.pass_time(seconds=1)
        assert await running.ended() is ExitCode.DENIED

    assert len(frontend.received) == 5
    last = caplog.records[-1].getMessage()
    assert "invalid registration token" in last
    assert "LOCALAI_REGISTRATION_TOKEN" in last


@pytest.mark.parametrize("status", [400, 302])
async def test_a_final_refusal_ends_the_worker_at_once(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any, status: int
) -> None:
    frontend.usually_answers("register", answer(status, {"error": {"message": "name is required"}}))

    async with worker(config) as running:
        assert await running.ended() is ExitCode.UNAVAILABLE
    assert len(frontend.received) == 1


async def test_a_taken_port_ends_the_worker_before_it_registers(
    worker: Any, config: WorkerConfig, frontend: Any, base_port: int
) -> None:
    with socket.create_server(("127.0.0.1", base_port - 1)):
        async with worker(config) as running:
            assert await running.ended() is ExitCode.IN_USE

    assert frontend.received == []
    assert not config.data_path.exists(), "a refused start leaves nothing behind"


async def test_a_data_directory_in_use_ends_the_second_worker(
    worker: Any, config: WorkerConfig, frontend: Any, base_port: int
) -> None:
    async with worker(config) as first:
        await frontend.until_received("register")
        async with worker(config) as second:
            assert await second.ended() is ExitCode.IN_USE
        assert await first.ask("/healthz") == (200, "ok")


async def test_a_data_directory_that_cannot_be_made_ends_the_worker(worker: Any, config: WorkerConfig) -> None:
    config.data_path.write_text("a file")

    async with worker(config) as running:
        assert await running.ended() is ExitCode.CANNOT_CREATE


async def test_a_backends_directory_that_cannot_be_made_ends_the_worker(
    worker: Any, config: WorkerConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("a file")
    async with worker(replace(config, backends_path=tmp_path / "file" / "backends")) as running:
        assert await running.ended() is ExitCode.CANNOT_CREATE
    assert "backends cannot be installed into" in caplog.text


async def test_an_address_without_sense_ends_the_worker(worker: Any, config: WorkerConfig) -> None:
    nonsense = replace(config, addresses=replace(config.addresses, http_addr="nowhere"))

    async with worker(nonsense) as running:
        assert await running.ended() is ExitCode.USAGE


async def test_a_models_directory_beside_the_private_one_called_data_ends_the_worker(
    worker: Any, config: WorkerConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file server serves `data` beside the models, and would hand out the node's secret."""
    careless = replace(config, data_path=tmp_path / "data")
    async with worker(careless) as running:
        assert await running.ended() is ExitCode.USAGE

    assert "models: frontends would be given the files of" in caplog.text
    assert "the setting data" in caplog.text
    assert not careless.data_path.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.3"])
async def test_a_worker_that_is_known_by_a_loopback_address_listens_there_only(
    worker: Any, config: WorkerConfig, frontend: Any, base_port: int, host: str
) -> None:
    told = AddressConfig(addr=f"{host}:{base_port}")
    async with worker(replace(config, addresses=told)), aiohttp.ClientSession() as session:
        await frontend.until_received("register")
        async with session.get(f"http://{host}:{base_port - 1}/healthz") as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://127.0.0.2:{base_port - 1}/healthz")


async def test_stopping_while_the_frontend_is_away_ends_at_once(
    worker: Any, config: WorkerConfig, frontend: Any
) -> None:
    async with worker(config) as running:
        await running.clock.until_sleeping(1)
        await frontend.stop()
        running.stop.set()
        assert await running.ended() is ExitCode.OK

    assert frontend.actions == ["register"]


async def test_stopping_before_the_first_registration_ends_at_once(
    worker: Any, config: WorkerConfig, frontend: Any
) -> None:
    await frontend.stop()

    async with worker(config) as running:
        await running.clock.until_sleeping(1)
        running.stop.set()
        assert await running.ended() is ExitCode.OK


async def test_stopping_while_the_frontend_hangs_is_bounded(worker: Any, config: WorkerConfig, frontend: Any) -> None:
    for action in ("drain", "deregister"):
        frontend.hold(action)
    bounded = replace(config, departure=DepartureConfig(call_timeout=timedelta(seconds=10)))

    async with worker(bounded) as running:
        await running.clock.until_sleeping(1)
        running.stop.set()
        for action in ("drain", "deregister"):
            await frontend.until_received(action)
            let_loop_time_pass(bounded.departure.call_timeout)
        assert await running.ended() is ExitCode.OK

    assert frontend.actions == ["register", "drain", "deregister"]


async def test_a_second_signal_does_not_wait_for_requests_in_flight(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any
) -> None:
    frontend.usually_answers("models", answer(200, [{"in_flight": 9}]))

    async with worker(config) as running:
        await running.clock.until_sleeping(1)
        running.stop.set()
        await frontend.until_received("models")
        running.hurry.set()
        assert await running.ended() is ExitCode.OK

    assert frontend.actions[-1] == "deregister"


async def test_two_frontends_are_one_cluster(
    worker: Any, config: WorkerConfig, frontend: Any, second_frontend: Any
) -> None:
    both = replace(config, frontend=replace(config.frontend, urls=(frontend.url, second_frontend.url)))

    async with worker(both) as running:
        await frontend.until_received("register")
        await running.clock.until_sleeping(1)
        await frontend.stop()
        await running.pass_time(seconds=10)
        await second_frontend.until_received("heartbeat")
        running.stop.set()
        assert await running.ended() is ExitCode.OK

    assert second_frontend.actions == ["heartbeat", "drain", "models", "deregister"]


async def test_a_localai_fleet_without_a_token_can_send_files(
    worker: Any, config: WorkerConfig, frontend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    open_fleet = replace(config, frontend=replace(config.frontend, registration_token=""))
    url = f"http://{config.addresses.http_addr}/v1/files/models/m/a.gguf"
    async with worker(open_fleet) as running, aiohttp.ClientSession() as session:
        await running.clock.until_sleeping(1)
        async with session.put(url, data=b"weights") as answer:
            assert answer.status == 200
    assert "Authorization" not in frontend.seen("register")[0].headers
    assert "everybody who reaches this worker" in caplog.text


@pytest.mark.parametrize(
    ("welcome", "status"),
    [
        (None, 404),
        ({"version": "0.1.0", "features": ["node-secret"]}, 404),
        ({"version": "0.1.0", "features": ["node-secret", "file-fetches"]}, 400),
    ],
)
async def test_files_are_fetched_only_for_a_frontend_that_has_workers_do_so(
    worker: Any, config: WorkerConfig, frontend: Any, answer: Any, welcome: dict[str, Any] | None, status: int
) -> None:
    """With a LocalAI frontend, the worker may be open, and everybody could have it connect anywhere."""
    registered = {"id": "n1", "status": "healthy"} | ({"corral": welcome} if welcome else {})
    frontend.usually_answers("register", answer(201, registered))
    open_fleet = replace(config, frontend=replace(config.frontend, registration_token=""))
    url = f"http://{config.addresses.http_addr}/v1/corral/fetches"
    async with worker(open_fleet) as running, aiohttp.ClientSession() as session:
        await running.clock.until_sleeping(1)
        secret = frontend.seen("register")[0].body["corral"]["secret"]
        async with session.post(url, data=b"{}", headers={"Authorization": f"Bearer {secret}"}) as got:
            assert got.status == status
