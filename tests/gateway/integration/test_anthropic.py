"""Errors of the routes below /v1/messages have Anthropic's shape, whoever says no."""

import msgspec
import pytest

from corral.gateway.config import Limits, TimeOuts
from corral.wire.view import ModelEntry
from tests.kit.engine import EngineConnection, EngineRequest, json_answer
from tests.kit.gateway import KEY, MODEL, ClientAnswer, GatewayWorld, chat, replicas, request, world

MESSAGES = "/v1/messages"
ROUTES = (MESSAGES, "/v1/messages/count_tokens", "/v1/chat/completions")


async def serving(gateway: GatewayWorld) -> GatewayWorld:
    entries = {id: msgspec.structs.replace(one, routes=ROUTES) for id, one in replicas(*gateway.engines).items()}
    gateway.control.change(replicas=entries)
    await gateway.until(lambda: gateway.gateway.services.directory.version == gateway.control.view.version)
    return gateway


def error_of(answer: ClientAnswer) -> tuple[int, str, str]:
    body = msgspec.json.decode(answer.body)
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    return answer.status, body["error"]["type"], body["error"]["message"]


@pytest.mark.parametrize("path", [MESSAGES, "/messages", "/v1/messages/count_tokens", "/v1/messages/"])
async def test_refusals_of_the_gateway(gateway: GatewayWorld, path: str) -> None:
    await serving(gateway)
    for sent, status, type in (
        (request(chat(), path=path, key=None), 401, "authentication_error"),
        (request(chat(), path=path, key=None, head=b"x-api-key: wrong\r\n"), 401, "authentication_error"),
        (request(chat("nobody"), path=path), 404, "not_found_error"),
        (request(b"{", path=path), 400, "invalid_request_error"),
        (request(b'{"model": "%b", "messages": null}' % MODEL.encode(), path=path), 400, "invalid_request_error"),
        (request(None, path=path, method="GET"), 405, "invalid_request_error"),
        (request(b"x", path=path, head=b"Content-Encoding: br\r\n"), 415, "invalid_request_error"),
    ):
        assert error_of(await gateway.ask(sent))[:2] == (status, type)
    assert (
        await gateway.ask(request(chat(), path=path, key=None, head=f"x-api-key: {KEY}\r\n".encode()))
    ).status == 200


async def test_refusals_that_come_later() -> None:
    async with world(limit=1, limits=Limits(body=2000, queue=0)) as gateway:
        await serving(gateway)
        assert error_of(await gateway.ask(request(b"x" * 3000, path=MESSAGES)))[:2] == (413, "request_too_large")
        gateway.control.loading = msgspec.structs.replace(gateway.control.loading, state="failed", message="no room")
        gateway.control.change(replicas={})
        await gateway.until(lambda: gateway.gateway.services.directory.version == gateway.control.view.version)
        assert error_of(await gateway.ask(request(chat(), path=MESSAGES)))[:2] == (429, "rate_limit_error")


async def test_a_model_that_cannot_be_loaded_and_one_that_does_not_chat(gateway: GatewayWorld) -> None:
    gateway.control.loading = msgspec.structs.replace(gateway.control.loading, state="failed", message="no room")
    gateway.control.change(replicas={})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
    status, type, _ = error_of(await gateway.ask(request(chat(), path=MESSAGES)))
    assert (status, type) == (503, "overloaded_error")
    gateway.control.change(models={MODEL: ModelEntry(name=MODEL, uses=("embeddings",))})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 3)
    status, type, message = error_of(await gateway.ask(request(chat(), path=MESSAGES)))
    assert (status, type) == (400, "invalid_request_error")
    assert "is for embeddings, and not for chat" in message


async def test_a_backend_without_the_route_is_named(gateway: GatewayWorld) -> None:
    status, type, message = error_of(await gateway.ask(request(chat(), path=MESSAGES)))
    assert (status, type) == (400, "invalid_request_error")
    assert message == "the backend of the model echo does not answer /v1/messages"


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (
            400,
            b'{"error":{"code":400,"message":"too many tokens","type":"invalid_request_error"}}',
            (400, "invalid_request_error", "too many tokens"),
        ),
        (
            500,
            b'{"error":{"code":"server","message":"it broke","type":"server_error"}}',
            (500, "api_error", "it broke"),
        ),
        (
            529,
            b'{"type":"error","error":{"type":"overloaded_error","message":"later"}}',
            (529, "overloaded_error", "later"),
        ),
        (503, b"plain words", (503, "overloaded_error", "plain words")),
    ],
)
async def test_errors_of_engines(gateway: GatewayWorld, status: int, body: bytes, told: tuple[int, str, str]) -> None:
    async def failing(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(json_answer(body, status=status))
        return True

    await serving(gateway)
    gateway.engine.behave = failing
    assert error_of(await gateway.ask(request(chat(), path=MESSAGES))) == told
    answer = await gateway.ask(request(chat()))
    assert set(answer.error) >= {"message", "type", "code"}
    await gateway.until_quiet()


async def test_an_engine_that_dies(gateway: GatewayWorld) -> None:
    async def dying(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(b"nonsense")
        return False

    await serving(gateway)
    gateway.engine.behave = dying
    assert error_of(await gateway.ask(request(chat(), path=MESSAGES)))[:2] == (502, "api_error")


EARLY = {
    "two codings": (400, b"Transfer-Encoding: gzip, chunked\r\n"),
    "an expectation": (417, b"Expect: 200-ok\r\n"),
    "a large head": (431, b"X-Large: %b\r\n" % (b"x" * 70_000)),
    "a bare line feed": (400, b"X: a\nb\r\n"),
}


@pytest.mark.parametrize("target", [MESSAGES, f"http://corral.test{MESSAGES}?beta=true", f"/{MESSAGES}/"])
@pytest.mark.parametrize("name", EARLY)
async def test_a_head_that_is_not_understood_is_refused_in_the_form_of_its_path(
    gateway: GatewayWorld, name: str, target: str
) -> None:
    status, line = EARLY[name]
    data = request(None, path=target, head=line)
    for pieces in ([data], [data[:100], data[100:]]):
        async with gateway.client() as client:
            await client.send(*pieces)
            answer = await client.read_answer()
        assert error_of(answer)[0] == status
    other = await gateway.ask(request(None, head=line))
    assert set(other.error) == {"message", "type", "param", "code"}


async def test_a_head_that_comes_too_slowly_is_refused_in_the_form_of_its_path() -> None:
    async with world(time_outs=TimeOuts(head=0.1, linger=0.1)) as strict, strict.client() as client:
        await client.send(request(None, path=MESSAGES)[:-10])
        assert error_of(await client.read_answer())[0] == 408


async def test_models_are_listed_as_anthropic_does(gateway: GatewayWorld) -> None:
    gateway.control.change(models={name: ModelEntry(name=name, created=86400) for name in ("a", "b")})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
    head = b"Anthropic-Version: 2023-06-01\r\n"
    listed = await gateway.ask(request(path="/v1/models?limit=1000", method="GET", head=head))
    shown = await gateway.ask(request(path="/v1/models/b", method="GET", head=head))
    models = [
        {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-02T00:00:00Z"} for name in "ab"
    ]
    page = {"data": models, "has_more": False, "first_id": "a", "last_id": "b"}
    assert (msgspec.json.decode(listed.body), msgspec.json.decode(shown.body)) == (page, models[1])
