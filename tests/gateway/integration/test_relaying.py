"""What passes through the gateway, and in which form."""

import msgspec
import pytest

from corral.wire.view import ModelEntry
from tests.kit.engine import (
    DONE,
    EVENTS,
    LAST_EVENT,
    STREAM_HEAD,
    EngineConnection,
    EngineRequest,
    GuidedStream,
    answering,
    chunk,
)
from tests.kit.gateway import KEY, MODEL, GatewayWorld, chat, request, world

STREAM = b"".join((*EVENTS, LAST_EVENT, DONE))


async def test_a_stream_passes_unchanged_and_only_the_head_is_written_anew(gateway: GatewayWorld) -> None:
    body = chat()
    head = (
        b"X-Forwarded-For: 6.6.6.6\r\nforwarded: for=6.6.6.6\r\nX-Custom: kept\r\nConnection: x-drop\r\nX-Drop: 1\r\n"
    )

    answer = await gateway.ask(request(body, path="/v1/chat/completions?a=b", head=head))

    assert answer.status == 200
    assert answer.body == STREAM
    [got] = gateway.engine.requests
    assert (got.method, got.target, got.body) == ("POST", "/v1/chat/completions?a=b", body)
    assert got.header("authorization") == "Bearer k0"
    assert got.header("host") == f"127.0.0.1:{gateway.engine.port}"
    assert got.header("x-forwarded-for") == "127.0.0.1"
    assert got.header("x-custom") == "kept"
    assert got.header("x-drop") is None
    assert KEY not in str(got.headers)
    await gateway.until_quiet()


async def test_connections_are_kept_on_both_sides(gateway: GatewayWorld) -> None:
    async with gateway.client() as client:
        for _ in range(5):
            await client.send(request(chat()))
            assert (await client.read_answer()).body == STREAM

    assert gateway.engine.accepted == 1
    assert gateway.gateway.services.pool.idle_count == 1


async def test_requests_sent_ahead_are_answered_in_order(gateway: GatewayWorld) -> None:
    gateway.engine.behave = answering
    bodies = [chat(text="x" * size) for size in (1, 20, 300)]
    async with gateway.client() as client:
        await client.send(b"".join(map(request, bodies)))
        answers = [await client.read_answer() for _ in bodies]

    assert [msgspec.json.decode(answer.body)["got"] for answer in answers] == [len(body) for body in bodies]


async def test_what_follows_a_chunked_body_in_one_piece_is_not_answered(gateway: GatewayWorld) -> None:
    body = chat()
    chunked = request(None, head=b"Transfer-Encoding: chunked\r\n") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with gateway.client() as client:
        await client.send(chunked + request(chat()))
        answer = await client.read_answer()
        assert answer.headers["connection"] == "close"
        assert await client.until_closed() == b""

    [got] = gateway.engine.requests
    assert got.body == body


async def test_a_chunked_body_arrives_with_a_length(gateway: GatewayWorld) -> None:
    body = chat()
    async with gateway.client() as client:
        head = request(None, head=b"Transfer-Encoding: chunked\r\n")
        await client.send(head, *(b"1\r\n%c\r\n" % byte for byte in body), b"0\r\nX-Trailer: 1\r\n\r\n")
        assert (await client.read_answer()).status == 200
        await client.send(request(body))
        assert (await client.read_answer()).status == 200

    assert [got.body for got in gateway.engine.requests] == [body, body]
    assert gateway.engine.requests[0].header("x-trailer") is None


async def test_a_client_of_http_1_0_gets_what_it_understands(gateway: GatewayWorld) -> None:
    gateway.engine.behave = answering
    async with gateway.client() as client:
        await client.send(request(chat(), version="1.0"))
        answer = await client.read_answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert await client.until_closed() == b""


