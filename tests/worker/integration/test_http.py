"""The worker's own HTTP server, over real connections."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from corral.base.errors import AddressInUse, SettingInvalid
from corral.base.ids import NodeId
from corral.base.tasks import start_task
from corral.wire.registration import Feature
from corral.worker.callers import CallerLimits
from corral.worker.http import HttpServer, readiness_problems
from corral.worker.membership.addresses import HostPort
from corral.worker.membership.registration import AcceptedRegistration, Presence
from tests.kit.ports import lasting_port
from tests.kit.waiting import WAIT_TIMEOUT

LOOPBACK = HostPort("127.0.0.1", 0)


class Link:
    connected = False
    refused: frozenset[str] = frozenset()


class Worker:
    """A server and what its readiness depends on."""

    def __init__(
        self, secret: str, *, is_open: Callable[[], bool] = lambda: False, limits: CallerLimits | None = None
    ) -> None:
        self.presence = Presence()
        self.link = Link()
        self.server = HttpServer(
            address=LOOPBACK,
            readiness=lambda: readiness_problems(self.presence, self.link),
            bearers=lambda: (secret, self.presence.bearer),
            is_open=is_open,
            limits=limits,
        )

    def join(self) -> None:
        self.presence.member = AcceptedRegistration(node_id=NodeId("n1"), bearer="b")


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker("own-secret")
    async with worker.server:
        yield worker


@pytest.fixture
async def ask(worker: Worker) -> AsyncIterator[Any]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{worker.server.port}") as session:

        async def ask(method: str, path: str, **headers: str) -> tuple[int, str]:
            async with session.request(method, path, headers=headers, data=b"x" if method == "PUT" else None) as answer:
                assert answer.content_type == "text/plain"
                return answer.status, await answer.text()

        yield ask


async def test_a_living_worker_is_healthy_whatever_else_is_wrong(ask: Any) -> None:
    assert await ask("GET", "/healthz") == (200, "ok")
    assert await ask("HEAD", "/healthz") == (200, "")


@pytest.mark.parametrize(
    ("registered", "connected", "expected"),
    [
        (False, False, (503, "not ready: not registered with a frontend, not connected to NATS")),
        (True, False, (503, "not ready: not connected to NATS")),
        (False, True, (503, "not ready: not registered with a frontend")),
        (True, True, (200, "ok")),
    ],
)
async def test_a_worker_is_ready_when_it_is_registered_and_connected(
    worker: Worker, ask: Any, registered: bool, connected: bool, expected: tuple[int, str]
) -> None:
    if registered:
        worker.join()
    worker.link.connected = connected

    assert await ask("GET", "/readyz") == expected
    assert await ask("HEAD", "/readyz") == (expected[0], "")


@pytest.mark.parametrize(("status", "expected"), [("pending", 200), ("healthy", 503)])
async def test_a_worker_that_waits_for_its_approval_is_ready_without_nats(
    worker: Worker, ask: Any, status: str, expected: int
) -> None:
    """A person is awaited, who alone can give it a user of NATS."""
    worker.presence.member = AcceptedRegistration(
        node_id=NodeId("n1"), bearer="b", status=status, is_corral=True, features=frozenset({Feature.NATS_USER})
    )
    assert (await ask("GET", "/readyz"))[0] == expected


async def test_a_worker_that_leaves_is_not_ready(worker: Worker, ask: Any) -> None:
    worker.join()
    worker.link.connected = worker.presence.is_leaving = True

    assert await ask("GET", "/readyz") == (503, "not ready: shutting down")


@pytest.mark.parametrize("path", ["/v1/files/models/a", "/v1/backend-logs", "/v1/"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
async def test_nothing_under_v1_answers_without_a_token(ask: Any, method: str, path: str) -> None:
    assert await ask(method, path) == (401, "" if method == "HEAD" else "unauthorized\n")


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic own-secret", "own-secret", "Bearer own-secre", "Bearer ünicode"],
)
async def test_a_wrong_token_is_refused(ask: Any, authorization: str) -> None:
    assert await ask("GET", "/v1/files/models/a", Authorization=authorization) == (401, "unauthorized\n")


async def test_the_registration_token_opens_v1_only_while_a_localai_frontend_has_the_worker(
    worker: Worker, ask: Any
) -> None:
    """A Corral frontend shows the node's own secret; everybody who may register knows the token."""

    async def statuses() -> list[int]:
        bearers = ("own-secret", "tok")
        return [(await ask("GET", "/v1/files/models/a", Authorization=f"Bearer {bearer}"))[0] for bearer in bearers]

    assert await statuses() == [404, 401]
    worker.presence.member = AcceptedRegistration(node_id=NodeId("n1"), bearer="own-secret", is_corral=True)
    assert await statuses() == [404, 401]
    worker.presence.member = AcceptedRegistration(node_id=NodeId("n1"), bearer="tok")
    assert await statuses() == [404, 404]


