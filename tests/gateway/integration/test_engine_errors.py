"""Errors of engines reach clients in OpenAI's words, and what no model can answer does not reach engines."""

import json

import pytest

from tests.kit.engine import EngineConnection, EngineRequest, json_answer
from tests.kit.gateway import MODEL, GatewayWorld, chat, request, world

NUMBERED = (
    b'{"error":{"code":400,"message":"request (9 tokens) exceeds the available context size (5 tokens)","n_ctx":5}}'
)
WORDED = b'{ "error": {"message": "m", "type": "invalid_request_error", "param": null, "code": "word"} }'


def refusing(body: bytes, *, status: int, head: bytes = b"", apart: bool = False):  # type: ignore[no-untyped-def]
    async def behave(_: EngineRequest, connection: EngineConnection) -> bool:
        whole = json_answer(body, status=status, head=head)
        if apart:
            await connection.send(whole[:-10])
            await connection.send(whole[-10:])
        else:
            await connection.send(whole)
        return True

    return behave


@pytest.mark.parametrize("apart", [False, True])
async def test_a_number_for_a_code_becomes_a_word(gateway: GatewayWorld, apart: bool) -> None:
    gateway.engine.behave = refusing(NUMBERED, status=400, head=b"Retry-After: 3\r\n", apart=apart)
    async with gateway.client() as client:
        for _ in range(2):
            await client.send(request(chat()))
            answer = await client.read_answer()
            assert (answer.status, answer.headers["retry-after"]) == (400, "3")
            assert (answer.error["code"], answer.error["param"]) == ("context_length_exceeded", "messages")
            assert (answer.error["type"], answer.error["n_ctx"]) == ("invalid_request_error", 5)
    await gateway.until_quiet()


async def test_what_the_client_got_wrong_is_no_error_of_the_server(gateway: GatewayWorld) -> None:
    body = b'{"error":{"code":500,"message":"image input is not supported","type":"server_error"}}'
    gateway.engine.behave = refusing(body, status=500)
    answer = await gateway.ask(request(chat()))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unsupported_content", "messages")
    gateway.engine.behave = refusing(b"out of memory", status=500)
    answer = await gateway.ask(request(chat()))
    assert (answer.status, answer.error["code"], answer.error["message"]) == (500, "engine_error", "out of memory")
    await gateway.until_quiet()


async def test_errors_in_openais_words_pass_untouched_and_so_do_those_that_are_no_short_json(
    gateway: GatewayWorld,
) -> None:
    gateway.engine.behave = refusing(WORDED, status=400)
    assert (await gateway.ask(request(chat()))).body == WORDED
    long = b'{"error":{"code":400,"message":"%b"}}' % (b"x" * 70_000)
    gateway.engine.behave = refusing(long, status=400)
    assert (await gateway.ask(request(chat()))).body == long
    gateway.engine.behave = refusing(NUMBERED, status=400, head=b"Content-Encoding: x\r\n")
    assert (await gateway.ask(request(chat()))).body == NUMBERED
    await gateway.until_quiet()


async def test_an_error_that_breaks_off_is_asked_of_another_replica() -> None:
    async def breaking(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(json_answer(NUMBERED, status=400)[:-10])
        connection.cut()
        return False

    async with world(engines=2) as gateway:
        gateway.engines[0].behave = gateway.engines[1].behave = breaking
        answer = await gateway.ask(request(chat()))
        assert (answer.status, answer.error["code"]) == (502, "replica_failed")
        assert [len(engine.requests) for engine in gateway.engines] == [1, 1]
        await gateway.until_quiet()


async def test_the_node_is_told_beside_an_error() -> None:
    async with world(expose_node=True) as gateway:
        gateway.engine.behave = refusing(NUMBERED, status=400)
        assert "x-localai-node" in (await gateway.ask(request(chat()))).headers


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"temperature": 2.01}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
    ],
)
async def test_what_no_model_can_answer_does_not_reach_an_engine(
    gateway: GatewayWorld, more: dict[str, object], param: str
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]} | more
    answer = await gateway.ask(request(json.dumps(body).encode()))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_value", param)
    assert not gateway.engine.requests
    body |= {param: None}
    assert (await gateway.ask(request(json.dumps(body).encode()))).status == 200
