"""Ollama's routes: what the gateway answers itself, where the rest goes, and errors in Ollama's shape."""

import json
from datetime import datetime
from typing import Any

import msgspec
import pytest

from corral.gateway.inference import ROUTES
from corral.gateway.usage import Usage
from corral.wire.keys import hash_secret
from corral.wire.models import OLLAMA_ROUTES
from corral.wire.view import KeyEntry, ModelEntry
from tests.kit.engine import EngineConnection, EngineRequest, StubEngine, json_answer
from tests.kit.gateway import MODEL, ClientAnswer, GatewayWorld, chat, replicas, request, world

CHAT = "/api/chat"
MODELS = {
    MODEL: ModelEntry(name=MODEL, created=86400, uses=("chat", "completion")),
    "other": ModelEntry(name="other", alias_of=MODEL, uses=("chat",)),
    "cold": ModelEntry(name="cold", uses=("embeddings",)),
    "voice": ModelEntry(name="voice", uses=("speech",)),
    "tagged:latest": ModelEntry(name="tagged:latest"),
}


async def serving(gateway: GatewayWorld) -> tuple[StubEngine, StubEngine]:
    """Return the engine of the only replica, and the port in front of it."""
    engine, front = gateway.engines
    entry = msgspec.structs.replace(replicas(engine)["r0"], front_port=front.port, routes=tuple(OLLAMA_ROUTES))
    gateway.control.change(models=MODELS, replicas={"r0": entry})
    await gateway.until(lambda: gateway.gateway.services.directory.version == gateway.control.view.version)
    return engine, front


def told(answer: ClientAnswer) -> Any:
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body)


def error_of(answer: ClientAnswer) -> tuple[int, str]:
    error = msgspec.json.decode(answer.body)["error"]
    assert isinstance(error, str)
    return answer.status, error


async def test_models_are_listed_as_ollama_does() -> None:
    async with world(engines=2) as gateway:
        await serving(gateway)
        listed = told(await gateway.ask(request(None, path="/api/tags", method="GET")))["models"]
        assert [model["name"] for model in listed] == ["cold", MODEL, "other", "tagged:latest"]
        assert [model["model"] for model in listed] == [model["name"] for model in listed]
        assert datetime.fromisoformat(listed[1]["modified_at"]).timestamp() == 86400
        assert "modified_at" not in listed[0]
        running = told(await gateway.ask(request(None, path="/api/ps", method="GET")))["models"]
        assert [model["name"] for model in running] == [MODEL, "other"]
        version = told(await gateway.ask(request(None, path="/api/version", method="GET")))["version"]
        assert len(version.split(".")) == 3


@pytest.mark.parametrize(
    ("asked", "capabilities"),
    [
        ({"model": MODEL}, ["completion"]),
        ({"name": f"{MODEL}:latest"}, ["completion"]),
        ({"model": "cold"}, ["embedding"]),
        ({"model": "tagged:latest"}, ["completion"]),
    ],
)
async def test_a_model_is_shown(asked: dict[str, str], capabilities: list[str]) -> None:
    async with world(engines=2) as gateway:
        await serving(gateway)
        shown = told(await gateway.ask(request(json.dumps(asked).encode(), path="/api/show")))
        assert shown["capabilities"] == capabilities
        assert (shown["model_info"], shown["details"]["families"]) == ({}, [])


async def test_a_key_for_some_models_sees_no_other() -> None:
    async with world(engines=2) as gateway:
        await serving(gateway)
        secret = "corral_for-one-model"
        entry = KeyEntry(hash=hash_secret(secret), scopes=("inference",), models=frozenset({"cold"}))
        gateway.control.change(keys={**gateway.control.view.keys, entry.hash: entry})
        await gateway.until(lambda: gateway.gateway.services.directory.version == gateway.control.view.version)
        listed = told(await gateway.ask(request(None, path="/api/tags", method="GET", key=secret)))["models"]
        assert [model["name"] for model in listed] == ["cold"]
        for path, body in (("/api/show", b'{"model": "echo:latest"}'), (CHAT, chat("echo:latest"))):
            status, error = error_of(await gateway.ask(request(body, path=path, key=secret)))
            assert (status, "may not ask the model 'echo'" in error) == (403, True)


