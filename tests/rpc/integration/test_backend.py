"""A backend's client: what becomes of connections and statuses, with gRPC's own server at the other end."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from corral.base.logs import LogOutput, set_up_logs
from corral.rpc import errors
from corral.rpc.backend import Backend
from corral.rpc.grpc_client import Keepalive
from corral.rpc.messages import ModelOptions, PredictOptions, Reply
from tests.kit.backends import running_backend
from tests.kit.grpc_server import grpc_server
from tests.kit.loop_time import let_loop_time_pass
from tests.kit.ports import lasting_port

LONG = timedelta(seconds=60)
SCRIPT = Path(__file__).with_name("uvloop_process.py")


@dataclass
class Answers:
    """What a backend on gRPC's own library answers, and when."""

    complaint: str = ""
    complains_with: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    predicted: list[bytes] = field(default_factory=list)
    loads: list[bytes] = field(default_factory=list)

    async def stream(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        yield Reply(message=b"first").SerializeToString()
        await self.go_on.wait()
        yield Reply(message=b"last").SerializeToString()

    async def health(self, _: bytes, __: Any) -> bytes:
        return Reply(message=b"OK").SerializeToString()

    async def nonsense(self, request: bytes, __: Any) -> bytes:
        self.predicted.append(request)
        return b"\xff\xff\xff"

    async def load(self, request: bytes, context: Any) -> bytes:
        self.loads.append(request)
        return await self.complain(request, context)

    async def complain(self, _: bytes, context: Any) -> bytes:
        await context.abort(self.complains_with, self.complaint)
        return b""

    async def twice(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        yield b""
        yield b""


@asynccontextmanager
async def serving(answers: Answers) -> AsyncIterator[Backend]:
    """A client of a server with these answers."""
    handlers: dict[str, Any] = {
        "PredictStream": grpc.unary_stream_rpc_method_handler(answers.stream),  # type: ignore[arg-type]
        "Health": grpc.unary_unary_rpc_method_handler(answers.health),  # type: ignore[arg-type]
        "LoadModel": grpc.unary_unary_rpc_method_handler(answers.load),  # type: ignore[arg-type]
        "Predict": grpc.unary_unary_rpc_method_handler(answers.nonsense),  # type: ignore[arg-type]
        "Embedding": grpc.unary_unary_rpc_method_handler(answers.complain),  # type: ignore[arg-type]
        "TokenizeString": grpc.unary_stream_rpc_method_handler(answers.twice),  # type: ignore[arg-type]
    }
    async with grpc_server("backend.Backend", handlers) as (_, address), Backend(address) as backend:
        yield backend


async def test_nobody_at_the_address_is_gone_at_once() -> None:
    async with Backend(f"127.0.0.1:{lasting_port()}") as backend:
        with pytest.raises(errors.BackendGone, match="cannot connect"):
            await backend.health(timeout=LONG)


async def test_a_deadline_that_passes_means_busy() -> None:
    async with serving(Answers()) as backend:
        parts = backend.predict_stream(PredictOptions(), timeout=LONG)
        assert [part.message for part in await anext(parts)] == [b"first"]
        let_loop_time_pass(LONG)
        with pytest.raises(errors.BackendBusy):
            await anext(parts)


async def test_closing_the_client_ends_a_stream_as_gone() -> None:
    async with serving(Answers()) as backend:
        parts = backend.predict_stream(PredictOptions())
        await anext(parts)
        await backend.close()
        with pytest.raises(errors.BackendGone, match="the channel was closed"):
            await anext(parts)


async def test_a_process_that_hangs_in_the_middle_of_a_stream_is_gone() -> None:
    """Nobody gave a deadline, and TCP sees nothing wrong: pings do."""
    keepalive = Keepalive()
    async with running_backend("echo") as echo:
        await echo.client.load(ModelOptions(Model="m", Options=["hang_after:1"]), timeout=LONG)
        parts = echo.client.predict_stream(PredictOptions(Prompt="a b"))
        await anext(parts)
        os.kill(echo.process.pid, signal.SIGSTOP)
        reading = asyncio.ensure_future(anext(parts))
        for seconds in (keepalive.interval_seconds, keepalive.timeout_seconds):
            let_loop_time_pass(timedelta(seconds=seconds))
            for _ in range(5):
                await asyncio.sleep(0)
        with pytest.raises(errors.BackendGone, match="no answer to a ping within 20 s"):
            await reading


async def test_a_lost_connection_is_replaced_by_the_next_call() -> None:
    async with serving(Answers()) as backend:
        await backend.health(timeout=LONG)
        lost = backend._channel._connection
        assert lost is not None
        lost._transport.abort()  # type: ignore[union-attr]
        await backend.health(timeout=LONG)
        assert backend._channel._connection is not lost


async def test_several_answers_where_one_was_agreed_are_a_failure() -> None:
    async with serving(Answers()) as backend:
        with pytest.raises(errors.BackendFailed, match="TokenizeString was answered with several messages"):
            await backend.tokenize(PredictOptions())


async def test_who_leaves_the_seed_open_gets_another_one_each_time() -> None:
    """Backends may take 0 and -1 for seeds, and answer the same each time. LocalAI draws one, too."""
    answers = Answers()
    async with serving(answers) as backend:
        for _ in range(2):
            with pytest.raises(errors.BackendFailed):  # the answers of this server are nonsense
                await backend.predict(PredictOptions(Seed=-1))
            with pytest.raises(errors.LoadFailed):
                await backend.load(ModelOptions(), timeout=LONG)
        with pytest.raises(errors.BackendFailed):
            await backend.predict(PredictOptions(Seed=0))
    seeds = [*(PredictOptions.FromString(each).Seed for each in answers.predicted[:2])]
    seeds += [ModelOptions.FromString(each).Seed for each in answers.loads]
    assert len({*seeds}) == 4
    assert all(seed > 0 for seed in seeds)
    assert PredictOptions.FromString(answers.predicted[2]).Seed == 0


async def test_an_answer_that_is_no_message_is_a_failure() -> None:
    async with serving(Answers()) as backend:
        with pytest.raises(errors.BackendFailed, match="Predict was answered with something else"):
            await backend.predict(PredictOptions())


@pytest.mark.parametrize("text", ["e" * 70_000, "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 30_000])
async def test_a_long_text_of_an_error_harms_no_other_call(text: str) -> None:
    answers = Answers(complaint=text)
    async with serving(answers) as backend:
        parts = backend.predict_stream(PredictOptions())
        assert [part.message for part in await anext(parts)] == [b"first"]
        with pytest.raises(errors.RequestRefused) as refused:
            await backend.embedding(PredictOptions())
        beginning, gap, end = refused.value.said.partition(" […] ")
        assert gap
        assert text.startswith(beginning)
        assert text.endswith(end)
        assert min(len(beginning), len(end)) > 1000
        answers.go_on.set()
        assert [part.message async for batch in parts for part in batch] == [b"last"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "out of memory"),
        (grpc.StatusCode.FAILED_PRECONDITION, "no such file"),
        (grpc.StatusCode.UNIMPLEMENTED, "this architecture"),
        (grpc.StatusCode.UNKNOWN, "model not loaded: bad magic"),
        (grpc.StatusCode.INTERNAL, "unimplemented quantization"),
        (grpc.StatusCode.NOT_FOUND, "model identity mismatch"),
    ],
)
async def test_a_load_that_a_backend_refuses_has_failed_in_its_own_words(status: grpc.StatusCode, words: str) -> None:
    async with serving(Answers(complaint=words, complains_with=status)) as backend:
        with pytest.raises(errors.LoadFailed) as failed:
            await backend.load(ModelOptions(), timeout=timedelta(seconds=60))
    assert failed.value.said == words


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.BackendBusy),
        (grpc.StatusCode.UNAVAILABLE, errors.BackendGone),
        (grpc.StatusCode.UNAUTHENTICATED, errors.TokenRefused),
    ],
)
async def test_a_load_that_nobody_refused_is_told_from_one_that_failed(
    status: grpc.StatusCode, error: type[errors.BackendError]
) -> None:
    async with serving(Answers(complains_with=status)) as backend:
        with pytest.raises(error):
            await backend.load(ModelOptions(), timeout=timedelta(seconds=60))


async def test_the_loop_that_adapters_run_on() -> None:
    """In a process of its own, because uvloop keeps a pipe for as long as its process lasts."""
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), stderr=asyncio.subprocess.PIPE)
    _, complaints = await process.communicate()
    assert (process.returncode, complaints.decode()) == (0, "")


def test_no_token_is_in_the_logs(capfd: pytest.CaptureFixture[str]) -> None:
    """At no level: the library that encodes headers would log them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up_logs("test", LogOutput(level="debug"))
        Backend("127.0.0.1:1", token="very-secret")._channel._head("/backend.Backend/Health")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert "very-secret" not in capfd.readouterr().err
