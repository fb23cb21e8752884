"""What the gateway does not relay, and what it says then."""

import msgspec
import pytest

from corral.gateway.config import Limits
from corral.wire.keys import hash_secret
from corral.wire.view import KeyEntry
from tests.kit.gateway import KEY, GatewayWorld, chat, request, world


async def refused(gateway: GatewayWorld, data: bytes) -> tuple[int, object]:
    answer = await gateway.ask(data)
    error = answer.error
    assert set(error) == {"message", "type", "param", "code"}
    assert not gateway.engine.requests
    return answer.status, error["code"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b'{"model": "echo"} x', 400, "invalid_json"),
        (b'{"model": "\xff"}', 400, "invalid_json"),
        (b"[]", 400, "invalid_body"),
        (b'"echo"', 400, "invalid_body"),
        (b"{}", 400, "missing_model"),
        (b'{"model": null}', 400, "missing_model"),
        (b'{"model": ""}', 400, "missing_model"),
        (b'{"model": 7}', 400, "invalid_type"),
        (b'{"model": ["echo"]}', 400, "invalid_type"),
        (b'{"model": {"a": 1}}', 400, "invalid_type"),
        (b'{"model": "nobody"}', 404, "model_not_found"),
        (b'{"model": "%b"}' % (b"x" * 10_000), 404, "model_not_found"),
        (b"[" * 100_000, 400, "invalid_body"),
        (b'{"a":' * 50_000, 400, "invalid_json"),
    ],
)
async def test_a_body_that_names_no_model_is_told_why(
    gateway: GatewayWorld, body: bytes, status: int, code: str
) -> None:
    assert await refused(gateway, request(body)) == (status, code)
    await gateway.until_quiet()


async def test_near_names_are_offered(gateway: GatewayWorld) -> None:
    answer = await gateway.ask(request(chat("ecko")))

    assert answer.status == 404
    assert "did you mean echo?" in str(answer.error["message"])
    stranger = await gateway.ask(request(chat("gpt-9")))
    assert stranger.error["message"] == "the model 'gpt-9' does not exist; /v1/models lists those that do"


async def test_an_empty_body_is_called_so(gateway: GatewayWorld) -> None:
    answer = await gateway.ask(request(b""))
    assert answer.error["message"] == "the body is not valid JSON: it is empty"


async def test_long_prompts_pass(gateway: GatewayWorld) -> None:
    body = chat(text="word " * 44_000)
    assert (await gateway.ask(request(body))).status == 200
    assert gateway.engine.requests[0].body == body


async def test_who_may_not_ask_is_told_so(gateway: GatewayWorld) -> None:
    entries = [
        KeyEntry(hash=hash_secret("good"), scopes=("admin",)),
        KeyEntry(hash=hash_secret("node"), scopes=("node", "gateway")),
        KeyEntry(hash=hash_secret("old"), scopes=("inference",), expires_at=1.0),
        KeyEntry(hash=hash_secret("new"), scopes=("inference",), expires_at=4e12),
    ]
    gateway.control.change(keys={entry.hash: entry for entry in entries})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)

    assert await refused(gateway, request(chat(), key=None)) == (401, "missing_api_key")
    assert await refused(gateway, request(chat(), key="wrong")) == (401, "invalid_api_key")
    assert await refused(gateway, request(chat(), key=KEY)) == (401, "invalid_api_key")
    assert await refused(gateway, request(chat(), key="old")) == (401, "expired_api_key")
    assert await refused(gateway, request(chat(), key="node")) == (403, "missing_scope")
    assert await refused(gateway, request(chat(), key="x" * 5000)) == (401, "invalid_api_key")
    assert await refused(gateway, request(method="GET", path="/v1/models", key=None)) == (401, "missing_api_key")
    assert (await gateway.ask(request(chat(), key="good"))).status == 200
    assert (await gateway.ask(request(chat(), key="new"))).status == 200
    for name in (b"X-Api-Key", b"xi-api-key", b"api-key"):
        assert (await gateway.ask(request(chat(), key=None, head=name + b": new\r\n"))).status == 200
        assert "new" not in str(gateway.engine.requests[-1].headers)


