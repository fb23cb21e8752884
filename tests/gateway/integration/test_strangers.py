"""What callers without a valid key cannot do to a gateway: hold its memory, its connections or its time."""

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack
from ipaddress import ip_network

import msgspec
import pytest

from corral.base.memory import FreedMemory
from corral.gateway.config import Limits, TimeOuts
from corral.gateway.relay import ClientConnection
from corral.wire.keys import hash_secret
from corral.wire.view import KeyEntry
from tests.kit.gateway import GatewayWorld, RawClient, chat, request, world


@pytest.mark.parametrize("is_whole", [False, True], ids=["broken off", "answered"])
async def test_a_closed_connection_leaves_no_cycle_behind(gateway: GatewayWorld, is_whole: bool) -> None:
    """Bodies must be freed by reference counting: the process lets the garbage collector run rarely."""
    clients: list[weakref.ref[object]] = []
    gc.collect()
    gc.disable()
    try:
        async with gateway.client() as client:
            await client.send(request(chat(text="x" * 200_000))[: None if is_whole else -5])
            if is_whole:
                await client.read_answer()
            else:
                await gateway.until(lambda: gateway.gateway.services.bodies.held > 100_000)
            connected: list[ClientConnection] = list(gateway.gateway.server._clients)
            clients = [weakref.ref(one) for one in connected] + [weakref.ref(one._reader) for one in connected]
            del connected
        assert len(clients) == 2
        await gateway.until(lambda: all(client() is None for client in clients))
    finally:
        gc.enable()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_pages_that_control_cannot_give_are_refused_with_the_headers_of_pages(
    gateway: GatewayWorld, version: str, method: str
) -> None:
    await gateway.control.stop()
    data = request(method=method, path="/", key=None, version=version)
    answer = await gateway.ask(data, is_head=method == "HEAD")
    assert answer.status == 503
    assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_empty_lines_do_not_move_the_deadline_of_a_head() -> None:
    async with world(time_outs=TimeOuts(head=0.3, linger=0.1)) as strict, strict.client() as client:
        sending = asyncio.ensure_future(_drip(client, b"\r\n"))
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        sending.cancel()
        await asyncio.wait([sending])


async def test_empty_lines_between_requests_have_the_deadline_of_a_head() -> None:
    async with world(time_outs=TimeOuts(head=0.3, linger=0.1)) as strict, strict.client() as client:
        await client.send(request(method="GET", path="/healthz", key=None))
        assert (await client.read_answer()).status == 200
        sending = asyncio.ensure_future(_drip(client, b"\r\n"))
        assert (await client.read_answer()).status == 408
        sending.cancel()
        await asyncio.wait([sending])


async def _drip(client: RawClient, piece: bytes) -> None:
    while True:
        await client.send(piece)


async def test_a_body_that_comes_too_slowly_is_refused_before_its_deadline() -> None:
    time_outs = TimeOuts(body=600, body_grace=0.1, linger=0.1)
    async with world(time_outs=time_outs, limits=Limits(body_speed=10_000_000)) as strict, strict.client() as client:
        await client.send(request(chat(text="x" * 100_000))[:-5])
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert strict.gateway.services.tally.time_outs["body"] == 1


async def test_a_body_that_comes_slowly_but_steadily_is_taken() -> None:
    patient = world(time_outs=TimeOuts(body_grace=0.05), limits=Limits(body_speed=1))
    async with patient as opened, opened.client() as client:
        data = request(chat(text="x" * 1000))
        await client.send(*(data[at : at + 100] for at in range(0, len(data), 100)))
        assert (await client.read_answer()).status == 200


async def test_at_the_limit_the_oldest_connection_without_a_key_is_closed() -> None:
    async with world(limits=Limits(connections=3)) as small, small.client() as known, small.client() as idle:
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200
        await small.until(lambda: small.gateway.server.client_count == 2)
        async with small.client() as other, small.client() as newcomer:
            await newcomer.send(request(chat()))
            assert (await newcomer.read_answer()).status == 200
            assert await idle.until_closed() == b""
            await other.send(request(chat()))
            assert (await other.read_answer()).status == 200
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200


