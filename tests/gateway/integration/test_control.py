"""The gateway and control: the view, cold models, what is passed on, and what works while control is away."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import aiohttp
import msgspec
import pytest

from corral.gateway.answers import shown_to
from corral.gateway.config import GatewayConfig, Limits, TimeOuts
from corral.processes.gateway import open_gateway
from corral.wire.keys import hash_secret
from corral.wire.view import KeyEntry, Loading, ModelEntry, ViewChange, keys_digest
from tests.kit.clock import ManualClock
from tests.kit.engine import GuidedStream
from tests.kit.gateway import (
    ADMIN_KEY,
    GATEWAY_KEY,
    KEY,
    MODEL,
    GatewayWorld,
    RawClient,
    chat,
    replicas,
    request,
    world,
)
from tests.kit.loop_time import let_loop_time_pass
from tests.kit.waiting import WAIT_TIMEOUT


async def test_everything_else_is_passed_to_control_with_its_own_key(gateway: GatewayWorld) -> None:
    head = b"X-Forwarded-For: 6.6.6.6\r\nX_Forwarded_For: 6.6.6.6\r\nCookie: a=b\r\n"
    answer = await gateway.ask(request(b"{}", method="PUT", path="/api/v1/nodes?x=1", head=head))

    assert answer.status == 200
    [(method, target, headers, body)] = gateway.control.passed
    assert (method, target, body) == ("PUT", "/api/v1/nodes?x=1", b"{}")
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["Host"] == headers["X-Forwarded-Host"] == "corral.test"
    assert headers["X-Forwarded-For"] == "127.0.0.1"
    assert headers["X-Forwarded-Proto"] == "http"
    assert headers["Cookie"] == "a=b"
    assert "X_Forwarded_For" not in headers


async def test_a_head_request_passes_without_a_body(gateway: GatewayWorld) -> None:
    async with gateway.client() as client:
        for _ in range(2):
            await client.send(request(method="HEAD", path="/ui"))
            answer = await client.read_answer(is_head=True)
            assert (answer.status, int(answer.headers["content-length"]) > 0) == (200, True)
    await gateway.until_quiet()


async def test_web_sockets_pass_through(gateway: GatewayWorld) -> None:
    url = f"http://127.0.0.1:{gateway.port}/ws"
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.ws_connect(url) as socket:
        for text in ("one", "two" * 50_000):
            await socket.send_str(text)
            assert await socket.receive_str() == f"echo {text}"
    await gateway.until(lambda: gateway.gateway.server.client_count == 0)
    await gateway.until_quiet()


async def test_other_upgrades_are_ordinary_requests(gateway: GatewayWorld) -> None:
    head = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    answer = await gateway.ask(request(method="GET", path="/ui", head=head))

    assert answer.status == 200
    [(_, _, headers, _)] = gateway.control.passed
    assert not {"Upgrade", "HTTP2-Settings", "Connection"} & set(headers)


async def test_a_client_that_leaves_ends_its_request_to_control(gateway: GatewayWorld) -> None:
    async with gateway.client() as client:
        await client.send(request(method="GET", path="/api/hold"))
        await gateway.until(lambda: bool(gateway.control.passed))
    await gateway.until(lambda: gateway.gateway.server.client_count == 0)
    await gateway.until_quiet()
    gateway.control.hold.set()


async def test_models_answer_while_control_is_away_and_the_rest_says_so(gateway: GatewayWorld) -> None:
    await gateway.control.stop()

    for method, body in (("GET", None), ("POST", b"{}")):
        away = await gateway.ask(request(body, method=method, path="/api/v1/nodes"))
        assert (away.status, away.error["code"]) == (503, "control_unavailable")
        assert away.headers["retry-after"]
    assert (await gateway.ask(request(chat()))).is_whole
    assert (await gateway.ask(request(method="GET", path="/readyz", key=None))).status == 200
    cold = ModelEntry(name="cold")
    gateway.gateway.services.directory.hear(
        ViewChange(base=1, version=2, models=[cold]), now=asyncio.get_running_loop().time()
    )

    gateway.control.view = msgspec.structs.replace(gateway.control.view, version=7)
    served = gateway.control.views_served
    await gateway.control.start()
    await gateway.until(lambda: gateway.control.views_served > served)
    await gateway.until(lambda: gateway.gateway.services.directory.version == 7)
    assert (await gateway.ask(request(method="GET", path="/api/v1/nodes"))).status == 200


async def test_what_ended_while_control_was_away_is_reported_once_it_is_back(gateway: GatewayWorld) -> None:
    await gateway.control.stop()
    gateway.control.reports.clear()
    for _ in range(3):
        await gateway.ask(request(chat()))
    await gateway.control.start()

    def told() -> int:
        batches = {report.sequence: report for report in gateway.control.reports}
        return sum(line.requests for report in batches.values() for line in report.finished)

    await gateway.until(lambda: told() == 3)


async def test_a_gap_in_the_versions_brings_a_full_view(gateway: GatewayWorld) -> None:
    served = gateway.control.views_served
    gateway.control.view = msgspec.structs.replace(gateway.control.view, version=9)
    gateway.control.tell(ViewChange(base=8, version=9))

    await gateway.until(lambda: gateway.gateway.services.directory.version == 9)
    assert gateway.control.views_served == served + 1


async def test_a_revoked_key_stops_working_with_the_next_change(gateway: GatewayWorld) -> None:
    async with gateway.client() as client:
        for _ in range(2):
            await client.send(request(chat()))
            assert (await client.read_answer()).status == 200
        gateway.control.change(keys={})
        await gateway.until(lambda: gateway.gateway.services.directory.version == 2)

        await client.send(request(chat()))
        assert (await client.read_answer()).status == 401
    assert (await gateway.ask(request(chat()))).status == 401


async def test_a_key_expires_on_a_connection_that_has_used_it() -> None:
    clock = ManualClock()
    async with world() as source:
        ends = (clock.now() + timedelta(minutes=1)).timestamp()
        source.control.change(
            keys={hash_secret(KEY): KeyEntry(hash=hash_secret(KEY), scopes=("inference",), expires_at=ends)}
        )
        config = GatewayConfig(port=0, control_url=source.control.url, control_key=GATEWAY_KEY)
        async with open_gateway(config, clock=clock) as timed, RawClient.open(timed.port) as client:
            await source.until(lambda: timed.services.directory.version is not None)
            for status in (200, 200, 401):
                await client.send(request(chat()))
                assert (await client.read_answer()).status == status
                clock.jump(timedelta(seconds=40))


async def test_a_gateway_that_starts_without_control_answers_and_heals() -> None:
    async with world() as source:
        config = GatewayConfig(port=0, control_url="http://127.0.0.1:9", control_key=GATEWAY_KEY)
        async with open_gateway(config) as alone:
            other = GatewayWorld(gateway=alone, control=source.control, engines=source.engines, port=alone.port)
            assert (await other.ask(request(method="GET", path="/healthz", key=None))).status == 200
            assert (await other.ask(request(method="GET", path="/readyz", key=None))).status == 503
            assert (await other.ask(request(chat()))).error["code"] == "no_view"
            assert (await other.ask(request(method="GET", path="/ui"))).error["code"] == "control_unavailable"


# Cold models.


async def test_a_hundred_first_requests_wait_for_one_load_and_are_all_served() -> None:
    async with world() as cold:
        loaded = cold.control.view.replicas
        cold.control.change(replicas={})
        await cold.until(lambda: cold.gateway.services.directory.version == 2)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(cold.ask(request(chat()))) for _ in range(100)]
            await cold.until(lambda: cold.gateway.services.dispatcher.waiting() == {MODEL: 100})
            await cold.until(lambda: bool(cold.control.ensured))
            cold.control.change(replicas=loaded)
        assert all(task.result().is_whole for task in asked)
        assert set(cold.control.ensured) == {MODEL}
        await cold.until_quiet()


async def test_a_load_that_takes_longer_than_the_budget_tells_how_far_it_is() -> None:
    async with world(time_outs=TimeOuts(load=0.75)) as cold:
        cold.control.change(replicas={})
        await cold.until(lambda: cold.gateway.services.directory.version == 2)
        answer = await cold.ask(request(chat()))

        assert (answer.status, answer.headers["retry-after"]) == (503, "9")  # when it should be done
        assert answer.error["code"] == answer.error["type"] == "model_loading"
        assert answer.error["message"] == "model echo is staging"
        loading = msgspec.json.decode(answer.body, type=dict[str, object])["loading"]
        assert loading == {
            "model": MODEL,
            "state": "staging",
            "progress": 0,
            "bytes_sent": 10,
            "total_bytes": 100,
            "file_index": 0,
            "total_files": 0,
            "eta_seconds": 9.0,
        }
        await cold.until_quiet()


@pytest.mark.parametrize(
    ("eta", "retry_after", "header"), [(None, 7, "7"), (None, 0, "1"), (0.2, 7, "1"), (41.5, 7, "42"), (1e9, 7, "300")]
)
async def test_what_is_not_known_of_a_load_is_0_where_localai_says_so_and_left_out_elsewhere(
    eta: float | None, retry_after: int, header: str
) -> None:
    async with world(time_outs=TimeOuts(load=0.75)) as cold:
        cold.control.loading = Loading(
            model="", state="pending", reason="no_place", eta_seconds=eta, retry_after_seconds=retry_after
        )
        cold.control.change(replicas={})
        await cold.until(lambda: cold.gateway.services.directory.version == 2)
        answer = await cold.ask(request(chat()))

        assert (answer.status, answer.headers["retry-after"]) == (503, header)
        sentence = "no machine of the fleet can take it at the moment"
        assert answer.error["message"] == f"model echo is pending: {sentence}"
        loading = msgspec.json.decode(answer.body)["loading"]
        loading.pop("eta_seconds", None)
        unknown = dict.fromkeys(("progress", "bytes_sent", "total_bytes", "file_index", "total_files"), 0)
        assert loading == {"model": MODEL, "state": "pending", "reason": "no_place", "message": sentence} | unknown


PRIVATE = Loading(
    model="",
    state="failed",
    node="gpu-7",
    reason="refused_by_engine",
    message="gpu-7: The backend could not load the model (10.0.0.7:50052): /srv/models/small.gguf",
    engine_lines=["gguf: bad magic in /srv/models/small.gguf"],
)


async def test_a_load_that_cannot_succeed_is_told_at_once_without_what_is_for_administrators() -> None:
    async with world() as cold:
        cold.control.loading = PRIVATE
        cold.control.change(replicas={})
        await cold.until(lambda: cold.gateway.services.directory.version == 2)
        answer = await cold.ask(request(chat()))

        assert (answer.status, answer.error["code"]) == (503, "model_load_failed")
        assert answer.error["message"] == "model echo cannot be loaded: its engine could not load it"
        loading = msgspec.json.decode(answer.body)["loading"]
        shown = {"reason": "refused_by_engine", "message": "its engine could not load it"}
        assert loading == {"model": MODEL, "state": "failed", **shown}
        for private in (b"gpu-7", b"10.0.0.7", b"/srv", b"gguf"):
            assert private not in answer.body
        await cold.until_quiet()


async def test_administrators_see_all_of_a_load_that_failed() -> None:
    async with world() as cold:
        cold.control.loading = PRIVATE
        cold.control.change(replicas={})
        await cold.until(lambda: cold.gateway.services.directory.version == 2)
        answer = await cold.ask(request(chat(), key=ADMIN_KEY))

        assert answer.error["message"] == (
            f"model echo cannot be loaded: {PRIVATE.message}\n"
            "The engine's last lines:\n    gguf: bad magic in /srv/models/small.gguf"
        )
        loading = msgspec.json.decode(answer.body)["loading"]
        assert (loading["node"], loading["engine_lines"]) == ("gpu-7", PRIVATE.engine_lines)
        await cold.until_quiet()


@pytest.mark.parametrize("reason", ["", "a word of a newer control"])
async def test_a_reason_that_is_not_in_the_list_is_not_passed_on(reason: str) -> None:
    shown = shown_to(Loading(model="m", state="failed", reason=reason, message="/srv/x"), ("inference",))
    assert (shown.reason, shown.message) == ("", "")


async def test_a_cold_model_without_control_is_told_after_the_budget() -> None:
    async with world(time_outs=TimeOuts(load=0.75)) as cold:
        cold.control.change(replicas={})
        await cold.until(lambda: cold.gateway.services.directory.version == 2)
        await cold.control.stop()
        answer = await cold.ask(request(chat()))

        assert (answer.status, answer.error["code"]) == (503, "control_unavailable")
        await cold.until_quiet()


async def test_a_client_that_leaves_a_cold_model_is_forgotten() -> None:
    async with world() as cold:
        cold.control.change(replicas={})
        await cold.until(lambda: cold.gateway.services.directory.version == 2)
        async with cold.client() as client:
            await client.send(request(chat()))
            await cold.until(lambda: cold.gateway.services.dispatcher.waiting() == {MODEL: 1})
        await cold.until_quiet()
        cold.control.change(replicas=replicas(cold.engine))
        await cold.until(lambda: cold.gateway.services.directory.version == 3)
        assert not cold.engine.requests


# The end.


async def test_a_drain_finishes_answers_and_closes_idle_connections() -> None:
    pace = GuidedStream()
    async with world() as source:
        source.engine.behave = pace
        config = GatewayConfig(port=0, control_url=source.control.url, control_key=GATEWAY_KEY, limits=Limits())
        async with asyncio.TaskGroup() as group, open_gateway(config) as ending:
            other = GatewayWorld(gateway=ending, control=source.control, engines=source.engines, port=ending.port)
            await other.until(lambda: ending.services.directory.version is not None)
            idle = await asyncio.open_connection("127.0.0.1", ending.port)
            asked = group.create_task(other.ask(request(chat())))
            await pace.begun.acquire()

            async def let_go() -> None:
                assert await idle[0].read() == b""  # closed at once
                idle[1].close()
                assert not asked.done()
                pace.go_on.set()

            group.create_task(let_go())
        assert asked.result().is_whole


async def test_a_drain_does_not_wait_for_clients_that_still_send_what_was_refused() -> None:
    pace = GuidedStream()
    async with world() as source, AsyncExitStack() as clients:
        source.engine.behave = pace
        config = GatewayConfig(
            port=0,
            control_url=source.control.url,
            control_key=GATEWAY_KEY,
            limits=Limits(body=1000),
            time_outs=TimeOuts(known_linger=3600, drain=3600),
        )
        async with asyncio.TaskGroup() as group, open_gateway(config) as ending:
            other = GatewayWorld(gateway=ending, control=source.control, engines=source.engines, port=ending.port)
            await other.until(lambda: ending.services.directory.version is not None)
            asked = group.create_task(other.ask(request(chat())))
            await pace.begun.acquire()
            sending = await clients.enter_async_context(other.client())
            await sending.send(request(None, head=b"Content-Length: 500000\r\n") + b"x" * 2000)
            assert (await sending.read_answer()).status == 413
            assert ending.server.client_count == 2

            async def let_go() -> None:
                await other.until(lambda: ending.server.is_draining)
                let_loop_time_pass(timedelta(seconds=1))
                await other.until(lambda: ending.server.client_count == 1)
                assert not asked.done()
                pace.go_on.set()

            group.create_task(let_go())
        assert asked.result().is_whole


async def test_a_drain_has_an_end() -> None:
    async with world() as stuck:  # whose bound is short
        stuck.engine.behave = pace = GuidedStream()
        reader, writer = await asyncio.open_connection("127.0.0.1", stuck.port)
        writer.write(request(chat()))
        await pace.begun.acquire()
    async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
        answer = await reader.read()
    writer.close()
    assert not answer.endswith(b"0\r\n\r\n"), "the engine never finished it"


async def test_an_old_view_stops_serving_where_that_is_wanted() -> None:
    async with world() as source:
        config = GatewayConfig(
            port=0, control_url=source.control.url, control_key=GATEWAY_KEY, max_view_age=timedelta(hours=1)
        )
        async with open_gateway(config) as strict:
            other = GatewayWorld(gateway=strict, control=source.control, engines=source.engines, port=strict.port)
            await other.until(lambda: strict.services.directory.version is not None)
            async with other.client() as client:
                await client.send(request(chat()))
                assert (await client.read_answer()).status == 200
                strict.services.directory._heard_at -= 3601
                await client.send(request(chat()))
                assert (await client.read_answer()).error["code"] == "view_too_old"


async def test_other_keys_are_reported_at_once() -> None:
    """Control waits for it before it says that a key was created or revoked."""
    async with world() as source:
        config = GatewayConfig(
            port=0, control_url=source.control.url, control_key=GATEWAY_KEY, report_period=timedelta(hours=1)
        )
        async with open_gateway(config) as quiet:
            name = quiet.services.ledger.gateway
            await source.until(lambda: last_digest(source, name) == keys_digest(source.control.view.keys))
            source.control.change(keys={})
            await source.until(lambda: last_digest(source, name) == keys_digest({}))


def last_digest(source: GatewayWorld, gateway: str) -> str:
    return next((one.keys_digest for one in reversed(source.control.reports) if one.gateway == gateway), "")
