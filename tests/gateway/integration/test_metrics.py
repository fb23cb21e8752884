"""What a gateway counts, what it reports of it, and what it shows itself while control is away."""

import asyncio
import re
from datetime import timedelta

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from corral.gateway.config import GatewayConfig, Limits, TimeOuts
from corral.gateway.head import _passed_on
from corral.processes.gateway import open_gateway
from corral.wire.keys import hash_secret
from corral.wire.metrics import GatewayCounts, ModelCounts
from corral.wire.view import ControlState, KeyEntry
from tests.kit.engine import EngineConnection, EngineRequest, GuidedStream
from tests.kit.gateway import GATEWAY_KEY, KEY, MODEL, ClientAnswer, GatewayWorld, chat, keys, replicas, request, world

ADMIN = "corral_test-key-with-the-scope-admin"


def counts(gateway: GatewayWorld) -> GatewayCounts:
    told = gateway.control.reports[-1].counts
    assert told is not None
    return told


def of_model(gateway: GatewayWorld) -> ModelCounts:
    return counts(gateway).models[MODEL]


async def next_report(gateway: GatewayWorld) -> GatewayCounts:
    """One that was put together after this call: the one under way may be older."""
    for _ in range(2):
        await gateway.control.until_news()
    return counts(gateway)


def ended(model: ModelCounts) -> dict[tuple[int, str], int]:
    return {(line.code, line.outcome): line.requests for line in model.requests}


async def ask_metrics(gateway: GatewayWorld, key: str | None) -> ClientAnswer:
    return await gateway.ask(request(method="GET", path="/metrics", key=key))


def samples(answer: ClientAnswer) -> dict[tuple[str, str], float]:
    """By name and model, or whatever else tells the samples apart."""
    return {
        (sample.name, next((value for name, value in sample.labels.items() if name != "gateway"), "")): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


async def test_a_request_is_counted_by_model_code_and_outcome(gateway: GatewayWorld) -> None:
    body = chat()
    answer = await gateway.ask(request(body))
    await gateway.ask(request(chat("other")))  # an alias counts for its model
    await gateway.until_quiet()
    told = await next_report(gateway)

    model = told.models[MODEL]
    assert ended(model) == {(200, "ok"): 2}
    assert (model.prompt_tokens, model.completion_tokens) == (14, 8)
    assert model.request_bytes == len(body) + len(chat("other"))
    assert model.answer_bytes > 2 * len(answer.body)  # with the framing of its chunks
    assert (told.connections, told.upstream_idle, told.upstream_open) == (2, 1, 1)
    assert told.memory_bytes > 1 << 20
    assert told.cpu_seconds > 0
    assert told.view_age_seconds is not None


async def test_what_is_under_way_and_what_waits_is_told_by_model() -> None:
    async with world(limit=1) as busy:
        busy.engine.behave = pace = GuidedStream()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(busy.ask(request(chat()))) for _ in range(3)]
            await pace.begun.acquire()
            await busy.until(lambda: busy.gateway.services.dispatcher.waiting() == {MODEL: 2})
            told = await next_report(busy)
            model = told.models[MODEL]
            assert (model.in_flight, model.waiting, model.waits) == (1, 2, 0)
            assert told.open_connections == 3
            pace.go_on.set()
        assert all(task.result().is_whole for task in asked)
        await busy.until_quiet()
        model = (await next_report(busy)).models[MODEL]
        assert (model.in_flight, model.waiting, model.waits) == (0, 0, 2)
        assert model.wait_seconds > 0


async def test_refusals_are_counted_by_their_code(gateway: GatewayWorld) -> None:
    await gateway.ask(request(chat(), key="wrong"))
    await gateway.ask(request(chat("unknown")))
    await gateway.ask(request(method="GET", path="/api/v1/nodes"))
    told = await next_report(gateway)

    assert told.refusals == {"invalid_api_key": 1, "model_not_found": 1}
    assert told.passed == {200: 1}
    assert MODEL not in told.models or not told.models[MODEL].requests


async def test_a_full_queue_counts_for_its_model() -> None:
    async with world(limit=1, limits=Limits(queue=1)) as full:
        full.engine.behave = pace = GuidedStream()
        async with asyncio.TaskGroup() as group:
            group.create_task(full.ask(request(chat())))
            await pace.begun.acquire()
            group.create_task(full.ask(request(chat())))
            await full.until(lambda: full.gateway.services.dispatcher.waiting() == {MODEL: 1})
            assert (await full.ask(request(chat()))).status == 429
            assert ended((await next_report(full)).models[MODEL]) == {(429, "failed"): 1}
            pace.go_on.set()