async def test_who_holds_many_connections_keeps_nobody_out_from_the_same_address() -> None:
    async with world(limits=Limits(source_connections=2)) as small, AsyncExitStack() as stack:
        known = await stack.enter_async_context(small.client())
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200
        idle = [await stack.enter_async_context(small.client()) for _ in range(5)]
        await small.until(lambda: small.gateway.server.client_count == 3)
        assert [await client.until_closed() for client in idle[:3]] == [b""] * 3
        assert small.gateway.services.tally.refusals["connection_evicted"] == 3
        for client in (known, *idle[3:]):  # the newest are there, and whoever had shown a key
            await client.send(request(chat()))
            assert (await client.read_answer()).status == 200


async def test_behind_a_trusted_proxy_the_forwarded_address_is_counted() -> None:
    proxy = ip_network("127.0.0.0/8")
    async with world(limits=Limits(source_connections=1), trusted_proxies=(proxy,)) as behind:
        behind.control.hangs_at = "/docs"
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(behind.client()) for _ in range(4)]
            for client, address in zip(clients, (b"192.0.2.1", b"192.0.2.2", b"192.0.2.1", b""), strict=True):
                named = b"X-Forwarded-For: 203.0.113.9, %b, 127.0.0.1\r\n" % address if address else b""
                await client.send(request(method="GET", path="/docs", key=None, head=named))
                await behind.until(lambda: bool(behind.control.passed))
                seen = behind.control.passed.pop()[2]
                assert seen["X-Forwarded-For"] == (address.decode() or "127.0.0.1")
            assert await clients[0].until_closed() == b""  # the second request of 192.0.2.1 took its place
            behind.control.hold.set()
            assert [(await client.read_answer()).status for client in clients[1:]] == [200] * 3
            await clients[1].send(request(chat(), head=b"X-Forwarded-Proto: https\r\n"))
            assert (await clients[1].read_answer()).status == 200
            assert ("X-Forwarded-Proto", "https") in behind.engine.requests[-1].headers


async def test_behind_a_trusted_proxy_refusals_close_no_connection() -> None:
    """They are counted for the forwarded address, and others share the connection."""
    async with world(trusted_proxies=(ip_network("127.0.0.0/8"),)) as behind, behind.client() as proxy:
        spent = behind.gateway.server.senders.refusals._spent
        for number in range(400):
            named = b"X-Forwarded-For: 192.0.2.%d\r\n" % (number % 2)
            await proxy.send(request(method="GET", path="/v1/models", key="wrong", head=named))
            assert (await proxy.read_answer()).status == 401
        assert sorted(spent) == ["192.0.2.0", "192.0.2.1"]
        await proxy.send(request(chat()))
        assert (await proxy.read_answer()).status == 200


async def test_nobody_else_is_believed_about_addresses(gateway: GatewayWorld) -> None:
    await gateway.ask(request(method="GET", path="/docs", key=None, head=b"X-Forwarded-For: 192.0.2.1\r\n"))
    assert gateway.control.passed[0][2]["X-Forwarded-For"] == "127.0.0.1"


LOCALAI = {"error": {"code": 401, "message": "An authentication key is required", "type": "invalid_request_error"}}


@pytest.mark.parametrize("key", [None, "wrong", "old"])
@pytest.mark.parametrize("path", ["/v1/files", "/api/nodes", "/api/v1/keys", "/nowhere", "/"])
async def test_a_body_without_a_valid_key_is_refused_before_it_is_read(
    gateway: GatewayWorld, path: str, key: str | None
) -> None:
    old = KeyEntry(hash=hash_secret("old"), scopes=("admin",), expires_at=1.0)
    gateway.control.change(keys={old.hash: old})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
    async with gateway.client() as client:
        await client.send(request(None, path=path, key=key, head=b"Content-Length: 32000000\r\n"))
        answer = await client.read_answer()
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    assert answer.headers["www-authenticate"] == "Bearer"
    document = msgspec.json.decode(answer.body)
    if path.startswith("/v1/"):
        assert set(document["error"]) == {"message", "type", "param", "code"}
        assert document["error"]["code"] in ("missing_api_key", "invalid_api_key", "expired_api_key")
    else:
        assert document == LOCALAI
    assert gateway.gateway.services.bodies.held == 0
    assert not gateway.control.passed


