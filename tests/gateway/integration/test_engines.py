"""Engines that somebody else runs: how the gateway asks them, and what happens when they fail."""

import asyncio
import gzip
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from corral.gateway.config import TimeOuts
from corral.gateway.inference import Inference
from corral.wire.view import EngineEntry, ModelEntry, ReplicaEntry
from tests.gateway.unit.test_forms import END, FILE, part
from tests.kit.certificates import Authority
from tests.kit.engine import (
    EVENTS,
    STREAM_HEAD,
    EngineConnection,
    EngineRequest,
    StubEngine,
    answering,
    chunk,
    json_answer,
    streaming,
)
from tests.kit.gateway import MODEL, GatewayWorld, chat, replicas, request, world

ALL = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/audio/transcriptions")
QUICK = TimeOuts(replacement=0.15, first_byte=1.0, idle=1.0)


def external(engine: StubEngine, id: str = "e0", *, order: int = 0, **more: Any) -> ReplicaEntry:
    fields = {"key": f"key-of-{id}", "rank": 20 + order if order else 0, "routes": ALL, "limit": 0}
    entry = {"model": "there/m:4b", "is_fallback": order > 0}
    entry |= {name: more.pop(name) for name in list(more) if name in EngineEntry.__struct_fields__}
    return ReplicaEntry(
        id=id,
        model=MODEL,
        node_id=f"engine:{id}",
        state="elsewhere",
        url=engine.url,
        engine=EngineEntry(**entry),  # type: ignore[arg-type]
        **{**fields, **more},  # type: ignore[arg-type]
    )


@asynccontextmanager
async def engines_world(number: int = 1, *, fleet: int = 0, **more: Any) -> AsyncIterator[GatewayWorld]:
    """A gateway with so many replicas of the fleet's and engines elsewhere; the latter come after them in `engines`."""
    async with world(engines=fleet + number, time_outs=more.pop("time_outs", QUICK), **more) as made:
        yield made


def tell(made: GatewayWorld, *entries: ReplicaEntry, fleet: int = 0) -> None:
    own = replicas(*made.engines[:fleet])
    made.control.change(replicas=own | {entry.id: entry for entry in entries})


async def told(made: GatewayWorld, *entries: ReplicaEntry, fleet: int = 0) -> None:
    tell(made, *entries, fleet=fleet)
    version = made.control.view.version
    await made.until(lambda: made.gateway.services.directory.version == version)


async def test_an_engine_is_asked_under_its_name_with_its_key_and_path() -> None:
    async with engines_world() as made:
        await told(made, external(made.engine, base="/openai/v2"))
        head = b"Cookie: secret=1\r\nOpenAI-Organization: org\r\nX-Mine: kept\r\nX-Api-Key: other\r\n"
        answer = await made.ask(request(chat(), head=head))
        assert answer.status == 200
        [asked] = made.engine.requests
        assert asked.target == "/openai/v2/chat/completions"
        assert json.loads(asked.body) == {**json.loads(chat()), "model": "there/m:4b"}
        assert asked.header("Authorization") == "Bearer key-of-e0"
        assert asked.header("X-Mine") == "kept"
        assert asked.header("X-Request-ID")
        gone = ("Cookie", "OpenAI-Organization", "X-Api-Key", "X-Forwarded-For", "X-Forwarded-Proto")
        assert [name for name in gone if asked.header(name)] == []
        assert asked.header("Host") == f"127.0.0.1:{made.engine.port}"
        await made.until_quiet()