async def test_retries_failures_and_those_who_left_are_told_apart() -> None:
    async def refuse(_: EngineRequest, connection: EngineConnection) -> bool:
        connection.cut()
        return False

    async with world(engines=2) as pair:
        pair.engines[0].behave = refuse
        for _ in range(2):
            assert (await pair.ask(request(chat()))).status == 200
        pair.engines[1].behave = pace = GuidedStream()
        async with pair.client() as client:
            await client.send(request(chat()))
            await pace.begun.acquire()
        await pair.until_quiet()
        told = await next_report(pair)
        assert told.retries == 1
        assert ended(told.models[MODEL]) == {(200, "ok"): 2, (200, "client_gone"): 1}


async def test_time_outs_are_counted_by_their_name() -> None:
    async def say_nothing(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.until_gone()
        return False

    async with world(time_outs=TimeOuts(first_byte=0.1, load=0.1)) as slow:
        slow.engine.behave = say_nothing
        assert (await slow.ask(request(chat()))).status == 504
        slow.control.change(replicas={})
        await slow.until(lambda: slow.gateway.services.directory.version == 2)
        assert (await slow.ask(request(chat()))).status == 503
        told = await next_report(slow)
        assert told.time_outs == {"first_byte": 1, "load": 1}
        assert ended(told.models[MODEL]) == {(503, "failed"): 1, (504, "timed_out"): 1}


async def test_a_request_that_outlives_its_replica_waits_once_and_is_retried_once() -> None:
    async def hang_up(_: EngineRequest, connection: EngineConnection) -> bool:
        connection.cut()
        return False

    async with world(engines=2, time_outs=TimeOuts(replacement=0.1)) as pair:
        pair.engines[0].behave = hang_up
        pair.control.change(replicas=replicas(pair.engines[0]))
        await pair.until(lambda: pair.gateway.services.directory.version == 2)
        assert (await pair.ask(request(chat()))).status == 502
        told = await next_report(pair)
        assert (told.retries, told.time_outs) == (0, {"replacement": 1})

    async with world(engines=2) as pair:
        both = pair.control.view.replicas
        pair.engines[0].behave = hang_up
        pair.control.change(replicas={"r0": both["r0"]})
        await pair.until(lambda: pair.gateway.services.directory.version == 2)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(pair.ask(request(chat())))
            await pair.until(lambda: pair.gateway.services.dispatcher.waiting() == {MODEL: 1})
            pair.control.change(replicas=both)
        assert asked.result().is_whole
        told = await next_report(pair)
        assert (told.retries, told.models[MODEL].waits, told.time_outs) == (1, 1, {})


async def test_counts_never_go_back_and_outlive_replicas(gateway: GatewayWorld) -> None:
    seen = []
    for _ in range(3):
        await gateway.ask(request(chat()))
        gateway.control.change(replicas={})
        gateway.control.change(replicas=replicas(gateway.engine))
        version = gateway.control.view.version
        await gateway.until(lambda version=version: gateway.gateway.services.directory.version == version)  # type: ignore[misc]
        seen.append(ended((await next_report(gateway)).models[MODEL])[200, "ok"])
    assert seen == [1, 2, 3]


async def test_the_last_report_says_good_bye() -> None:
    async with world() as source:
        config = GatewayConfig(
            port=0, control_url=source.control.url, control_key=GATEWAY_KEY, report_period=timedelta(hours=1)
        )
        async with open_gateway(config) as ending:
            name = ending.services.ledger.gateway
        last = [report for report in source.control.reports if report.gateway == name]
        assert [report.is_last for report in last] == [True]


# While control is away.


async def know_administrator(gateway: GatewayWorld) -> None:
    entry = KeyEntry(hash=hash_secret(ADMIN), id="admin", scopes=("admin",))
    gateway.control.change(keys={**keys(), entry.hash: entry})
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)


@pytest.mark.parametrize(("key", "status", "code"), [(None, 401, 401), (KEY, 403, "missing_scope")])
async def test_metrics_are_not_shown_to_just_anybody(
    gateway: GatewayWorld, key: str | None, status: int, code: int | str
) -> None:
    await gateway.control.stop()
    answer = await ask_metrics(gateway, key)
    assert (answer.status, answer.error["code"]) == (status, code)