async def test_a_body_without_a_token_is_refused_before_it_is_read(worker: Worker) -> None:
    """Many megabytes could be sent before; what one socket holds is sent without anybody reading it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.server.port)
    head = b"PUT /v1/files/models/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"
    writer.write(head)
    sent, piece = 0, bytes(64 * 1024)
    answer = start_task(reader.readline(), name="answer")
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
            while sent < 100_000_000:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)

    assert (await answer).split()[1] == b"401"
    assert sent < 16_000_000
    writer.close()


async def test_a_worker_without_a_registration_token_is_not_open() -> None:
    worker = Worker("own-secret")
    async with worker.server:
        line = await first_line(worker, b"GET /v1/files/a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \r\n\r\n")

    assert line.split()[1] == b"401"


async def test_a_fleet_without_a_token_is_open_while_it_lasts() -> None:
    worker = Worker("own-secret", is_open=lambda: worker.presence.is_with_localai)
    asked = b"GET /v1/files/a HTTP/1.1\r\nHost: a\r\n\r\n"
    async with worker.server:
        assert (await first_line(worker, asked)).split()[1] == b"401"
        worker.join()
        assert (await first_line(worker, asked)).split()[1] == b"404"
        worker.presence.member = AcceptedRegistration(node_id=NodeId("n1"), bearer="b", is_corral=True)
        assert (await first_line(worker, asked)).split()[1] == b"401"


async def test_a_server_on_every_ipv6_address_is_on_every_ipv4_address_too() -> None:
    """As Go's are, for whom such an address was written."""
    everywhere = HostPort("::", lasting_port())
    server = HttpServer(address=everywhere, readiness=list, bearers=tuple)
    url = f"http://127.0.0.1:{everywhere.port}/healthz"
    async with server, aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200


async def test_everything_else_is_not_there(ask: Any) -> None:
    assert (await ask("GET", "/"))[0] == 404
    assert (await ask("GET", "/metrics"))[0] == 404
    assert (await ask("POST", "/healthz"))[0] == 405


async def test_a_taken_port_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = HostPort("127.0.0.1", other.getsockname()[1])
        server = HttpServer(address=address, readiness=list, bearers=tuple)

        with pytest.raises(AddressInUse, match=f"{address}.*LOCALAI_HTTP_ADDR"):
            await server.__aenter__()


async def test_an_address_of_another_machine_is_named_with_its_setting() -> None:
    server = HttpServer(address=HostPort("192.0.2.1", 50050), readiness=list, bearers=tuple)

    with pytest.raises(SettingInvalid, match=r"http_address: cannot listen on 192\.0\.2\.1:50050"):
        await server.__aenter__()


async def test_a_port_is_free_again_after_the_end() -> None:
    worker = Worker("own-secret")
    async with worker.server:
        port = worker.server.port
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(("127.0.0.1", port))
    await worker.server.close()

    socket.create_server(("127.0.0.1", port)).close()