@pytest.mark.parametrize("scope", ["inference", "admin", "gateway", "node"])
async def test_control_decides_what_a_valid_key_may_do(gateway: GatewayWorld, scope: str) -> None:
    entry = KeyEntry(hash=hash_secret("good"), scopes=(scope,))
    gateway.control.change(keys={entry.hash: entry})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
    assert (await gateway.ask(request(b"x" * 100_000, path="/api/v1/anything", key="good"))).status == 200
    other_header = request(None, method="GET", path="/api/x", key=None, head=b"X-Api-Key: good\r\n")
    assert (await gateway.ask(other_header)).status == 200
    assert len(gateway.control.passed) == 2


async def test_pages_need_no_key_and_take_no_body(gateway: GatewayWorld) -> None:
    for path in ("/", "/docs", "/openapi.json", "/api/v1/ready", "/healthz"):
        for key in (None, "wrong"):
            assert (await gateway.ask(request(method="GET", path=path, key=key))).status == 200
        refused = await gateway.ask(request(b"x", method="GET", path=path, key=None))
        assert (refused.status, refused.error["code"]) == (413, "body_too_large")
        chunks = request(None, method="GET", path=path, key=None, head=b"Transfer-Encoding: chunked\r\n")
        assert (await gateway.ask(chunks + b"1\r\nx\r\n0\r\n\r\n")).status == 413
    await gateway.until_quiet()


async def test_workers_pass_with_tokens_that_only_control_knows(gateway: GatewayWorld) -> None:
    for method, path in (("POST", "register"), ("POST", "n1/heartbeat"), ("DELETE", "n1"), ("GET", "n1/models")):
        answer = await gateway.ask(request(method=method, path=f"/api/node/{path}", key="a token"))
        assert answer.status == 200
        nothing = await gateway.ask(request(method=method, path=f"/api/node/{path}", key=None))
        assert nothing.status == 401
        assert msgspec.json.decode(nothing.body) == {"error": "missing or invalid Authorization header"}
    assert len(gateway.control.passed) == 4
    large = await gateway.ask(request(b"x" * 100_000, path="/api/node/n1/heartbeat", key="a token"))
    assert (large.status, large.error["code"]) == (413, "body_too_large")
    assert (await gateway.ask(request(b"x" * 1_000_000, path="/api/node/register", key="a token"))).status == 200


async def test_without_a_view_control_checks_keys_and_who_has_none_is_refused(gateway: GatewayWorld) -> None:
    gateway.gateway.services.directory._view = None
    assert (await gateway.ask(request(b"{}", path="/api/v1/keys"))).status == 200
    assert (await gateway.ask(request(b"{}", path="/api/v1/keys", key=None))).status == 401
    large = request(None, path="/api/v1/keys", head=b"Content-Length: 2000000\r\n")
    assert (await gateway.ask(large)).status == 413
    assert (await gateway.ask(request(method="GET", path="/docs", key=None))).status == 200


async def test_bodies_without_keys_use_up_a_budget_of_their_own_only() -> None:
    async with world(limits=Limits(keyless_bodies=3000, bodies=100_000)) as small, AsyncExitStack() as stack:
        register = request(b"x" * 1000, path="/api/node/register", key="a token")
        slow = [await stack.enter_async_context(small.client()) for _ in range(5)]
        for client in slow:
            await client.send(register[:-100])
            await client.send(b"x")
        bodies = small.gateway.services.bodies
        await small.until(lambda: bodies.keyless == 3 * 901)
        answers = [await client.read_answer() for client in slow[:2]]  # the oldest had to make room
        assert [(answer.status, answer.error["code"]) for answer in answers] == [(503, "overloaded")] * 2
        assert (await small.ask(register)).status == 200  # what comes in one piece finds room
        assert (await small.ask(request(chat()))).status == 200
        assert bodies.keyed == 0
        for client in slow[2:]:
            client.writer.transport.abort()
        await small.until(lambda: bodies.keyless == 0 and not bodies.strangers)


