"""Logs of backends, read once or followed."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from corral.worker.processes.backend_logs import MOST_WAITING, LiveTimes, OutputStream
from tests.kit.clock import ManualClock
from tests.kit.file_worker import FileWorker, open_file_worker
from tests.kit.loop_time import let_loop_time_pass
from tests.kit.waiting import WAIT_TIMEOUT

SILENCE = timedelta(seconds=30)
AUTHORIZED = {"Authorization": "Bearer tok"}


def follow(worker: FileWorker, model: str, **options: Any) -> Any:
    url = f"{worker.url}/v1/backend-logs/{model}/ws"
    return worker.session.ws_connect(url, headers={**AUTHORIZED, **options.pop("headers", {})}, **options)


async def texts(worker: FileWorker, model: str) -> list[str]:
    answer = await worker.ask("GET", f"/v1/backend-logs/{model}")
    assert answer.status == 200
    return [line["text"] for line in json.loads(answer.body)]


async def test_replicas_of_a_model_are_merged_in_the_order_of_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_file_worker(tmp_path, clock=clock) as worker:
        for number in range(4):
            worker.logs.of(f"m#{number % 2}").add(OutputStream.STDOUT, f"line {number}")
            await clock.advance(timedelta(seconds=1))
        worker.logs.of("mm#0").add(OutputStream.STDERR, "another model")

        assert await texts(worker, "m") == ["line 0", "line 1", "line 2", "line 3"]
        assert await texts(worker, "m%231") == ["line 1", "line 3"]
        assert await texts(worker, "m%232") == []
        answer = await worker.ask("GET", "/v1/backend-logs")
        assert answer.body == b'["m","mm"]\n'
        line = json.loads((await worker.ask("GET", "/v1/backend-logs/mm")).body)[0]
        assert line == {"timestamp": "2030-01-01T00:00:04Z", "stream": "stderr", "text": "another model"}


@pytest.mark.parametrize("encoded", ["a%2Fb", "a%252Fb", "a/b"])
async def test_a_name_may_hold_a_slash(worker: FileWorker, encoded: str) -> None:
    worker.logs.of("a/b#0").add(OutputStream.STDOUT, "hello")

    assert await texts(worker, encoded) == ["hello"]


async def test_a_name_may_hold_a_percent_sign(worker: FileWorker) -> None:
    worker.logs.of("50%#0").add(OutputStream.STDOUT, "hello")

    assert await texts(worker, "50%2525") == ["hello"]
    assert await texts(worker, "50%25") == ["hello"]


async def test_nothing_at_all_is_an_empty_list(worker: FileWorker) -> None:
    assert (await worker.ask("GET", "/v1/backend-logs")).body == b"[]\n"


@pytest.mark.parametrize("method", ["POST", "HEAD", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/backend-logs", "/v1/backend-logs/m", "/v1/backend-logs/m/ws"])
async def test_logs_can_only_be_read(worker: FileWorker, method: str, path: str) -> None:
    assert (await worker.ask(method, path)).status == 405


async def test_who_follows_gets_every_line_once(worker: FileWorker) -> None:
    worker.logs.of("m#0").add(OutputStream.STDOUT, "before")
    async with follow(worker, "m") as socket:
        initial = await socket.receive_json()
        worker.logs.of("m#0").add(OutputStream.STDOUT, "after")
        worker.logs.of("other#0").add(OutputStream.STDOUT, "of another model")
        worker.logs.of("m#1").add(OutputStream.STDERR, "of a replica that is new")

        assert [line["text"] for line in initial["lines"]] == ["before"]
        assert (await socket.receive_json())["line"]["text"] == "after"
        assert (await socket.receive_json())["line"]["text"] == "of a replica that is new"


async def test_who_follows_nothing_waits_for_it(worker: FileWorker) -> None:
    async with follow(worker, "m%230") as socket:
        assert await socket.receive_json() == {"type": "initial", "lines": []}
        worker.logs.of("m#1").add(OutputStream.STDOUT, "not this")
        worker.logs.of("m#0").add(OutputStream.STDOUT, "this")

        assert (await socket.receive_json())["line"]["text"] == "this"


async def test_who_reads_too_slowly_misses_lines_and_nothing_else(worker: FileWorker) -> None:
    async with follow(worker, "m") as socket:
        await socket.receive_json()
        for number in range(10 * MOST_WAITING):  # without letting anybody else run
            worker.logs.of("m#0").add(OutputStream.STDOUT, str(number))
        got = [(await socket.receive_json())["line"]["text"] for _ in range(MOST_WAITING)]
        worker.logs.of("m#0").add(OutputStream.STDOUT, "still there")

        assert got == [str(number) for number in range(MOST_WAITING)]
        assert (await socket.receive_json())["line"]["text"] == "still there"


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[FileWorker]:
    times = LiveTimes(ping=0.01, silence=SILENCE.total_seconds())
    async with open_file_worker(tmp_path / "node", times=times) as worker:
        yield worker


async def test_a_client_is_asked_whether_it_is_there(impatient: FileWorker) -> None:
    async with follow(impatient, "m", autoping=False) as socket:
        await socket.receive_json()

        assert (await socket.receive()).type is aiohttp.WSMsgType.PING


async def test_a_client_that_does_not_answer_is_let_go(impatient: FileWorker) -> None:
    async with follow(impatient, "m", autoping=False, autoclose=False) as socket:
        await socket.receive_json()
        let_loop_time_pass(SILENCE)
        kinds = {(await socket.receive()).type for _ in range(1000) if not socket.closed}

        assert aiohttp.WSMsgType.CLOSE in kinds


async def test_a_client_that_answers_stays(impatient: FileWorker) -> None:
    async with follow(impatient, "m", autoping=False) as socket:
        await socket.receive_json()
        for _ in range(3):
            await answer_one_question(socket)
            let_loop_time_pass(SILENCE * 0.6)
        impatient.logs.of("m#0").add(OutputStream.STDOUT, "still there")
        while (message := await socket.receive()).type is aiohttp.WSMsgType.PING:
            pass

        assert json.loads(message.data)["line"]["text"] == "still there"


async def answer_one_question(socket: Any) -> None:
    """Returns when the worker has heard the answer: it has answered a question of ours that came after it."""
    question = await socket.receive()
    assert question.type is aiohttp.WSMsgType.PING
    await socket.pong(question.data)
    await socket.ping()
    while (await socket.receive()).type is not aiohttp.WSMsgType.PONG:
        pass


async def test_a_client_may_ask_too(worker: FileWorker) -> None:
    async with follow(worker, "m", autoping=False) as socket:
        await socket.receive_json()
        await socket.ping(b"there?")

        answer = await socket.receive()

        assert (answer.type, answer.data) == (aiohttp.WSMsgType.PONG, b"there?")


async def test_a_client_that_says_too_much_is_let_go(worker: FileWorker) -> None:
    async with follow(worker, "m") as socket:
        await socket.receive_json()
        await socket.send_str("x" * 5000)

        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://evil.example", 403), ("http://127.0.0.1:1", 403), ("null", 403), ("http://{host}", 101)],
)
async def test_only_pages_of_this_host_may_follow(worker: FileWorker, origin: str, status: int) -> None:
    stated = {"Origin": origin.format(host=f"127.0.0.1:{worker.port}")}
    if status == 101:
        async with follow(worker, "m", headers=stated) as socket:
            assert (await socket.receive_json())["type"] == "initial"
        return
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await follow(worker, "m", headers=stated)
    assert refusal.value.status == status


async def test_what_is_no_web_socket_is_refused(worker: FileWorker) -> None:
    assert (await worker.ask("GET", "/v1/backend-logs/m/ws")).status == 400


async def test_followers_do_not_delay_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.worker.http.CLOSE_SECONDS", 1000)
    async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
        async with open_file_worker(tmp_path) as worker:
            socket = await follow(worker, "m")
            await socket.receive_json()
            closing = asyncio.create_task(socket.receive())
        assert (await closing).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING)


async def test_who_asks_for_marks_learns_how_many_lines_were_missed(worker: FileWorker) -> None:
    async with follow(worker, "m", params={"marks": "1"}) as socket:
        await socket.receive_json()
        for number in range(MOST_WAITING + 7):  # without letting anybody else run
            worker.logs.of("m#0").add(OutputStream.STDOUT, str(number))
        for _ in range(MOST_WAITING):
            assert (await socket.receive_json())["type"] == "line"
        worker.logs.of("m#0").add(OutputStream.STDOUT, "still there")

        assert await socket.receive_json() == {"type": "missed", "count": 7}
        assert (await socket.receive_json())["line"]["text"] == "still there"