@pytest.mark.parametrize("path", sorted(OLLAMA_ROUTES))
async def test_every_question_goes_to_the_port_in_front(path: str) -> None:
    async with world(engines=2) as gateway:
        engine, front = await serving(gateway)
        gateway.control.change(models={MODEL: ModelEntry(name=MODEL)})
        await gateway.until(lambda: gateway.gateway.services.directory.version == gateway.control.view.version)
        body = chat(f"{MODEL}:latest")
        assert (await gateway.ask(request(body, path=path))).status == 200
        assert (len(engine.requests), front.requests[0].target, front.requests[0].body) == (0, path, body)
        assert f"/v1{path}".encode() not in ROUTES


@pytest.mark.parametrize(
    ("sent", "status", "error"),
    [
        (request(chat(), path=CHAT, key=None), 401, "an API key is required"),
        (request(None, path="/api/tags", method="GET", key=None), 401, "an API key is required"),
        (request(None, path="/api/version", method="GET", key="wrong"), 401, "is not valid"),
        (request(chat("nobody"), path=CHAT), 404, "the model 'nobody' does not exist"),
        (request(b'{"model": "nobody"}', path="/api/show"), 404, "the model 'nobody' does not exist"),
        (request(b"{}", path="/api/show"), 400, "`model` is missing"),
        (request(b"[]", path="/api/show"), 400, "must be a JSON object"),
        (request(b"{", path=CHAT), 400, "not valid JSON"),
        (request(chat("voice"), path=CHAT), 400, "is for speech, and not for chat"),
        (request(None, path=CHAT, method="GET"), 405, "use POST"),
        (request(None, path="/api/show", method="GET"), 405, "use POST"),
        (request(b"{}", path="/api/tags"), 405, "use GET"),
        (request(b'{"model": "x"}', path="/api/pull"), 400, "/api/pull is not offered: models are changed with"),
        (request(b'{"model": "x"}', path="/api/delete", method="DELETE"), 400, "/api/delete is not offered"),
        (request(b'{"model": "x"}', path="/api/pull", key=None), 401, "an API key is required"),
        (request(b"GGUF", path="/api/blobs/sha256:0a"), 400, "/api/blobs is not offered: models are changed with"),
    ],
)
async def test_refusals_have_ollamas_shape(sent: bytes, status: int, error: str) -> None:
    async with world(engines=2) as gateway:
        await serving(gateway)
        answered, said = error_of(await gateway.ask(sent))
        assert (answered, error in said) == (status, True), said


@pytest.mark.parametrize("messages", [[], None])
async def test_a_chat_without_messages_goes_on_as_a_wish_that_the_model_is_loaded(messages: Any) -> None:
    async with world(engines=2) as gateway:
        _, front = await serving(gateway)
        body = json.dumps({"model": MODEL, "messages": messages, "keep_alive": -1}).encode()
        assert (await gateway.ask(request(body, path=CHAT))).status == 200
        assert front.requests[0].body == body
        await gateway.until_quiet()


async def test_errors_of_engines_have_ollamas_shape() -> None:
    async with world(engines=2) as gateway:
        _, front = await serving(gateway)
        body = b'{"error":{"code":400,"message":"request exceeds the available context size"}}'

        async def refuse(_: EngineRequest, connection: EngineConnection) -> bool:
            await connection.send(json_answer(body, status=400))
            return True

        front.behave = refuse
        answer = await gateway.ask(request(chat(), path=CHAT))
        assert error_of(answer) == (400, "request exceeds the available context size")
        await gateway.until_quiet()


async def test_a_backend_without_the_route_is_named(gateway: GatewayWorld) -> None:
    status, error = error_of(await gateway.ask(request(chat(), path=CHAT)))
    assert (status, error) == (400, "the backend of the model echo does not answer /api/chat")


async def test_tokens_of_an_answer_are_counted() -> None:
    async with world(engines=2) as gateway:
        _, front = await serving(gateway)

        async def answer(_: EngineRequest, connection: EngineConnection) -> bool:
            await connection.send(json_answer(b'{"done": true, "prompt_eval_count": 5, "eval_count": 7}'))
            return True

        front.behave = answer
        told(await gateway.ask(request(chat(), path=CHAT)))
        await gateway.until_quiet()
        sums = gateway.gateway.services.tally.of(MODEL)
        assert Usage(sums.prompt_tokens, sums.completion_tokens) == Usage(5, 7)
