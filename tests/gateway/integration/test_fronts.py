"""Replicas with a second port: requests that need care go there, and all others straight to the engine."""

import json

import msgspec
import pytest

from corral.wire.view import ModelEntry
from tests.kit.engine import Behaviour, EngineConnection, EngineRequest, StubEngine, json_answer, streaming
from tests.kit.gateway import MODEL, GatewayWorld, replicas, request, world

PLAIN = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "x"}],
    "temperature": 1,
    "max_tokens": 5,
    "stream": True,
}
NULL = b'{"error":{"code":500,"message":"Failed to parse messages: type must be string, but is null"}}'
SLOTS = b'{"error":{"code":400,"message":"Field \'n\': Value must be between 1 <= value <= 1, but got 2"}}'


async def told(gateway: GatewayWorld, *, routes: tuple[str, ...] | None = None) -> tuple[StubEngine, StubEngine]:
    """The first engine, and the second as the port in front of it."""
    engine, front = gateway.engines
    entry = msgspec.structs.replace(replicas(engine)["r0"], front_port=front.port, routes=routes)
    gateway.control.change(replicas={"r0": entry})
    await gateway.until(lambda: gateway.gateway.services.directory.version == gateway.control.view.version)
    return engine, front


async def ask(gateway: GatewayWorld, more: dict[str, object], path: str = "/v1/chat/completions") -> int:
    return (await gateway.ask(request(json.dumps(PLAIN | more).encode(), path=path))).status


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{}]},
        {"functions": []},
        {"function_call": "auto"},
        {"modalities": ["audio"]},
        {"max_tokens": 0},
        {"max_completion_tokens": 0},
        {"dimensions": 8},
        {"echo": True},
        {"suffix": "x"},
        {"best_of": 2},
        {"prompt": ["a", "b"]},
        {"stop_sequences": ["x"]},
        {"prompt": "a", "logprobs": 0},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"logit_bias": {"5": 1}},
        {"web_search_options": {}},
        {"verbosity": "low"},
        {"prompt": "a", "response_format": {"type": "json_object"}},
        {"output_config": {"format": {"type": "json_schema"}}},
    ],
)
async def test_what_an_engine_would_drop_goes_to_the_port_in_front(more: dict[str, object]) -> None:
    async with world(engines=2) as gateway:
        engine, front = await told(gateway)
        assert await ask(gateway, {"prompt": "a"}) == 200
        assert await ask(gateway, more) == 200
        assert (len(engine.requests), len(front.requests)) == (1, 1)
        assert json.loads(front.requests[0].body) == PLAIN | more
        assert front.requests[0].header("Authorization") == engine.requests[0].header("Authorization")
        await gateway.until_quiet()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_every_response_and_message_comes_from_the_port_in_front(path: str) -> None:
    async with world(engines=2) as gateway:
        engine, front = await told(gateway, routes=(path,))
        assert await ask(gateway, {"input": "a"}, path=path) == 200
        assert (len(engine.requests), len(front.requests)) == (0, 1)
        await gateway.until_quiet()


async def test_messages_with_blocks_are_counted_by_the_port_in_front() -> None:
    path = "/v1/messages/count_tokens"
    async with world(engines=2) as gateway:
        engine, front = await told(gateway, routes=(path,))
        assert await ask(gateway, {"system": "Be brief."}, path=path) == 200
        assert (len(engine.requests), len(front.requests)) == (1, 0)
        block = {"type": "document", "source": {"type": "text", "data": "x"}}
        assert await ask(gateway, {"messages": [{"role": "user", "content": [block]}]}, path=path) == 200
        assert await ask(gateway, {"system": [{"type": "text", "text": "x"}]}, path=path) == 200
        assert (len(engine.requests), len(front.requests)) == (1, 2)
        await gateway.until_quiet()


@pytest.mark.parametrize("refusal", [NULL, SLOTS])
async def test_what_the_engine_refuses_for_a_null_or_its_slots_is_asked_in_front_of_it(refusal: bytes) -> None:
    async def refuse(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(json_answer(refusal, status=400))
        return True

    async with world(engines=2, limit=1) as gateway:
        engine, front = await told(gateway)
        engine.behave = refuse
        for _ in range(2):
            assert await ask(gateway, {"n": 2}) == 200
        assert (len(engine.requests), len(front.requests)) == (2, 2)
        front.behave = refuse
        answer = await gateway.ask(request(json.dumps(PLAIN).encode()))
        assert (answer.status, answer.error["code"]) == (400, "invalid_value")
        await gateway.until_quiet()


async def test_a_stale_connection_to_the_port_in_front_is_made_anew_also_after_one_to_the_engine() -> None:
    def stale_once(then: Behaviour) -> Behaviour:
        async def behave(asked: EngineRequest, connection: EngineConnection) -> bool:
            return connection.number > 1 and await then(asked, connection)

        return behave

    async def refuse(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(json_answer(NULL, status=400))
        return True

    async with world(engines=2) as gateway:
        engine, front = await told(gateway)
        for more in ({}, {"echo": True}):  # a kept connection to each
            assert await ask(gateway, more) == 200
        engine.behave, front.behave = stale_once(refuse), stale_once(streaming)
        assert await ask(gateway, {"n": 2}) == 200
        assert (engine.accepted, front.accepted) == (2, 2)
        assert gateway.gateway.services.tally.reconnects == 2
        await gateway.until_quiet()


async def test_a_connection_to_a_port_in_front_outlives_a_change_of_the_view() -> None:
    async with world(engines=2) as gateway:
        await told(gateway)
        assert await ask(gateway, {"echo": True}) == 200
        idle = gateway.gateway.services.pool.idle_count
        gateway.control.change(models={**gateway.control.view.models, "other": ModelEntry(name="other")})
        await gateway.until(lambda: gateway.gateway.services.directory.version == gateway.control.view.version)
        assert gateway.gateway.services.pool.idle_count == idle


async def test_without_such_a_port_the_engine_is_asked(gateway: GatewayWorld) -> None:
    assert await ask(gateway, {"tools": [{}]}) == 200
    assert len(gateway.engine.requests) == 1
