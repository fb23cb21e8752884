"""Requests for what a model's replicas do not answer, and for what a model is not for."""

import msgspec

from corral.gateway.config import TimeOuts
from corral.wire.view import ModelEntry
from tests.kit.engine import EngineConnection, EngineRequest
from tests.kit.gateway import MODEL, GatewayWorld, chat, replicas, request, world

DIRECT = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses")


async def told(gateway: GatewayWorld, *routes: tuple[str, ...] | None) -> None:
    """Each engine of the gateway answers these routes from now on."""
    entries = replicas(*gateway.engines)
    changed = {
        id: msgspec.structs.replace(entry, routes=answered)
        for (id, entry), answered in zip(entries.items(), routes, strict=True)
    }
    gateway.control.change(replicas=changed)
    await gateway.until(lambda: gateway.gateway.services.directory.version == gateway.control.view.version)


async def test_routes_that_a_replica_declares_reach_it_and_others_are_refused_by_name(gateway: GatewayWorld) -> None:
    await told(gateway, DIRECT)

    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/responses"):
        assert (await gateway.ask(request(chat(), path=path))).status == 200
    asked = [one.target for one in gateway.engine.requests]
    assert asked == ["/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/responses"]
    answer = await gateway.ask(request(chat(), path="/v1/embeddings"))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unsupported_by_model", "model")
    assert answer.error["message"] == "the backend of the model echo does not answer /v1/embeddings"
    await gateway.until_quiet()


async def test_a_replica_that_declares_nothing_answers_what_adapters_do(gateway: GatewayWorld) -> None:
    assert (await gateway.ask(request(chat(), path="/v1/rerank"))).status == 200
    answer = await gateway.ask(request(chat(), path="/v1/responses"))
    assert (answer.status, answer.error["code"]) == (400, "unsupported_by_model")


async def test_of_several_replicas_one_that_answers_the_route_is_found() -> None:
    async with world(engines=3) as gateway:
        await told(gateway, None, (), DIRECT)

        for _ in range(6):
            assert (await gateway.ask(request(chat(), path="/v1/responses"))).status == 200
        assert [len(engine.requests) for engine in gateway.engines] == [0, 0, 6]
        assert not gateway.gateway.services.tally.retries
        await gateway.until_quiet()


async def test_a_failure_is_told_as_one_though_another_replica_does_not_answer_the_route() -> None:
    async def hang_up(_: EngineRequest, __: EngineConnection) -> bool:
        return False

    async with world(engines=2, time_outs=TimeOuts(replacement=0.1)) as gateway:
        await told(gateway, DIRECT, ())
        gateway.engines[0].behave = hang_up

        answer = await gateway.ask(request(chat(), path="/v1/responses"))

        assert (answer.status, answer.error["code"]) == (502, "replica_failed")
        assert [len(engine.requests) for engine in gateway.engines] == [1, 0]
        await gateway.until_quiet()


async def test_a_request_that_waited_for_a_load_is_refused_when_the_replica_does_not_answer_it(
    gateway: GatewayWorld,
) -> None:
    there = gateway.control.view.replicas
    gateway.control.change(replicas={})
    async with gateway.client() as client:
        await client.send(request(chat(), path="/v1/responses"))
        await gateway.until(lambda: bool(gateway.control.ensured))
        gateway.control.change(replicas=there)
        assert (await client.read_answer()).status == 400
    await gateway.until_quiet()


async def test_a_model_is_not_asked_for_what_it_is_not_for(gateway: GatewayWorld) -> None:
    models = {MODEL: ModelEntry(name=MODEL, uses=("embeddings", "rerank")), "x": ModelEntry(name="x", alias_of=MODEL)}
    gateway.control.change(models=models, replicas={})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)

    for path, use in (
        ("/v1/chat/completions", "chat"),
        ("/v1/completions", "completion"),
        ("/v1/responses", "chat"),
        ("/v1/audio/speech", "speech"),
        ("/v1/vad", "vad"),
    ):
        answer = await gateway.ask(request(chat("x"), path=path))
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unsupported_by_model", "model")
        said = f"the model echo is for embeddings and rerank, and not for {use}; "
        assert str(answer.error["message"]).startswith(said)
    assert not gateway.control.ensured  # nothing was loaded for it


async def test_a_model_is_asked_for_what_it_is_for(gateway: GatewayWorld) -> None:
    gateway.control.change(models={MODEL: ModelEntry(name=MODEL, uses=("embeddings",))})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)

    for path in ("/v1/embeddings", "/tokenize"):
        assert (await gateway.ask(request(chat(), path=path))).status == 200
