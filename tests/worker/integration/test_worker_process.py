"""Real worker processes: signals, sudden death, exit codes, memory."""

import asyncio
import json
import resource
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from corral.processes.exit_codes import ExitCode
from corral.worker.membership.identity import SECRET_FILE
from tests.kit.plain_nats import PlainNats

SCRIPT = Path(__file__).with_name("worker_process.py")
IDLE_MEMORY_GOAL = 75 * 10**6


@pytest.fixture
def values(frontend: Any, base_port: int, tmp_path: Path) -> dict[str, str]:
    return {
        "frontend": frontend.url,
        "token": "tok",
        "nats": "nats://127.0.0.1:1",
        "data": str(tmp_path / "data"),
        "addr": f"127.0.0.1:{base_port}",
        "http_addr": f"127.0.0.1:{base_port - 1}",
    }


@asynccontextmanager
async def started(values: dict[str, str]) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), json.dumps(values), stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def started_with(values: dict[str, str], soft: int, hard: int) -> AsyncIterator[Process]:
    """A worker whose process may open only so many files and sockets."""
    limit = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); "
    run = f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", limit + run, json.dumps(values), stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def outcome(process: Process) -> tuple[int | None, list[dict[str, Any]]]:
    """Exit code and log lines, once it has ended."""
    _, errors = await process.communicate()
    return process.returncode, [json.loads(line) for line in errors.decode().splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_deregisters_and_ends_well(values: Any, frontend: Any, number: signal.Signals) -> None:
    async with started(values) as process:
        await frontend.until_received("heartbeat", 2)
        process.send_signal(number)
        code, lines = await outcome(process)

    assert code == ExitCode.OK
    assert frontend.actions[-3:] == ["drain", "models", "deregister"]
    assert lines[-1]["event"] == "worker.ended"
    assert "tok" not in {value for line in lines for value in line.values()}


async def test_a_second_signal_hurries(values: Any, frontend: Any, answer: Any) -> None:
    frontend.usually_answers("models", answer(200, [{"in_flight": 1}]))

    async with started(values) as process:
        await frontend.until_received("register")
        await frontend.until_received("heartbeat")
        process.terminate()
        await frontend.until_received("models")
        process.terminate()
        code, _ = await outcome(process)

    assert code == ExitCode.OK
    assert frontend.actions[-1] == "deregister"


async def test_a_killed_worker_comes_back_as_the_same_node(values: Any, frontend: Any) -> None:
    async with started(values) as process:
        await frontend.until_received("heartbeat")
        process.kill()
        code, _ = await outcome(process)
    assert code == -signal.SIGKILL

    async with started(values) as process:
        await frontend.until_received("register", 2)
        beats = len(frontend.seen("heartbeat"))
        await frontend.until_received("heartbeat", beats + 1)

    first, second = (request.body["corral"] for request in frontend.seen("register"))
    assert first["secret"] == second["secret"]
    assert first["incarnation"] != second["incarnation"]


async def test_a_frontend_that_is_gone_does_not_delay_the_end(values: Any, frontend: Any) -> None:
    async with started(values) as process:
        await frontend.until_received("heartbeat")
        await frontend.stop()
        async with asyncio.timeout(30):  # half of what a departure may take
            process.terminate()
            code, _ = await outcome(process)

    assert code == ExitCode.OK


async def test_a_signal_before_the_first_registration_ends_well(values: Any, frontend: Any) -> None:
    frontend.hold("register")
    async with started(values) as process:
        await frontend.until_received("register")
        process.terminate()
        code, _ = await outcome(process)

    assert code == ExitCode.OK


async def test_a_wrong_token_ends_with_its_own_code(values: Any, frontend: Any, answer: Any) -> None:
    frontend.usually_answers("register", answer(401, {"error": "invalid registration token"}))

    async with started(values) as process:
        code, lines = await outcome(process)

    assert code == ExitCode.DENIED
    assert "LOCALAI_REGISTRATION_TOKEN" in lines[-1]["message"]


async def test_a_final_refusal_ends_with_its_own_code(values: Any, frontend: Any, answer: Any) -> None:
    frontend.usually_answers("register", answer(400, {"error": {"message": "name is required"}}))

    async with started(values) as process:
        code, lines = await outcome(process)

    assert code == ExitCode.UNAVAILABLE
    assert "name is required" in lines[-1]["message"]


async def test_a_taken_port_ends_with_its_own_code(values: Any, frontend: Any, base_port: int) -> None:
    with socket.create_server(("127.0.0.1", base_port - 1)):
        async with started(values) as process:
            code, lines = await outcome(process)

    assert code == ExitCode.IN_USE
    assert values["http_addr"] in lines[-1]["message"]
    assert frontend.received == []


@pytest.fixture
def open_secret(values: dict[str, str]) -> None:
    path = Path(values["data"]) / SECRET_FILE
    path.parent.mkdir()
    path.write_text("x" * 43)
    path.chmod(0o644)


@pytest.mark.usefixtures("open_secret")
async def test_a_secret_that_others_may_read_ends_with_its_own_code(values: Any, frontend: Any) -> None:
    async with started(values) as process:
        code, lines = await outcome(process)

    assert code == ExitCode.CANNOT_CREATE
    assert "chmod 600" in lines[-1]["message"]


async def test_an_idle_worker_stays_below_its_memory_goal(values: Any, frontend: Any, nats: PlainNats) -> None:
    async with started({**values, "nats": nats.worker_url}) as process:
        await frontend.until_received("heartbeat", 5)
        url = f"http://{values['http_addr']}/readyz"
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            answer = await stack.enter_async_context(session.get(url))
            assert answer.status == 200
        assert psutil.Process(process.pid).memory_info().rss < IDLE_MEMORY_GOAL


async def test_a_worker_loads_nothing_that_only_frontends_need() -> None:
    heavy = (
        "sqlalchemy",
        "alembic",
        "starlette",
        "uvicorn",
        "rich",
        "click",
        "asyncpg",
        "aiosqlite",
        "google.protobuf",
        "hpack",
        "cryptography",
        "nacl",
    )
    code = f"import sys, corral.processes.worker; print([name for name in {heavy} if name in sys.modules])"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)

    output, _ = await process.communicate()

    assert output.strip() == b"[]"


async def test_a_worker_raises_its_limit_of_open_files(values: Any, frontend: Any) -> None:
    async with started_with(values, 256, 4096) as process:
        await frontend.until_received("heartbeat")
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] == 4096


async def test_strangers_leave_a_worker_files_to_open(values: Any, frontend: Any) -> None:
    port = int(values["http_addr"].rpartition(":")[2])
    async with started_with(values, 256, 256) as process, AsyncExitStack() as stack:
        await frontend.until_received("heartbeat")
        for _ in range(300):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            stranger.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        assert psutil.Process(process.pid).num_fds() < 192