async def test_administrators_see_the_gateways_own_series_while_control_is_away(gateway: GatewayWorld) -> None:
    await know_administrator(gateway)
    await gateway.ask(request(chat()))
    await gateway.until_quiet()
    await gateway.control.stop()
    answer = await ask_metrics(gateway, ADMIN)

    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert answer.body.startswith(b"# control is away")
    found = samples(answer)
    assert found["corral_gateway_requests_total", MODEL] == 1
    assert found["corral_gateway_in_flight", MODEL] == 0
    assert found["corral_gateway_resident_memory_bytes", ""] > 0
    assert re.search(rb'gateway="%b"' % gateway.gateway.services.ledger.gateway.encode(), answer.body)


async def test_metrics_that_are_public_stay_public(gateway: GatewayWorld) -> None:
    gateway.control.change(control=ControlState(metrics_public=True))
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
    await gateway.control.stop()
    async with gateway.client() as client:
        for _ in range(2):  # the connection goes on
            await client.send(request(method="GET", path="/metrics", key=None))
            assert (await client.read_answer()).status == 200


async def test_metrics_of_a_control_that_hangs_come_from_the_gateway() -> None:
    async with world(time_outs=TimeOuts(first_byte=0.1)) as gateway:
        gateway.control.change(control=ControlState(metrics_public=True))
        await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
        gateway.control.hangs_at = "/metrics"
        answer = await ask_metrics(gateway, None)
        assert (answer.status, answer.body[:17]) == (200, b"# control is away")
        gateway.control.hold.set()


async def test_metrics_come_from_control_while_it_is_there(gateway: GatewayWorld) -> None:
    await know_administrator(gateway)
    assert msgspec.json.decode((await ask_metrics(gateway, ADMIN)).body) == {"path": "/metrics"}


# Readiness.


async def ready(gateway: GatewayWorld) -> tuple[int, dict[str, object]]:
    answer = await gateway.ask(request(method="GET", path="/readyz", key=None))
    return answer.status, msgspec.json.decode(answer.body, type=dict[str, object])


async def test_readiness_tells_what_control_lacks(gateway: GatewayWorld) -> None:
    gateway.control.change(control=ControlState(problems=("NATS is not connected",)))
    await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
    status, told = await ready(gateway)
    assert (status, told["control"]) == (200, {"state": "impaired", "problems": ["NATS is not connected"]})

    gateway.control.change(control=ControlState())
    await gateway.until(lambda: gateway.gateway.services.directory.version == 3)
    assert (await ready(gateway))[1]["control"] == {"state": "up"}


async def test_readiness_tells_that_control_is_away_and_for_how_long(gateway: GatewayWorld) -> None:
    await gateway.control.stop()
    directory = gateway.gateway.services.directory
    await gateway.until(lambda: directory.away_since is not None)
    assert directory.away_since is not None
    directory.away_since -= 60
    status, told = await ready(gateway)

    control = told["control"]
    assert isinstance(control, dict)
    assert (status, control["state"], control["for_seconds"] >= 60) == (200, "away", True)
    await gateway.control.start()
    await gateway.until(lambda: directory.away_since is None)
    assert (await ready(gateway))[1]["control"] == {"state": "up"}


async def test_a_view_that_is_too_old_is_not_ready() -> None:
    async with world() as source:
        config = GatewayConfig(
            port=0, control_url=source.control.url, control_key=GATEWAY_KEY, max_view_age=timedelta(hours=1)
        )
        async with open_gateway(config) as strict:
            other = GatewayWorld(gateway=strict, control=source.control, engines=source.engines, port=strict.port)
            await other.until(lambda: strict.services.directory.version is not None)
            assert (await ready(other))[0] == 200
            strict.services.directory._heard_at -= 3601
            status, told = await ready(other)
            assert (status, told["status"]) == (503, "view too old")
            assert (await other.ask(request(method="GET", path="/healthz", key=None))).status == 200


async def test_first_bytes_and_the_time_of_answers_are_measured(gateway: GatewayWorld) -> None:
    await gateway.ask(request(chat()))
    await gateway.ask(request(chat("nobody")))
    await gateway.until_quiet()
    model = (await next_report(gateway)).models[MODEL]

    assert sum(model.first_byte.counts) == 1
    assert 0 <= model.first_byte.sum < 60
    assert 0 <= model.answer_seconds < 60


async def test_a_trace_goes_on_through_the_gateway_and_nobody_remembers_it(gateway: GatewayWorld) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    lines = f"traceparent: {trace}\r\nTraceState: vendor=a, other=b\r\n".encode()
    await gateway.ask(request(chat(), head=lines))

    (asked,) = gateway.engine.requests
    assert (asked.header("traceparent"), asked.header("tracestate")) == (trace, "vendor=a, other=b")
    assert not any(b"trace" in line.lower() for line in _passed_on)