async def test_heads_that_do_not_end_use_up_a_budget_of_strangers_only() -> None:
    async with world(limits=Limits(unfinished_heads=3000)) as small, AsyncExitStack() as stack:
        known = await stack.enter_async_context(small.client())
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200
        data = request(chat(), head=b"X-Long: %b\r\n" % (b"x" * 2000))
        await known.send(data[:1000])
        slow = [await stack.enter_async_context(small.client()) for _ in range(5)]
        for client in slow:
            await client.send(data[:500], data[500:1000])
        heads = small.gateway.services.heads
        answers = [await client.read_answer() for client in slow[:2]]  # the oldest had to make room
        assert [(answer.status, answer.error["code"]) for answer in answers] == [(503, "overloaded")] * 2
        await small.until(lambda: heads.held == 3000)
        assert (await small.ask(data)).status == 200  # what comes in one piece finds room
        await small.until(lambda: heads.held == 3000)
        for client in (known, slow[2]):
            await client.send(data[1000:])
            assert (await client.read_answer()).status == 200
        for client in slow[3:]:
            client.writer.transport.abort()
        await small.until(lambda: heads.held == 0 and not heads._sizes)


async def test_memory_of_large_bodies_is_given_back(gateway: GatewayWorld) -> None:
    given: list[float] = []
    server, services = gateway.gateway.server, gateway.gateway.services
    server._freed = FreedMemory(lambda: given.append(services.bodies.held))
    async with gateway.client() as client:
        await client.send(request(chat(text="x" * 16_000_000))[:-5])
        await gateway.until(lambda: services.bodies.held > 15_000_000)
        server._sweep(services.loop.time())
        assert not given
    await gateway.until_quiet()
    server._sweep(services.loop.time())
    assert given == [0]


async def test_a_worker_that_control_accepts_is_no_stranger_any_more() -> None:
    async with world(limits=Limits(source_connections=2)) as small, AsyncExitStack() as stack:
        worker = await stack.enter_async_context(small.client())
        beat = request(b"{}", path="/api/node/n1/heartbeat", key="a secret")
        await worker.send(beat)
        assert (await worker.read_answer()).status == 200
        for _ in range(4):
            await stack.enter_async_context(small.client())
        await small.until(lambda: small.gateway.services.tally.refusals["connection_evicted"] == 2)
        await worker.send(beat)
        assert (await worker.read_answer()).status == 200


async def test_registrations_are_limited_per_source() -> None:
    async with world(limits=Limits(source_registrations=3)) as small:
        register = request(b"{}", path="/api/node/register", key="a token")
        assert [(await small.ask(register)).status for _ in range(3)] == [200] * 3
        refused = await small.ask(register)
        assert (refused.status, refused.error["type"]) == (429, "node_error")
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        beat = request(b"{}", path="/api/node/n1/heartbeat", key="a token")
        assert (await small.ask(beat)).status == 200
        assert len(small.control.passed) == 4


@pytest.mark.parametrize("scope", ["inference", "node", "admin"])
async def test_a_valid_key_lifts_no_limit_of_the_routes_of_workers(scope: str) -> None:
    """Only control knows whether it is the proof of a node."""
    async with world(limits=Limits(source_registrations=3)) as small:
        entry = KeyEntry(hash=hash_secret("good"), scopes=(scope,))
        small.control.change(keys={entry.hash: entry})
        await small.until(lambda: small.gateway.services.directory.version == 2)
        large = request(None, path="/api/node/register", key="good", head=b"Content-Length: 2000000\r\n")
        register = request(b"{}", path="/api/node/register", key="good")
        assert [(await small.ask(data)).status for data in (large, register, register, register)] == [
            413,
            200,
            200,
            429,
        ]
        heartbeat = request(b"x" * 100_000, path="/api/node/n1/heartbeat", key="good")
        assert (await small.ask(heartbeat)).status == 413
        assert len(small.control.passed) == 2