async def test_usage_and_requests_under_way_are_counted_for_the_engine() -> None:
    async with engines_world() as made:
        await told(made, external(made.engine))
        assert (await made.ask(request(chat()))).is_whole
        await made.until(lambda: any(report.finished for report in made.control.reports))
        [line] = [line for report in made.control.reports for line in report.finished]
        assert (line.replica, line.outcome, line.prompt_tokens, line.completion_tokens) == ("e0", "ok", 7, 4)
        await made.until_quiet()


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
async def test_bodies_of_any_size_and_framing_arrive_whole(size: int) -> None:
    async with engines_world() as made:
        made.engine.behave = answering
        await told(made, external(made.engine))
        body = chat(text="x" * size, stream=False)
        wanted = {**json.loads(body), "model": "there/m:4b"}
        halves = [body[: len(body) // 2], body[len(body) // 2 :], b""]
        chunked = b"".join(b"%x\r\n%b\r\n" % (len(half), half) for half in halves)
        chunked_head = request(head=b"Transfer-Encoding: chunked\r\n")
        packed = gzip.compress(body)
        for data in (
            request(body),
            chunked_head + chunked,
            request(packed, head=b"Content-Encoding: gzip\r\n"),
        ):
            assert (await made.ask(data)).status == 200
        assert [json.loads(asked.body) for asked in made.engine.requests] == [wanted] * 3
        assert made.engine.broken == []
        await made.until_quiet()


async def test_the_field_of_a_form_is_replaced() -> None:
    async with engines_world() as made:
        made.engine.behave = answering
        await told(made, external(made.engine))
        form = part("model", MODEL.encode()) + FILE + END
        head = b"Content-Type: multipart/form-data; boundary=b\r\n"
        assert (await made.ask(request(form, path="/v1/audio/transcriptions", head=head))).status == 200
        assert made.engine.requests[0].body == part("model", b"there/m:4b") + FILE + END
        await made.until_quiet()


async def test_a_body_with_two_models_never_reaches_an_engine() -> None:
    async with engines_world() as made:
        await told(made, external(made.engine))
        for body in (b'{"model":"secret","model":"echo"}', b'{"model":"echo","MODEL":"secret"}'):
            answer = await made.ask(request(body))
            assert (answer.status, answer.error["code"]) == (400, "ambiguous_model")
        assert made.engine.requests == []
        await made.until_quiet()


async def test_weights_divide_requests_and_orders_hold_them_back() -> None:
    async with engines_world(3) as made:
        for engine in made.engines:
            engine.behave = answering
        heavy, light, last = made.engines
        await told(
            made,
            external(heavy, "e0", weight=3),
            external(light, "e1"),
            external(last, "e2", order=1),
        )
        for _ in range(40):
            assert (await made.ask(request(chat(stream=False)))).status == 200
        assert [len(engine.requests) for engine in made.engines] == [30, 10, 0]
        await made.until_quiet()


async def test_a_full_engine_leaves_requests_to_the_next_in_order() -> None:
    async with engines_world(2) as made:
        release = asyncio.Event()

        async def slow(asked: EngineRequest, connection: EngineConnection) -> bool:
            await release.wait()
            return await answering(asked, connection)

        made.engines[0].behave, made.engines[1].behave = slow, answering
        await told(made, external(made.engines[0], "e0", limit=1), external(made.engines[1], "e1", order=1))
        async with made.client() as client:
            await client.send(request(chat(stream=False)))
            await made.engines[0].until(lambda: len(made.engines[0].requests) == 1)
            assert (await made.ask(request(chat(stream=False)))).status == 200
            release.set()
            assert (await client.read_answer()).status == 200
        assert [len(engine.requests) for engine in made.engines] == [1, 1]
        await made.until_quiet()


async def test_a_killed_engine_is_replaced_by_its_fallbacks_and_asked_again_when_it_is_back() -> None:
    async with engines_world(3) as made:
        for engine in made.engines:
            engine.behave = answering
        entries = [external(engine, f"e{place}", order=place) for place, engine in enumerate(made.engines)]
        await told(made, *entries)
        assert (await made.ask(request(chat(stream=False)))).status == 200
        await made.engines[0].stop()
        await made.engines[1].stop()
        assert (await made.ask(request(chat(stream=False)))).status == 200
        assert len(made.engines[2].requests) == 1
        await made.until(lambda: any(report.failures for report in made.control.reports))
        blamed = {failure.replica for report in made.control.reports for failure in report.failures}
        assert "e0" in blamed
        await made.engines[0].listen()
        lower = msgspec.structs.replace(entries[0], limit=7)
        await told(made, lower, *entries[1:])  # control has looked at it
        assert (await made.ask(request(chat(stream=False)))).status == 200
        assert len(made.engines[0].requests) == 2
        await made.until_quiet()


async def test_an_only_engine_that_is_dead_is_told_at_once() -> None:
    async with engines_world(time_outs=TimeOuts(replacement=30)) as made:
        await made.engine.stop()
        await told(made, external(made.engine))
        answer = await made.ask(request(chat()))
        assert (answer.status, answer.error["code"]) == (502, "replica_failed")
        assert made.control.ensured == []
        await made.until_quiet()


@pytest.mark.parametrize("status", [402, 403, 404, 429, 502, 503, 529])
async def test_an_engine_that_cannot_answer_leaves_it_to_another(status: int) -> None:
    async with engines_world(2) as made:

        async def refusing(_: EngineRequest, connection: EngineConnection) -> bool:
            await connection.send(json_answer(b'{"error":{"message":"no"}}', status=status))
            return True

        made.engines[0].behave, made.engines[1].behave = refusing, answering
        await told(made, external(made.engines[0], "e0"), external(made.engines[1], "e1", order=1))
        for _ in range(2):
            assert (await made.ask(request(chat(stream=False)))).status == 200
        # What a request may cause takes the engine away from nobody else.
        assert len(made.engines[0].requests) == (2 if status in (403, 404) else 1)
        await told(made, external(made.engines[0], "e0"))
        assert (await made.ask(request(chat(stream=False)))).status == status  # nobody else is left: as it said
        await made.until_quiet()


async def test_a_wrong_key_is_no_answer() -> None:
    async with engines_world(2) as made:

        async def keyed(asked: EngineRequest, connection: EngineConnection) -> bool:
            if asked.header("Authorization") == "Bearer right":
                return await answering(asked, connection)
            await connection.send(json_answer(b'{"error":{"message":"bad key"}}', status=401))
            return True

        made.engines[0].behave, made.engines[1].behave = keyed, answering
        await told(made, external(made.engines[0], "e0"), external(made.engines[1], "e1", order=1))
        assert (await made.ask(request(chat(stream=False)))).status == 200
        assert len(made.engines[1].requests) == 1
        await told(made, external(made.engines[0], "e0"))
        answer = await made.ask(request(chat(stream=False)))
        assert answer.status == 502
        assert "did not take its key" in str(answer.error["message"])
        await told(made, external(made.engines[0], "e0", key="right"))
        assert (await made.ask(request(chat(stream=False)))).status == 200
        await made.until_quiet()


async def test_what_an_engine_says_of_its_own_host_stays_there() -> None:
    async with engines_world(2) as made:
        theirs = b'Set-Cookie: a=b\r\nAlt-Svc: h3=":443"\r\nStrict-Transport-Security: max-age=9\r\nX-Model: kept\r\n'

        async def speaking(asked: EngineRequest, connection: EngineConnection) -> bool:
            assert asked.header("Accept-Encoding") is None
            await connection.send(json_answer(b"{}", head=theirs))
            return True

        async def redirecting(_: EngineRequest, connection: EngineConnection) -> bool:
            away = b"Location: http://elsewhere.test/steal\r\n"
            await connection.send(json_answer(b"{}", status=307, head=away))
            return True

        made.engine.behave = speaking
        await told(made, external(made.engine))
        answer = await made.ask(request(chat(stream=False), head=b"Accept-Encoding: gzip, br\r\n"))
        assert answer.headers["x-model"] == "kept"
        assert answer.headers.keys().isdisjoint({"set-cookie", "alt-svc", "strict-transport-security"})
        made.engine.behave = redirecting
        refused = await made.ask(request(chat(stream=False)))
        assert (refused.status, "location" in refused.headers) == (502, False)
        assert "redirect" in str(refused.error["message"])
        await made.until_quiet()


async def test_a_slow_engine_is_given_up_before_its_first_byte() -> None:
    async with engines_world(2) as made:

        async def silent(_: EngineRequest, connection: EngineConnection) -> bool:
            await connection.until_gone()
            return False

        made.engines[0].behave, made.engines[1].behave = silent, answering
        await told(made, external(made.engines[0], "e0"), external(made.engines[1], "e1", order=1))
        assert (await made.ask(request(chat(stream=False)))).status == 200
        assert [len(engine.requests) for engine in made.engines] == [1, 1]
        await made.until_quiet()


async def test_an_engine_that_dies_in_its_answer_ends_it_visibly() -> None:
    async with engines_world(2) as made:

        async def dying(_: EngineRequest, connection: EngineConnection) -> bool:
            await connection.send(STREAM_HEAD + chunk(EVENTS[0]))
            connection.cut()
            return False

        made.engines[0].behave = dying
        await told(made, external(made.engines[0], "e0"), external(made.engines[1], "e1", order=1))
        answer = await made.ask(request(chat()))
        assert (answer.status, answer.is_whole) == (200, False)
        assert made.engines[1].requests == []  # what has begun is never said twice
        assert (await made.ask(request(chat()))).is_whole
        assert len(made.engines[1].requests) == 1
        await made.until_quiet()


async def test_an_error_that_is_being_received_stays_the_answer_when_another_engine_comes() -> None:
    async with engines_world(2) as made:
        begun, more = asyncio.Event(), asyncio.Event()
        whole = json_answer(b'{"error":{"message":"no room"}}', status=503)

        async def hesitating(_: EngineRequest, connection: EngineConnection) -> bool:
            await connection.send(whole[:-5])
            begun.set()
            await more.wait()
            await connection.send(whole[-5:])
            return True

        made.engines[0].behave = hesitating
        await told(made, external(made.engines[0], "e0"))
        async with made.client() as client:
            await client.send(request(chat(stream=False)))
            await begun.wait()
            [connection] = made.gateway.server._clients
            await made.until(lambda: cast(Inference, connection._exchange)._error is not None)
            await told(made, external(made.engines[0], "e0"), external(made.engines[1], "e1"))
            more.set()
            answer = await client.read_answer()
        assert (answer.status, answer.body) == (503, b'{"error":{"message":"no room"}}')
        assert made.engines[1].requests == []
        await made.until_quiet()


# The fleet and engines.


async def test_the_fleet_answers_first_and_a_fallback_when_it_cannot() -> None:
    async with engines_world(1, fleet=1) as made:
        own, far = made.engines
        own.behave = far.behave = answering
        await told(made, external(far, order=1, has_fleet=True), fleet=1)
        assert (await made.ask(request(chat(stream=False)))).status == 200
        assert (len(own.requests), len(far.requests)) == (1, 0)
        assert json.loads(own.requests[0].body)["model"] == MODEL
        await own.stop()
        assert (await made.ask(request(chat(stream=False)))).status == 200
        assert json.loads(far.requests[0].body)["model"] == "there/m:4b"
        assert made.control.ensured == []  # control knows of the replica, and hears that it failed
        await made.until_quiet()


async def test_after_an_engine_the_fleet_gets_the_body_as_it_was() -> None:
    async with engines_world(1, fleet=1) as made:
        own, far = made.engines
        own.behave = answering
        await far.stop()
        first = msgspec.structs.replace(external(far, has_fleet=True), rank=-1)
        await told(made, first, fleet=1)
        body = chat(stream=False)
        assert (await made.ask(request(body))).status == 200
        assert own.requests[0].body == body
        assert own.requests[0].header("X-Forwarded-Proto") == "http"
        await made.until_quiet()


async def test_a_fallback_answers_while_the_fleet_is_asked_to_load() -> None:
    async with engines_world() as made:
        made.engine.behave = answering
        await told(made, external(made.engine, order=1, has_fleet=True))
        for _ in range(5):
            assert (await made.ask(request(chat(stream=False)))).status == 200
        await made.until(lambda: made.control.ensured != [])
        await told(made, external(made.engine, order=1))  # a model of engines alone: nothing to load
        made.control.ensured.clear()
        assert (await made.ask(request(chat(stream=False)))).status == 200
        assert set(made.control.ensured) <= {MODEL}
        await made.until_quiet()


async def test_a_dead_engine_waits_for_the_fleet_to_load() -> None:
    async with engines_world(1, fleet=1) as made:
        own, far = made.engines
        own.behave = answering
        await far.stop()
        await told(made, external(far, has_fleet=True))
        async with made.client() as client:
            await client.send(request(chat(stream=False)))
            await made.until(lambda: MODEL in made.control.ensured)
            tell(made, external(far, has_fleet=True), fleet=1)
            assert (await client.read_answer()).status == 200
        assert len(own.requests) == 1
        await made.until_quiet()


async def test_who_waits_for_the_fleet_after_a_dead_engine_hears_that_the_load_failed() -> None:
    async with engines_world() as made:
        await made.engine.stop()
        await told(made, external(made.engine, has_fleet=True))
        async with made.client() as client:
            await client.send(request(chat(stream=False)))
            await made.until(lambda: len(made.control.ensured) > 1)
            made.control.loading = msgspec.structs.replace(made.control.loading, state="failed")
            answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (503, "model_load_failed")
        assert set(made.control.ensured) == {MODEL}
        assert made.gateway.services.dispatcher.waiting() == {}
        await made.until(lambda: not made.gateway.services.dispatcher._waking)
        await made.until_quiet()


async def test_a_model_of_engines_alone_is_listed_and_refused_with_a_reason_when_they_are_gone() -> None:
    async with engines_world() as made:
        made.engine.behave = answering
        models = {"far": ModelEntry(name="far", owned_by="external", uses=("chat",))}
        made.control.loading = msgspec.structs.replace(made.control.loading, state="failed", reason="engines_away")
        made.control.change(models=models, replicas={})
        await made.until(lambda: made.gateway.services.directory.version == made.control.view.version)
        listed = json.loads((await made.ask(request(method="GET", path="/v1/models"))).body)
        assert [(entry["id"], entry["owned_by"]) for entry in listed["data"]] == [("far", "external")]
        answer = await made.ask(request(chat("far")))
        assert (answer.status, answer.error["code"]) == (503, "model_load_failed")
        assert "none of the engines elsewhere" in str(answer.error["message"])
        made.control.change(replicas={"e0": msgspec.structs.replace(external(made.engine), model="far")})
        await made.until(lambda: made.gateway.services.directory.version == made.control.view.version)
        assert (await made.ask(request(chat("far")))).status == 200
        await made.until_quiet()


# Where requests never go.


@pytest.mark.parametrize("url", ["http://169.254.169.254:80", "http://[fe80::1]:80", "http://0.0.0.0:80"])
async def test_no_request_goes_to_forbidden_addresses(url: str) -> None:
    async with engines_world() as made:
        await told(made, msgspec.structs.replace(external(made.engine), url=url))
        answer = await made.ask(request(chat()))
        assert answer.status == 502
        assert "nobody is sent to" in str(answer.error["message"])
        await made.until_quiet()


async def test_a_name_that_leads_elsewhere_by_now_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engines_world() as made:
        loop = asyncio.get_running_loop()
        addresses = ["169.254.169.254"]

        async def lookup(host: str, port: int, **_: object) -> list[Any]:
            return [(2, 1, 6, "", (address, port)) for address in addresses]

        class Rebound:
            """The loop's own lookup cannot be replaced; what asks it can."""

            getaddrinfo = staticmethod(lookup)

        monkeypatch.setattr("corral.base.own_network.asyncio.get_running_loop", lambda: Rebound)
        named = msgspec.structs.replace(external(made.engine), url=f"http://engine.test:{made.engine.port}")
        await told(made, named)
        assert (await made.ask(request(chat()))).status == 502
        assert made.engine.requests == []
        addresses[:] = ["127.0.0.1"]
        await told(made, msgspec.structs.replace(named, limit=9))
        assert (await made.ask(request(chat()))).status == 200
        assert made.engine.requests[0].header("Host") == f"engine.test:{made.engine.port}"
        assert loop.is_running()
        await made.until_quiet()


async def test_an_address_that_never_answers_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a broken IPv6 network. Linux answers nobody whose connection finds no room in the backlog."""
    async with engines_world(time_outs=TimeOuts(connect=2.0)) as made, AsyncExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.2", made.engine.port), backlog=0))
        for _ in range(3):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(silent.getsockname())

        async def lookup(host: str, port: int) -> list[str]:
            return ["127.0.0.2", "127.0.0.1"]

        monkeypatch.setattr("corral.gateway.dialling.allowed_addresses", lookup)
        monkeypatch.setattr("corral.gateway.dialling._LONGEST_TRY", 0.1, raising=False)
        await told(made, msgspec.structs.replace(external(made.engine), url=f"http://engine.test:{made.engine.port}"))
        assert (await made.ask(request(chat()))).status == 200
        await made.until_quiet()


async def test_a_replica_s_address_is_known_in_every_spelling() -> None:
    async with engines_world(0, fleet=1) as made:
        directory, port = made.gateway.services.directory, made.engine.port
        await made.until(lambda: directory.version is not None)
        for host in ("127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1", "64:ff9b::127.0.0.1", "2002:7f00:1::"):
            assert directory.is_fleet_address(host, port)
        for host in ("127.0.0.2", "::1", "localhost"):
            assert not directory.is_fleet_address(host, port)


async def test_corral_itself_is_no_engine() -> None:
    async with engines_world(1, fleet=1) as made:
        own, far = made.engines
        for port in (made.port, made.control.port, own.port):
            itself = msgspec.structs.replace(external(far), url=f"http://127.0.0.1:{port}", rank=-1)
            if port == own.port:
                tell(made, itself, fleet=1)
                asked = own.requests
                before = len(asked)
            else:
                tell(made, itself)
                asked, before = [], 0
            version = made.control.view.version
            await made.until(lambda version=version: made.gateway.services.directory.version == version)
            answer = await made.ask(request(chat()))
            if port == own.port:  # the fleet's own replica answers, under the name that it knows
                assert answer.status == 200
                assert json.loads(asked[before].body)["model"] == MODEL
            else:
                assert "nobody is sent to" in str(answer.error["message"])
        await made.until_quiet()


async def test_fleets_that_lead_to_each_other_end_the_circle() -> None:
    async with engines_world() as made:
        made.engine.behave = answering
        await told(made, external(made.engine))
        for sent, arrived in ((b"", "1"), (b"Corral-Hops: 3\r\n", "4")):
            assert (await made.ask(request(chat(stream=False), head=sent))).status == 200
            assert made.engine.requests[-1].header("Corral-Hops") == arrived
        for sent in (b"Corral-Hops: 4\r\n", b"Corral-Hops: 999999999999\r\n", b"corral-hops: x\r\n"):
            answer = await made.ask(request(chat(stream=False), head=sent))
            assert (answer.status, answer.error["code"]) == (508, "engine_loop")
        await made.until_quiet()


# TLS.


def serving_tls(authority: Authority, name: str, *, host: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue(name, host=host))
    return context


async def test_an_engine_behind_tls_is_checked_against_its_own_authority(tmp_path: Path) -> None:
    good, other = Authority(tmp_path / "good"), Authority(tmp_path / "other")
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(engines_world())
        far = await stack.enter_async_context(StubEngine(streaming, tls=serving_tls(good, "far")))
        wrong = await stack.enter_async_context(StubEngine(tls=serving_tls(good, "wrong", host="elsewhere.test")))
        await told(made, external(far, ca=good.file.read_text()))
        answers = await asyncio.gather(*(made.ask(request(chat())) for _ in range(5)))
        assert [answer.is_whole for answer in answers] == [True] * 5
        big = await made.ask(request(chat(text="x" * 2_000_000)))
        assert big.is_whole
        assert json.loads(far.requests[-1].body)["model"] == "there/m:4b"
        assert far.accepted <= 5  # connections are kept
        for entry in (
            external(far, "e1", ca=other.file.read_text()),
            external(far, "e2"),  # the authorities of the system
            external(wrong, "e3", ca=good.file.read_text()),  # another name in its certificate
        ):
            await told(made, entry)
            answer = await made.ask(request(chat()))
            assert answer.status == 502
            assert "certificate is not trusted" in str(answer.error["message"])
        await made.until_quiet()
