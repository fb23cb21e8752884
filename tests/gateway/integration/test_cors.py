"""Web pages of other origins: who may ask, and who may read answers. One policy, whoever answers."""

import pytest

from tests.kit.engine import EngineConnection, EngineRequest, json_answer
from tests.kit.gateway import ClientAnswer, GatewayWorld, chat, request, world

GOOD, OTHER = b"Origin: https://Chat.example\r\n", b"Origin: https://evil.example\r\n"
NAMED = ("https://chat.example", "http://localhost:3000")
ASKING = b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, content-type\r\n"


def cors_of(answer: ClientAnswer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


async def boasting(_: EngineRequest, connection: EngineConnection) -> bool:
    """As llama.cpp's server does: whoever asks is welcome."""
    head = b"Access-Control-Allow-Origin: https://evil.example\r\naccess-control-allow-credentials: true\r\n"
    await connection.send(json_answer(b"{}", head=head))
    return True


PATHS = ("/v1/chat/completions", "/v1/models", "/api/v1/nodes", "/healthz", "/nowhere")


@pytest.mark.parametrize("path", PATHS)
async def test_preflights_are_answered_by_the_gateway_on_every_route_without_a_key(path: str) -> None:
    async with world(cors_origins=NAMED) as gateway:
        answer = await gateway.ask(request(method="OPTIONS", path=path, key=None, head=GOOD + ASKING))

        assert (answer.status, answer.body, answer.headers["vary"]) == (204, b"", "Origin")
        assert cors_of(answer) == {
            "access-control-allow-origin": "https://Chat.example",
            "access-control-allow-credentials": "true",
            "access-control-allow-methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
            "access-control-allow-headers": "authorization, content-type",
            "access-control-max-age": "600",
            "access-control-expose-headers": "X-Request-ID, Retry-After",
        }
        assert not gateway.control.passed


@pytest.mark.parametrize("origins", [(), NAMED])
async def test_a_preflight_of_a_stranger_is_refused_with_the_name_of_the_setting(origins: tuple[str, ...]) -> None:
    async with world(cors_origins=origins) as gateway:
        answer = await gateway.ask(request(method="OPTIONS", key=None, head=OTHER + ASKING))

        assert (answer.status, answer.error["code"], cors_of(answer)) == (403, "origin_not_allowed", {})
        assert "CORRAL_CORS_ORIGINS" in str(answer.error["message"])


async def test_every_answer_to_a_named_origin_allows_it_and_no_other() -> None:
    async with world(cors_origins=NAMED) as gateway:
        gateway.engine.behave = boasting
        for sent in (
            request(chat(), head=GOOD),
            request(chat("nobody"), head=GOOD),
            request(chat(), key="wrong", head=GOOD),
            request(method="GET", path="/v1/models", head=GOOD),
            request(method="GET", path="/api/v1/nodes", head=GOOD),
        ):
            answer = await gateway.ask(sent)
            assert answer.headers["access-control-allow-origin"] == "https://Chat.example"
            assert (answer.headers["access-control-allow-credentials"], answer.headers["vary"]) == ("true", "Origin")
            answer = await gateway.ask(sent.replace(GOOD, OTHER))
            assert (cors_of(answer), answer.headers["vary"]) == ({}, "Origin")
            answer = await gateway.ask(sent.replace(GOOD, b""))
            assert (cors_of(answer), answer.headers["vary"]) == ({}, "Origin")


async def test_any_origin_gets_no_credentials() -> None:
    async with world(cors_origins=("*", *NAMED)) as gateway:
        answer = await gateway.ask(request(chat(), head=OTHER))
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers
        answer = await gateway.ask(request(method="OPTIONS", key=None, head=OTHER + ASKING))
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, "*")
        assert "access-control-allow-credentials" not in answer.headers


async def test_without_the_setting_nobody_is_allowed_whatever_engines_say(gateway: GatewayWorld) -> None:
    gateway.engine.behave = boasting
    answer = await gateway.ask(request(chat(), head=OTHER))

    assert (answer.status, cors_of(answer)) == (200, {})
    assert "vary" not in answer.headers
    assert gateway.engine.requests[0].header("origin") is None  # it is not for engines to judge
    await gateway.ask(request(method="GET", path="/api/v1/nodes", head=OTHER))
    assert gateway.control.passed[0][2]["Origin"] == "https://evil.example"


async def test_other_requests_for_options_pass(gateway: GatewayWorld) -> None:
    assert (await gateway.ask(request(method="OPTIONS", path="/api/v1/nodes"))).status == 200
    assert gateway.control.passed[0][0] == "OPTIONS"
