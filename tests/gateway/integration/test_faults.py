"""Engines and clients that misbehave: nobody hangs, counts are exact, and only who is concerned notices."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import msgspec
import pytest

from corral.gateway.config import Limits, TimeOuts
from corral.wire.adapter import MODEL_GONE_STATUS
from tests.kit.engine import (
    EVENTS,
    STREAM_HEAD,
    Behaviour,
    EngineConnection,
    EngineRequest,
    GuidedStream,
    StubEngine,
    answering,
    chunk,
    json_answer,
    streaming,
)
from tests.kit.gateway import GatewayWorld, chat, replicas, request, world

ALONE = TimeOuts(replacement=0.15)
"""Nobody comes in place of a replica that hung up. Whoever answers may take as long as the machine makes it."""
HANGING = replace(ALONE, first_byte=1.0, idle=1.0)
"""For replicas that say nothing: the other one must have answered by then."""
STRICT = TimeOuts(head=0.15, body=0.15, linger=0.1)
"""For clients that send too slowly."""


@pytest.fixture
async def pair() -> AsyncIterator[GatewayWorld]:
    async with world(engines=2, time_outs=ALONE) as made:
        yield made


@pytest.fixture
async def lone() -> AsyncIterator[GatewayWorld]:
    async with world(time_outs=ALONE) as made:
        yield made


@pytest.fixture
async def strict() -> AsyncIterator[GatewayWorld]:
    async with world(time_outs=STRICT) as made:
        yield made


def failing(name: str, *, engines: int = 1) -> AbstractAsyncContextManager[GatewayWorld]:
    """For a failure of this name."""
    return world(engines=engines, time_outs=HANGING if name.startswith("hangs") else ALONE)


def saying(data: bytes, *, then: str = "hang") -> Behaviour:
    """Send this, then hang, close, break the connection, or go on."""

    async def behave(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(data)
        if then == "hang":
            await connection.until_gone()
        elif then == "break":
            connection.cut()
        return then == "go on"

    return behave


BEFORE_THE_FIRST_BYTE = {
    "hangs": saying(b""),
    "closes": saying(b"", then="close"),
    "breaks": saying(b"", then="break"),
    "half a head": saying(b"HTTP/1.1 200 OK\r\nContent-Le", then="close"),
    "hangs in the head": saying(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "garbage": saying(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "binary": saying(bytes(range(256)) * 4),
    "hangs after bare line feeds": saying(b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}"),
    "two lengths": saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "endless head": saying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000),
    "more than one answer": saying(json_answer(b"{}") + json_answer(b"{}"), then="go on"),
    "wrong key": saying(json_answer(b"{}", status=401), then="go on"),
    "no model": saying(json_answer(b"{}", status=MODEL_GONE_STATUS), then="go on"),
    "no backend": saying(
        b"HTTP/1.1 503 Gone\r\nCorral-Backend-Gone: true\r\nContent-Length: 2\r\n\r\n{}", then="go on"
    ),
    "switches protocols": saying(b"HTTP/1.1 101 Fine\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"),
}
AFTER_THE_FIRST_BYTE = {
    "hangs": saying(STREAM_HEAD + chunk(EVENTS[0])),
    "closes": saying(STREAM_HEAD + chunk(EVENTS[0]), then="close"),
    "breaks": saying(STREAM_HEAD + chunk(EVENTS[0]), then="break"),
    "short": saying(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n" + EVENTS[0], then="close"),
}


@pytest.mark.parametrize("name", BEFORE_THE_FIRST_BYTE)
async def test_a_failure_before_the_first_byte_is_retried_on_the_other_replica(name: str) -> None:
    async with failing(name, engines=2) as pair:
        pair.engines[0].behave = BEFORE_THE_FIRST_BYTE[name]

        answers = [await pair.ask(request(chat())) for _ in range(2)]

        assert [answer.status for answer in answers] == [200, 200]
        assert all(EVENTS[0] in answer.body for answer in answers)
        await pair.until_quiet()
        await pair.until(lambda: any(report.failures for report in pair.control.reports))
        [failure] = [one for report in pair.control.reports for one in report.failures]
        assert failure.replica == "r0"


@pytest.mark.parametrize("name", BEFORE_THE_FIRST_BYTE)
async def test_a_failure_of_the_only_replica_is_an_error(name: str) -> None:
    async with failing(name) as lone:
        lone.engine.behave = BEFORE_THE_FIRST_BYTE[name]

        answer = await lone.ask(request(chat()))

        assert answer.status in (502, 504)
        assert answer.error["code"] in ("replica_failed", "replica_timed_out")
        await lone.until_quiet()
        assert lone.gateway.services.pool.open_count == 0


async def test_a_replica_that_left_the_view_and_is_back_is_asked_again() -> None:
    """So it is with replicas behind an adapter that died: their ids stay, and nobody loads them again."""
    async with world() as lone:
        there, lone.engine.behave = lone.control.view.replicas, saying(b"", then="close")
        async with lone.client() as client:
            await client.send(request(chat()))
            await lone.until(lambda: bool(lone.gateway.services.dispatcher.waiting()))
            lone.control.change(replicas={})
            await lone.until(lambda: bool(lone.control.ensured))
            lone.engine.behave = answering
            lone.control.change(replicas=there)

            assert (await client.read_answer()).status == 200
        await lone.until_quiet()


@pytest.mark.parametrize("name", AFTER_THE_FIRST_BYTE)
async def test_a_failure_after_the_first_byte_is_not_hidden(name: str) -> None:
    async with failing(name, engines=2) as pair:
        for engine in pair.engines:
            engine.behave = AFTER_THE_FIRST_BYTE[name]

        answer = await pair.ask(request(chat()))

        assert answer.status == 200
        assert not answer.is_whole
        assert sum(len(engine.requests) for engine in pair.engines) == 1
        await pair.until_quiet()


async def test_garbage_in_the_middle_of_an_answer_ends_it(lone: GatewayWorld) -> None:
    sent = asyncio.Event()

    async def behave(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(STREAM_HEAD + chunk(EVENTS[0]))
        await sent.wait()
        await connection.send(b"zz\r\nnot a chunk")
        await connection.until_gone()
        return False

    lone.engine.behave = behave
    async with lone.client() as client:
        await client.send(request(chat()))
        await client.read_head()
        sent.set()
        assert b"not a chunk" not in await client.until_closed()
    await lone.until_quiet()


async def test_an_engine_that_refuses_costs_nothing(pair: GatewayWorld) -> None:
    await pair.engines[0].stop()
    answers = [await pair.ask(request(chat())) for _ in range(4)]

    assert [answer.status for answer in answers] == [200] * 4
    await pair.until(lambda: sum(one.times for report in pair.control.reports for one in report.failures) > 0)
    assert sum(one.times for report in pair.control.reports for one in report.failures) == 1


@pytest.mark.parametrize("how", ["refuses", "closes"])
async def test_requests_outlive_their_only_replica_when_control_brings_another_one(how: str) -> None:
    """As after the death of a worker: told, gone from the view, asked for, loaded elsewhere."""
    async with world(engines=2) as made:
        dead, other = made.engines
        made.control.change(replicas=replicas(dead))
        dead.behave = BEFORE_THE_FIRST_BYTE["closes"]
        if how == "refuses":
            await dead.stop()
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(made.ask(request(chat()))) for _ in range(5)]
            await made.until(lambda: sum(made.gateway.services.dispatcher.waiting().values()) == 5)
            await made.until(lambda: any(report.failures for report in made.control.reports))
            made.control.change(replicas={})
            await made.until(lambda: bool(made.control.ensured))
            made.control.change(replicas={"r9": msgspec.structs.replace(replicas(other)["r0"], id="r9")})

        answers = [task.result() for task in asking]
        assert [(answer.status, answer.is_whole) for answer in answers] == [(200, True)] * 5
        assert len(other.requests) == 5
        await made.until_quiet()


async def test_a_request_that_no_replica_has_seen_outlives_several() -> None:
    async with world(engines=4) as made:
        *dead, alive = made.engines
        for engine in dead:
            await engine.stop()
        made.control.change(replicas=replicas(dead[0]))
        asking = asyncio.create_task(made.ask(request(chat())))
        for number, engine in enumerate((*dead[1:], alive), start=1):
            await made.until(lambda: sum(made.gateway.services.dispatcher.waiting().values()) == 1)
            made.control.change(
                replicas={f"n{number}": msgspec.structs.replace(replicas(engine)["r0"], id=f"n{number}")}
            )

        assert (await asking).status == 200
        assert len(alive.requests) == 1


async def test_requests_outlive_a_replica_whose_url_changes() -> None:
    """As when an adapter dies and comes back at another port: the replica is the same, and in the view all the time."""
    async with world(engines=2) as made:
        dead, other = made.engines
        made.control.change(replicas=replicas(dead))
        await dead.stop()
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(made.ask(request(chat()))) for _ in range(5)]
            await made.until(lambda: sum(made.gateway.services.dispatcher.waiting().values()) == 5)
            made.control.change(replicas=replicas(other))

        assert [task.result().status for task in asking] == [200] * 5
        assert len(other.requests) == 5
        await made.until_quiet()


async def test_a_client_that_goes_away_while_its_replica_is_replaced_is_forgotten() -> None:
    async with world() as made:
        await made.engine.stop()
        async with made.client() as client:
            await client.send(request(chat()))
            await made.until(lambda: made.gateway.services.dispatcher.waiting() == {"echo": 1})
        await made.until_quiet()
        assert made.gateway.services.dispatcher.waiting() == {}


async def test_a_second_replica_that_dies_of_the_same_request_is_the_last() -> None:
    async with world(engines=3, time_outs=ALONE) as made:
        for engine in made.engines:
            engine.behave = BEFORE_THE_FIRST_BYTE["breaks"]
        answer = await made.ask(request(chat()))
        assert answer.error["code"] == "replica_failed"
        assert sum(len(engine.requests) for engine in made.engines) == 2


async def test_all_engines_refusing_is_an_error(pair: GatewayWorld) -> None:
    for engine in pair.engines:
        await engine.stop()
    answer = await pair.ask(request(chat()))

    assert answer.status == 502
    assert answer.headers["retry-after"]
    await pair.until_quiet()


async def test_a_kept_connection_that_died_unnoticed_is_replaced(lone: GatewayWorld) -> None:
    """As llama.cpp does: it closes after an answer without saying so."""
    closing = asyncio.Event()

    async def behave(request: EngineRequest, connection: EngineConnection) -> bool:
        if request.connection == 1 and len(lone.engine.requests) == 2:
            connection.cut()
            return False
        closing.set()
        return await streaming(request, connection)

    lone.engine.behave = behave
    async with lone.client() as client:
        for _ in range(2):
            await client.send(request(chat()))
            assert (await client.read_answer()).is_whole

    assert lone.engine.accepted == 2
    assert not any(report.failures for report in lone.control.reports)
    await lone.until_quiet()


async def test_a_kept_connection_that_died_is_replaced_where_its_replica_is_by_now(pair: GatewayWorld) -> None:
    old, new = pair.engines

    async def tell(engine: StubEngine) -> None:
        pair.control.change(replicas=replicas(engine))
        await pair.until(lambda: pair.gateway.services.directory.version == pair.control.view.version)

    async def behave(request: EngineRequest, connection: EngineConnection) -> bool:
        if len(old.requests) == 2:
            await tell(new)
            connection.cut()
            return False
        return await streaming(request, connection)

    old.behave = behave
    await tell(old)
    async with pair.client() as client:
        for _ in range(2):
            await client.send(request(chat()))
            assert (await client.read_answer()).is_whole

    assert (len(old.requests), len(new.requests)) == (2, 1)
    await pair.until_quiet()


async def test_a_connection_that_the_engine_closes_is_not_used_again(lone: GatewayWorld) -> None:
    async def behave(request: EngineRequest, connection: EngineConnection) -> bool:
        await streaming(request, connection)
        return False

    lone.engine.behave = behave
    async with lone.client() as client:
        for _ in range(3):
            await client.send(request(chat()))
            assert (await client.read_answer()).is_whole
            await lone.until(lambda: lone.gateway.services.pool.open_count == 0)
    assert lone.engine.accepted == 3


async def test_an_answer_without_a_length_ends_with_its_connection(lone: GatewayWorld) -> None:
    lone.engine.behave = saying(b"HTTP/1.1 200 OK\r\n\r\nto the end", then="close")
    async with lone.client() as client:
        await client.send(request(chat()))
        answer = await client.read_answer()
    assert (answer.body, answer.headers["connection"]) == (b"to the end", "close")


async def test_words_before_the_answer_are_swallowed(lone: GatewayWorld) -> None:
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    lone.engine.behave = saying(early + json_answer(b"{}", head=b"Keep-Alive: timeout=5\r\n"), then="go on")
    async with lone.client() as client:
        for _ in range(2):
            await client.send(request(chat()))
            answer = await client.read_answer()
            assert (answer.status, answer.body) == (200, b"{}")
            assert "keep-alive" not in answer.headers
    assert lone.engine.accepted == 1


async def test_errors_of_an_engine_are_passed_on(lone: GatewayWorld) -> None:
    text = b'{"error":{"message":"the request exceeds the available context size","code":400}}'
    lone.engine.behave = saying(json_answer(text, status=400), then="go on")
    answer = await lone.ask(request(chat()))
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    await lone.until(lambda: any(report.finished for report in lone.control.reports))
    [line] = [line for report in lone.control.reports for line in report.finished]
    assert (line.outcome, line.usage_unknown) == ("refused", 1)


async def test_clients_that_go_away_end_their_own_request_only() -> None:
    """Half of 200, in the middle of their streams."""
    async with world() as many:
        many.engine.behave = pace = GuidedStream()

        async def stay() -> bool:
            answer = await many.ask(request(chat()))
            return answer.is_whole and b"[DONE]" in answer.body

        async def leave(seen: asyncio.Semaphore, go: asyncio.Event) -> None:
            async with many.client() as client:
                await client.send(request(chat()))
                await client.read_head()
                seen.release()
                await go.wait()

        seen, go = asyncio.Semaphore(0), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            staying = [group.create_task(stay()) for _ in range(100)]
            for _ in range(100):
                group.create_task(leave(seen, go))
            for _ in range(200):
                await pace.begun.acquire()
            for _ in range(100):
                await seen.acquire()
            assert many.in_flight() == {"r0": 200}
            go.set()
            await many.engine.until(lambda: many.engine.unfinished == 100)
            await many.until(lambda: many.in_flight() == {"r0": 100})
            pace.go_on.set()

        assert all(task.result() for task in staying)
        assert many.engine.unfinished == 100
        await many.until_quiet()
        assert many.gateway.services.pool.idle_count == 100
        await many.until(lambda: sum(x.requests for r in many.control.reports for x in r.finished) == 200)


@pytest.mark.parametrize("cut", [1, 20, 60, -1])
async def test_a_client_that_disconnects_in_its_request_leaves_nothing_behind(gateway: GatewayWorld, cut: int) -> None:
    async with gateway.client() as client:
        await client.send(request(chat())[:cut])
        await gateway.until(lambda: gateway.gateway.server.client_count == 1)
    await gateway.until(lambda: gateway.gateway.server.client_count == 0)
    assert not gateway.engine.requests
    await gateway.until_quiet()


async def test_a_client_that_goes_while_its_engine_is_dialled_or_silent_is_forgotten(gateway: GatewayWorld) -> None:
    gateway.engine.behave = saying(b"")
    async with gateway.client() as client:
        await client.send(request(chat()))
        await gateway.until(lambda: gateway.in_flight() == {"r0": 1})
    await gateway.until(lambda: gateway.gateway.server.client_count == 0)
    await gateway.until_quiet()
    assert gateway.gateway.services.pool.open_count == 0


async def test_a_slow_client_does_not_fill_the_memory() -> None:
    size = 32 * 1024 * 1024
    sent = 0

    async def behave(_: EngineRequest, connection: EngineConnection) -> bool:
        nonlocal sent
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        piece = b"x" * 65536
        for _ in range(size // len(piece)):
            await connection.send(piece)
            sent += len(piece)
        return True

    async with world(limits=Limits(write_buffer=65536)) as slow:
        slow.engine.behave = behave
        async with slow.client() as client:
            client.writer.transport.pause_reading()
            await client.send(request(chat()))
            connections = slow.gateway.server._clients
            await slow.until(lambda: any(connection.is_full for connection in connections))
            before = 0
            while before != sent:  # until the engine is held back too
                before = sent
                for _ in range(200):
                    await asyncio.sleep(0)
            [connection] = connections
            assert connection._transport.get_write_buffer_size() < 1024 * 1024
            assert sent < size
            client.writer.transport.resume_reading()
            assert len((await client.read_answer()).body) == size
        await slow.until_quiet()
    gc.collect()


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    async def behave(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while True:
            await connection.send(b"x" * 65536)

    async with world(time_outs=TimeOuts(stalled_client=0.1)) as strict:
        strict.engine.behave = behave
        async with strict.client() as client:
            client.writer.transport.pause_reading()
            await client.send(request(chat()))
            await strict.engine.until(lambda: strict.engine.unfinished == 1)
        await strict.until_quiet()


async def test_requests_sent_ahead_wait_while_their_answers_are_not_read() -> None:
    async with world() as eager, eager.client() as client:
        client.writer.transport.pause_reading()
        ask = request(method="GET", path="/v1/models", head=b"X-Request-ID: x\r\n")  # so that all answers are alike
        count = 59_401
        sending = asyncio.ensure_future(client.send(ask * count))
        connections = eager.gateway.server._clients
        await eager.until(lambda: any(connection.is_full for connection in connections))
        [connection] = connections
        for _ in range(500):
            await asyncio.sleep(0)
        assert connection._transport.get_write_buffer_size() < 1024 * 1024
        assert len(connection._held) < 1024 * 1024
        client.writer.transport.resume_reading()
        first = await client.reader.readuntil(b"]}")
        for _ in range(99):
            piece = await client.reader.readexactly(len(first) * (count - 1) // 99)
            assert piece.startswith(first[:12])
        await sending


async def test_a_head_sent_too_slowly_is_cut_off(strict: GatewayWorld) -> None:
    async with strict.client() as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost:")
        assert (await client.read_answer()).status == 408
        await client.until_closed()
    async with strict.client() as client:
        assert await client.until_closed() == b""


async def test_a_body_sent_too_slowly_is_cut_off(strict: GatewayWorld) -> None:
    async with strict.client() as client:
        await client.send(request(chat())[:-5])
        assert (await client.read_answer()).status == 408
        await client.until_closed()
    await strict.until_quiet()


async def test_an_idle_connection_is_closed() -> None:
    async with world(time_outs=TimeOuts(keep_alive=1.0)) as made, made.client() as client:
        await client.send(request(chat()))
        assert (await client.read_answer()).status == 200
        assert await client.until_closed() == b""


async def test_a_head_may_come_byte_by_byte(gateway: GatewayWorld) -> None:
    raw = request(chat())
    async with gateway.client() as client:
        await client.send(*(raw[at : at + 1] for at in range(len(raw))))
        assert (await client.read_answer()).status == 200


# Limits and queues.


async def test_requests_wait_for_a_place_and_are_served_in_fair_order() -> None:
    async with world(limit=2) as narrow:
        narrow.engine.behave = pace = GuidedStream()
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(narrow.ask(request(chat()))) for _ in range(6)]
            for _ in range(2):
                await pace.begun.acquire()
            await narrow.until(lambda: narrow.gateway.services.dispatcher.waiting() == {"echo": 4})
            assert narrow.in_flight() == {"r0": 2}
            pace.go_on.set()
        assert [task.result().is_whole for task in asked] == [True] * 6
        await narrow.until_quiet()


async def test_a_full_queue_refuses_and_a_long_wait_ends() -> None:
    async with world(limit=1, limits=Limits(queue=1), time_outs=TimeOuts(queue=1.0)) as narrow:
        narrow.engine.behave = pace = GuidedStream()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(narrow.ask(request(chat())))
            await pace.begun.acquire()
            second = group.create_task(narrow.ask(request(chat())))
            await narrow.until(lambda: bool(narrow.gateway.services.dispatcher.waiting()))
            third = await narrow.ask(request(chat()))
            assert (third.status, third.error["code"], third.headers["retry-after"]) == (429, "queue_full", "2")
            answer = await second
            assert (answer.status, answer.error["code"]) == (503, "model_busy")
            pace.go_on.set()
        assert first.result().is_whole
        await narrow.until_quiet()


async def test_a_waiting_client_that_goes_gives_its_turn_away() -> None:
    async with world(limit=1) as narrow:
        narrow.engine.behave = pace = GuidedStream()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(narrow.ask(request(chat())))
            await pace.begun.acquire()
            async with narrow.client() as client:
                await client.send(request(chat()))
                await narrow.until(lambda: narrow.gateway.services.dispatcher.waiting() == {"echo": 1})
            await narrow.until(lambda: not narrow.gateway.services.dispatcher.waiting())
            pace.go_on.set()
        assert first.result().is_whole
        assert len(narrow.engine.requests) == 1
        await narrow.until_quiet()


async def test_a_replica_that_leaves_the_view_finishes_its_answers(gateway: GatewayWorld) -> None:
    gateway.engine.behave = pace = GuidedStream()
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(gateway.ask(request(chat())))
        await pace.begun.acquire()
        gateway.control.change(replicas={})
        await gateway.until(lambda: gateway.gateway.services.directory.version == 2)
        assert gateway.in_flight() == {"r0": 1}
        pace.go_on.set()
    assert asked.result().is_whole
    await gateway.until_quiet()


async def test_a_lower_rank_is_asked_only_when_no_other_is_left() -> None:
    async with world(engines=2) as both:
        entries = replicas(*both.engines)
        entries["r0"] = msgspec.structs.replace(entries["r0"], rank=1)
        both.control.change(replicas=entries)
        await both.until(lambda: both.gateway.services.directory.version == 2)
        for _ in range(3):
            await both.ask(request(chat()))
        assert [len(engine.requests) for engine in both.engines] == [0, 3]
        await both.engines[1].stop()
        assert (await both.ask(request(chat()))).status == 200
        assert len(both.engines[0].requests) == 1


async def test_answers_are_whole_however_they_are_framed(gateway: GatewayWorld) -> None:
    gateway.engine.behave = answering
    assert (await gateway.ask(request(chat()))).is_whole
    gateway.engine.behave = saying(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\n{}\r\n0\r\nX: y\r\n\r\n", then="go on"
    )
    async with gateway.client() as client:
        await client.send(request(chat()))
        raw = await client.reader.readuntil(b"X: y\r\n\r\n")
        assert raw.endswith(b"2\r\n{}\r\n0\r\nX: y\r\n\r\n")
    await gateway.until_quiet()
    assert gateway.gateway.services.pool.idle_count == 1