async def test_a_client_of_http_1_0_gets_a_stream_event_by_event_and_without_chunks(gateway: GatewayWorld) -> None:
    pace = gateway.engine.behave = GuidedStream()
    async with gateway.client() as client:
        await client.send(request(chat(), version="1.0"))
        status, headers = await client.read_head()
        assert (status, headers["connection"]) == (200, "close")
        assert not {"transfer-encoding", "content-length"} & headers.keys()
        assert await client.reader.readexactly(len(EVENTS[0])) == EVENTS[0]
        pace.go_on.set()
        assert await client.until_closed() == LAST_EVENT + DONE
    await gateway.until_quiet()
    await gateway.until(lambda: any(report.finished for report in gateway.control.reports))
    [line] = [line for report in gateway.control.reports for line in report.finished]
    assert (line.outcome, line.prompt_tokens, line.completion_tokens) == ("ok", 7, 4)


async def test_a_client_of_http_1_0_notices_a_stream_that_breaks_off(gateway: GatewayWorld) -> None:
    async def breaking(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(STREAM_HEAD + chunk(EVENTS[0]))
        connection.cut()
        return False

    gateway.engine.behave = breaking
    async with gateway.client() as client:
        await client.send(request(chat(), version="1.0"))
        await client.read_head()
        with pytest.raises(ConnectionResetError):
            await client.reader.read()


async def test_event_streams_ask_proxies_not_to_hold_them_back(gateway: GatewayWorld) -> None:
    answer = await gateway.ask(request(chat()))
    assert answer.headers["x-accel-buffering"] == "no"
    gateway.engine.behave = answering
    assert "x-accel-buffering" not in (await gateway.ask(request(chat()))).headers


async def test_an_offer_to_upgrade_does_not_keep_a_request_with_a_body_from_its_answer(gateway: GatewayWorld) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    body = chat()
    async with gateway.client() as client:
        for _ in range(2):
            await client.send(request(body, head=offer))
            assert (await client.read_answer()).status == 200
        head = offer + b"Transfer-Encoding: chunked\r\n"
        await client.send(request(None, head=head) + chunk(body[:5]), chunk(body[5:]) + b"0\r\n\r\n")
        assert (await client.read_answer()).status == 200
    assert [one.body for one in gateway.engine.requests] == [body] * 3
    assert not {"upgrade", "http2-settings"} & {name.lower() for name, _ in gateway.engine.requests[0].headers}


async def test_a_body_is_asked_for_only_when_it_is_welcome(gateway: GatewayWorld) -> None:
    body = chat()
    async with gateway.client() as client:
        raw = request(body, head=b"Expect: 100-continue\r\n")
        await client.send(raw[: -len(body)])
        assert await client.read_head() == (100, {})
        await client.send(body)
        assert (await client.read_answer()).status == 200
    async with gateway.client() as client:
        raw = request(body, key="wrong", head=b"Expect: 100-continue\r\n")
        await client.send(raw[: -len(body)])
        assert (await client.read_answer()).status == 401

    assert gateway.engine.requests[0].header("expect") is None


async def test_extra_slashes_at_the_end_change_nothing(gateway: GatewayWorld) -> None:
    assert (await gateway.ask(request(chat(), path="/v1/chat/completions/"))).status == 200
    assert (await gateway.ask(request(method="GET", path="/v1/models//"))).status == 200
    assert (await gateway.ask(request(method="GET", path="/api/v1/nodes/?all=1"))).status == 200
    assert gateway.engine.requests[0].target == "/v1/chat/completions"
    assert gateway.control.passed[0][1] == "/api/v1/nodes?all=1"


async def test_names_without_a_version_and_aliases_work(gateway: GatewayWorld) -> None:
    answer = await gateway.ask(request(chat("other"), path="/chat/completions"))

    assert answer.status == 200
    assert gateway.engine.requests[0].target == "/v1/chat/completions"


async def test_models_are_listed_from_the_view(gateway: GatewayWorld) -> None:
    gateway.control.change(models={"a": ModelEntry(name="a", created=5, owned_by="me")})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)

    answer = await gateway.ask(request(method="GET", path="/v1/models"))
    one = await gateway.ask(request(method="GET", path="/v1/models/a"))
    head = await gateway.ask(request(method="HEAD", path="/v1/models"), is_head=True)

    expected = {"id": "a", "object": "model", "created": 5, "owned_by": "me"}
    assert msgspec.json.decode(answer.body) == {"object": "list", "data": [expected]}
    assert msgspec.json.decode(one.body) == expected
    assert head.headers["content-length"] == str(len(answer.body))