@pytest.mark.parametrize("key", ["good", "unknown", None])
@pytest.mark.parametrize(
    "path", ["/api/node%2fregister", "/%61pi/node/register", "/api/node/n1%2fheartbeat", "/api/node/register%0a"]
)
async def test_no_spelling_of_a_route_of_workers_lifts_its_limits(key: str | None, path: str) -> None:
    async with world(limits=Limits(source_registrations=3)) as small:
        entry = KeyEntry(hash=hash_secret("good"), scopes=("inference",))
        small.control.change(keys={entry.hash: entry})
        await small.until(lambda: small.gateway.services.directory.version == 2)
        answer = await small.ask(request(b"{}", path=path, key=key))
        assert (answer.status, answer.error["code"]) == (400, "encoded_path")
        assert small.control.passed == []


async def test_a_source_whose_proofs_fail_is_refused_by_the_gateway(gateway: GatewayWorld) -> None:
    """Control's time is not spent on guesses; workers that it has accepted pass from the same address."""
    gateway.control.denied_bearers = {"a guess"}
    guess, known, fresh = (request(b"{}", path="/api/node/n1/heartbeat", key=key) for key in ("a guess", "one", "two"))
    async with gateway.client() as worker:
        for _ in range(400):  # what is accepted uses nothing up
            await worker.send(known)
            assert (await worker.read_answer()).status == 200
        passed = len(gateway.control.passed)
        begun = asyncio.get_running_loop().time()
        for _ in range(400):
            assert (await gateway.ask(guess)).status in (401, 429)
        now = asyncio.get_running_loop().time()
        assert 300 <= len(gateway.control.passed) - passed <= 301 + now - begun
        gateway.gateway.server.senders.proofs._spent["127.0.0.1"] = (310.0, now)
        refused = await gateway.ask(guess)
        assert (await gateway.ask(fresh)).status == 429  # nobody can tell yet whether this one is valid
        assert (refused.status, refused.error["type"]) == (429, "node_error")
        assert 1 <= int(refused.headers["retry-after"]) <= 11
        await worker.send(known)
        assert (await worker.read_answer()).status == 200
    assert (await gateway.ask(known)).status == 200
    assert (await gateway.ask(request(chat()))).status == 200


async def test_requests_that_control_refuses_leave_few_connections_to_it(gateway: GatewayWorld) -> None:
    """Each opens one, since it cannot be sent twice; kept, they would use up the descriptors of the process."""
    gateway.control.denied_bearers = {"a guess"}
    guess = request(b"{}", path="/api/node/n1/heartbeat", key="a guess")
    services = gateway.gateway.services
    for _ in range(3 * services.config.limits.idle_control):
        assert (await gateway.ask(guess)).status == 401
    await gateway.until(lambda: services.pool.open_count <= services.config.limits.idle_control)


async def test_a_bearer_that_control_refuses_later_is_not_known_any_more(gateway: GatewayWorld) -> None:
    beat = request(b"{}", path="/api/node/n1/heartbeat", key="revoked")
    assert (await gateway.ask(beat)).status == 200
    accepted = gateway.gateway.server.senders.accepted
    assert hash_secret("revoked") in accepted
    gateway.control.denied_bearers = {"revoked"}
    assert (await gateway.ask(beat)).status == 401
    assert hash_secret("revoked") not in accepted


async def test_pages_without_a_key_are_limited_per_source(gateway: GatewayWorld) -> None:
    page, health = (request(method="GET", path=path, key=None) for path in ("/docs", "/healthz"))
    async with gateway.client() as client:
        for _ in range(300):  # these cost control nothing
            await client.send(health)
            assert (await client.read_answer()).status == 200
        begun = asyncio.get_running_loop().time()
        for _ in range(400):
            await client.send(page)
            if (refused := await client.read_answer()).status != 200:
                break
        seconds = asyncio.get_running_loop().time() - begun
        assert (refused.status, refused.error["code"]) == (429, "too_many_requests")
        assert int(refused.headers["retry-after"]) == 1
        assert 200 <= len(gateway.control.passed) <= 201 + 20 * seconds
        await client.send(request(chat()))
        assert (await client.read_answer()).status == 200