async def test_an_idle_connection_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.worker.http.CLOSE_SECONDS", 1000)
    worker = Worker("own-secret")
    async with worker.server:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"ok")
        async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
            await worker.server.close()
            assert await reader.read() == b""
    writer.close()


async def first_line(worker: Worker, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.server.port)
    writer.write(request)
    line = await reader.readline()
    writer.close()
    return line


@pytest.mark.parametrize(
    "path", [b"/v1/../healthz", b"/v1/%2e%2e/healthz", b"/%76%31/files/a", b"/v1/files/../../healthz"]
)
async def test_no_spelling_of_a_path_gets_around_the_token(worker: Worker, path: bytes) -> None:
    line = await first_line(worker, b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")

    assert line.split()[1] == b"401"


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01 hello\r\n\r\n",
    ],
)
async def test_nonsense_is_refused_and_leaves_no_trace_in_the_logs(
    worker: Worker, request_head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    line = await first_line(worker, request_head)

    assert line.split()[1] == b"400"
    assert caplog.records == []


HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Slow: "
WITH_TOKEN = b"GET /v1/files/a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer own-secret\r\nContent-Length: 10\r\n\r\n"
PATIENT = CallerLimits(opening_seconds=3600)


async def connected(worker: Worker, said: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.server.port)
    writer.write(said)
    return reader, writer


async def closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


async def refused(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
        assert b" 404 Not Found" in await reader.readuntil(b"page not found\n")


@pytest.mark.parametrize("said", [b"", HALF_A_HEAD])
async def test_a_head_that_does_not_end_has_a_deadline(said: bytes) -> None:
    worker = Worker("own-secret", limits=CallerLimits(opening_seconds=0.05))
    async with worker.server:
        reader, writer = await connected(worker, said)
        await closed(reader)
        writer.close()


async def test_no_byte_puts_off_the_deadline_of_a_head() -> None:
    worker = Worker("own-secret", limits=CallerLimits(opening_seconds=0.3))
    async with worker.server:
        reader, writer = await connected(worker, HALF_A_HEAD)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():  # it ends when the server closes, and fails by the suite's own time limit
                writer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.02)
        writer.close()


async def test_a_complete_head_ends_the_deadline() -> None:
    worker = Worker("own-secret", limits=CallerLimits(opening_seconds=0.05))
    async with worker.server:
        reader, writer = await connected(worker, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"ok")
        other, other_writer = await connected(worker, b"")
        await closed(other)  # its deadline was later
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"ok")
        writer.close()
        other_writer.close()


@pytest.mark.parametrize("bound", [{"most_opening": 3}, {"most_from_one": 3}])
async def test_the_oldest_caller_without_a_token_makes_room(bound: dict[str, int]) -> None:
    worker = Worker("own-secret", limits=msgspec.structs.replace(PATIENT, **bound))
    async with worker.server:
        health, health_writer = await connected(worker, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        await health.readuntil(b"ok")
        callers = [await connected(worker, HALF_A_HEAD) for _ in range(5)]
        for reader, _ in callers[:3]:
            await closed(reader)
        assert not health.at_eof(), "who said something goes after those who said nothing"
        for _, writer in [*callers, (health, health_writer)]:
            writer.close()


async def test_strangers_end_no_connection_that_has_shown_a_token() -> None:
    worker = Worker("own-secret", limits=msgspec.structs.replace(PATIENT, most_opening=3))
    async with worker.server:
        reader, writer = await connected(worker, WITH_TOKEN)
        await refused(reader)
        strangers = [await connected(worker, HALF_A_HEAD) for _ in range(10)]
        for stranger, _ in strangers[:7]:
            await closed(stranger)
        writer.write(b"0123456789" + WITH_TOKEN + b"0123456789")
        await refused(reader)
        for _, stranger_writer in strangers:
            stranger_writer.close()
        writer.close()