async def test_control_is_asked_what_models_are_for(gateway: GatewayWorld) -> None:
    answer = await gateway.ask(request(method="GET", path="/v1/models/capabilities"))

    assert answer.status == 200
    assert gateway.control.passed[0][1] == "/v1/models/capabilities"


async def test_usage_is_read_from_the_tail_and_reported_once(gateway: GatewayWorld) -> None:
    await gateway.ask(request(chat()))
    gateway.engine.behave = answering
    await gateway.ask(request(chat()))
    await gateway.until_quiet()
    await gateway.until(lambda: sum(line.requests for one in gateway.control.reports for line in one.finished) == 2)

    lines = [line for report in gateway.control.reports for line in report.finished]
    assert sum(line.prompt_tokens for line in lines) == 10
    assert sum(line.completion_tokens for line in lines) == 6
    assert {line.outcome for line in lines} == {"ok"}
    assert {line.key for line in lines} == {"key1"}


async def test_replicas_are_asked_in_turn() -> None:
    async with world(engines=2) as both:
        for _ in range(6):
            await both.ask(request(chat()))
        assert [len(engine.requests) for engine in both.engines] == [3, 3]


async def test_health_and_readiness_need_no_key(gateway: GatewayWorld) -> None:
    health, *same = [
        await gateway.ask(request(method="GET", path=path, key=None)) for path in ("/healthz", "/health", "/health/")
    ]
    ready = await gateway.ask(request(method="GET", path="/readyz", key=None))

    assert (health.status, ready.status) == (200, 200)
    assert [answer.body for answer in same] == [health.body] * 2
    told = msgspec.json.decode(ready.body)
    assert (told["status"], told["control"], told["view"]["version"]) == ("ready", {"state": "up"}, 1)


async def test_answers_tell_their_node_where_that_is_wanted(gateway: GatewayWorld) -> None:
    assert "x-localai-node" not in (await gateway.ask(request(chat()))).headers
    async with world(expose_node=True) as open_one:
        async with open_one.client() as client:
            for _ in range(2):
                await client.send(request(chat()))
                answer = await client.read_answer()
                assert (answer.headers["x-localai-node"], answer.is_whole) == ("n0", True)
        passed = await open_one.ask(request(method="GET", path="/api/v1/nodes"))
        assert "x-localai-node" not in passed.headers


def form(model: str, *, size: int) -> bytes:
    """A sound that looks nearly like parts of a form, then the model."""
    sound = (b"\r\n--bb\r\n\r\n" + bytes(range(256))) * (size // 266)
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + sound,
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + model.encode(),
        b"--b--\r\n",
    ]
    return b"\r\n".join(parts)


async def test_a_form_finds_its_model_and_passes_unchanged(gateway: GatewayWorld) -> None:
    gateway.engine.behave = answering
    kind = b"Content-Type: multipart/form-data; boundary=b\r\n"
    body = form(MODEL, size=3_000_000)

    answer = await gateway.ask(request(body, path="/audio/transcriptions", head=kind))

    assert answer.status == 200
    [got] = gateway.engine.requests
    assert (got.target, got.body) == ("/v1/audio/transcriptions", body)
    assert got.header("content-type") == "multipart/form-data; boundary=b"
    other = await gateway.ask(request(form("nobody", size=1000), path="/v1/audio/transcriptions", head=kind))
    assert (other.status, other.error["code"]) == (404, "model_not_found")
    plain = await gateway.ask(request(chat(), path="/v1/audio/transcriptions"))
    assert (plain.status, plain.error["code"]) == (400, "invalid_body")
    assert len(gateway.engine.requests) == 1