async def test_a_wrong_method_is_named(gateway: GatewayWorld) -> None:
    answer = await gateway.ask(request(method="GET"))
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


async def test_a_body_over_the_limit_is_refused_before_it_comes_or_as_soon_as_it_does() -> None:
    async with world(limits=Limits(body=1000)) as small:
        answer = await small.ask(request(b"x" * 1001))
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert answer.error["message"] == (
            "the body is larger than 1000 bytes; the setting gateway.max_request (CORRAL_MAX_REQUEST) allows more"
        )
        async with small.client() as client:
            await client.send(request(None, head=b"Transfer-Encoding: chunked\r\n"))
            await client.send(*[b"64\r\n%b\r\n" % (b"x" * 100)] * 11)
            assert (await client.read_answer()).status == 413
        async with small.client() as client:  # still sending while the answer comes
            await client.send(request(None, head=b"Content-Length: 500000\r\n") + b"x" * 100_000)
            answer = await client.read_answer()
            assert (answer.status, answer.headers["connection"]) == (413, "close")
        await small.until_quiet()
        assert (await small.ask(request(chat()))).status == 200


async def test_a_client_with_a_key_reads_why_although_it_sends_all_of_a_large_body_first() -> None:
    """Packages take a reset connection for a fault of the network, and send all of it again."""
    async with world(limits=Limits(body=1000)) as small, small.client() as client:
        await client.send(request(None, head=b"Content-Length: 8000000\r\n"), *[b"x" * 1_000_000] * 8)
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")


async def test_all_bodies_together_have_a_limit() -> None:
    async with world(limits=Limits(bodies=1000)) as small:
        async with small.client() as first:
            await first.send(request(b"x" * 900)[:-10])
            await small.until(lambda: small.gateway.services.bodies.held > 0)
            answer = await small.ask(request(b"x" * 900))
            assert (answer.status, answer.error["code"]) == (503, "overloaded")
        await small.until_quiet()
        assert (await small.ask(request(chat()))).status == 200


async def test_a_head_over_the_limit_is_refused(gateway: GatewayWorld) -> None:
    async with gateway.client() as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000)
        assert (await client.read_answer()).status == 431


async def test_a_refusal_leaves_the_connection_usable(gateway: GatewayWorld) -> None:
    async with gateway.client() as client:
        for body in (b"{", chat("nobody"), chat()):
            await client.send(request(body))
            answer = await client.read_answer()
        assert answer.status == 200


async def test_too_many_connections_are_refused() -> None:
    async with world(limits=Limits(connections=2)) as small, small.client() as one, small.client() as two:
        await one.send(request(chat()))
        await two.send(request(chat()))
        assert (await one.read_answer()).status == (await two.read_answer()).status == 200
        async with small.client() as three:
            answer = await three.read_answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert await three.until_closed() == b""  # a kept connection would take this for its first answer
        await one.send(request(chat()))
        assert (await one.read_answer()).status == 200


async def test_a_refused_head_is_not_answered_as_the_request_before_it(gateway: GatewayWorld) -> None:
    async with gateway.client() as client:
        await client.send(request(method="HEAD", path="/healthz", key=None))
        assert (await client.read_answer(is_head=True)).status == 200
        await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000)
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (431, "head_too_large")


async def test_a_gateway_without_a_view_says_so(gateway: GatewayWorld) -> None:
    directory = gateway.gateway.services.directory
    directory._view = None
    ready = await gateway.ask(request(method="GET", path="/readyz", key=None))
    answer = await gateway.ask(request(chat()))

    assert ready.status == answer.status == 503
    assert msgspec.json.decode(ready.body)["status"] == "no view"
    assert answer.headers["retry-after"] == "2"