async def test_every_route_of_models_reaches_the_engine_under_its_one_name(gateway: GatewayWorld) -> None:
    gateway.engine.behave = answering
    names = {
        "/v1/vad": "/v1/vad",
        "/vad": "/v1/vad",
        "/tts": "/v1/audio/speech",
        "/v1/audio/speech": "/v1/audio/speech",
        "/rerank": "/v1/rerank",
        "/v1/tokenize": "/tokenize",
        "/tokenize": "/tokenize",
        "/v1/detokenize": "/detokenize",
    }
    for path in names:
        assert (await gateway.ask(request(chat(), path=path))).status == 200
    assert [got.target for got in gateway.engine.requests] == list(names.values())


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/openai/deployments/echo/chat/completions?api-version=2024-10-21", "other"),
        ("/openai/deployments/org%2Fecho/chat/completions", None),
        ("/openai/deployments/org/echo/chat/completions/", "other"),
        ("/openai/v1/chat/completions?api-version=preview", MODEL),
        ("/v1/engines/echo/chat/completions", None),
        ("/engines/echo/chat/completions", "other"),
    ],
)
async def test_a_model_may_be_named_in_the_path(gateway: GatewayWorld, path: str, model: str | None) -> None:
    models = {name: ModelEntry(name=name, alias_of="" if name == MODEL else MODEL) for name in (MODEL, "org/echo")}
    gateway.control.change(models=models)
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
    asked = {"messages": [{"role": "user", "content": "hi"}]} | ({} if model is None else {"model": model})

    async with gateway.client() as client:
        for _ in range(2):  # the second head is remembered
            head = b"Api-Key: %b\r\n" % KEY.encode()
            await client.send(request(msgspec.json.encode(asked), path=path, key=None, head=head))
            assert (await client.read_answer()).status == 200

    name = "org/echo" if "org" in path else MODEL
    for got in gateway.engine.requests:
        assert got.target.partition("?")[0] == "/v1/chat/completions"
        assert msgspec.json.decode(got.body) == asked | {"model": name}
        assert KEY not in str(got.headers)
    await gateway.until_quiet()


async def test_a_form_for_a_model_in_the_path_names_that_model(gateway: GatewayWorld) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--b--\r\n'
    kind = b"Content-Type: multipart/form-data; boundary=b\r\n"
    path = "/openai/deployments/echo/audio/transcriptions"

    assert (await gateway.ask(request(form % b"whisper-1", path=path, head=kind))).status == 200
    assert gateway.engine.requests[0].body == form % b"echo"
    nameless = form.replace(b'"model"', b'"language"') % b"en"
    assert (await gateway.ask(request(nameless, path=path, head=kind))).status == 200
    model = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\necho\r\n'
    assert gateway.engine.requests[1].body == model + nameless


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/openai/deployments/nobody/chat/completions", b"{}", 404, "model_not_found"),
        ("/openai/deployments/echo/chat/completions", b"[]", 400, "invalid_body"),
        ("/openai/deployments/echo/chat/completions", b"{", 400, "invalid_json"),
        ("/openai/deployments/echo/chat/completions", b'{"model": "x", "model": "y"}', 400, "ambiguous_model"),
        ("/v1/engines/echo/completions", b'{"\xff":1,"messages":[{}]}', 200, None),
        ("/v1/engines/echo/completions", b" { \n}", 200, None),
        ("/v1/engines/echo/embeddings", b'{"model": 5}', 200, None),
    ],
)
async def test_a_model_in_the_path_is_refused_like_one_in_the_body(
    gateway: GatewayWorld, path: str, body: bytes, status: int, code: str | None
) -> None:
    answer = await gateway.ask(request(body, path=path))
    assert (answer.status, answer.error["code"] if code else None) == (status, code)
    assert (await gateway.ask(request(body, path=path, key=None))).error["code"] == "missing_api_key"


async def test_the_models_are_listed_where_azures_clients_look(gateway: GatewayWorld) -> None:
    for path in ("/openai/models?api-version=2024-10-21", "/openai/v1/models", "/openai/models/echo"):
        assert (await gateway.ask(request(method="GET", path=path))).status == 200
    assert gateway.control.passed == []
