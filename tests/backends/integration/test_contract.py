"""What every backend on the SDK keeps, shown on `echo` in a real process."""

import asyncio
import contextlib
import shutil
import sys
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc import aio

from corral.base.processes import ChildCommand, Output, start_process
from corral.rpc import errors
from corral.rpc._generated import backend_pb2
from corral.rpc.backend import Backend
from corral.rpc.messages import ModelOptions, PredictOptions, StatusResponse
from tests.kit.backends import BACKENDS, SOON, TOKEN, RunningBackend, backend_command
from tests.kit.ports import lasting_port
from tests.kit.waiting import wait_until

LOADED = ModelOptions(Model="m.bin")
METHODS = list(backend_pb2.DESCRIPTOR.services_by_name["Backend"].methods)
OWN = frozenset({"Health", "LoadModel", "Free", "Status"})
OFFERED = {"Predict", "PredictStream", "Embedding", "TokenizeString"}


async def test_it_is_healthy_before_there_is_a_model(echo: RunningBackend) -> None:
    await echo.client.health(timeout=SOON)
    assert (await echo.client.status(timeout=SOON)).state == StatusResponse.UNINITIALIZED


async def test_it_answers_once_a_model_is_loaded(echo: RunningBackend) -> None:
    with pytest.raises(errors.ModelNotLoaded):
        await echo.client.predict(PredictOptions(Prompt="hello there"))
    await echo.client.load(LOADED, timeout=SOON)
    reply = await echo.client.predict(PredictOptions(Prompt="hello there", ModelIdentity="m.bin"))
    assert (reply.message, reply.tokens, reply.prompt_tokens) == (b"hello there", 2, 2)


async def test_a_stream_ends_with_running_totals(echo: RunningBackend) -> None:
    await echo.client.load(LOADED, timeout=SOON)
    stream = echo.client.predict_stream(PredictOptions(Prompt="one two three"))
    parts = [part async for batch in stream for part in batch]
    assert [part.message for part in parts] == [b"one", b" two", b" three"]
    assert [part.tokens for part in parts] == [1, 2, 3]


async def test_another_models_request_is_refused_and_named(echo: RunningBackend) -> None:
    await echo.client.load(LOADED, timeout=SOON)
    with pytest.raises(errors.OtherModelLoaded) as refused:
        await echo.client.predict(PredictOptions(Prompt="x", ModelIdentity="other"))
    assert refused.value.said == 'echo: model identity mismatch: loaded "m.bin", requested "other"'


@pytest.mark.parametrize(("loaded", "asked"), [("", "other"), ("m.bin", "")])
async def test_the_identity_is_not_checked_where_one_side_has_none(
    echo: RunningBackend, loaded: str, asked: str
) -> None:
    await echo.client.load(ModelOptions(Model=loaded), timeout=SOON)
    assert (await echo.client.predict(PredictOptions(Prompt="x", ModelIdentity=asked))).message == b"x"


async def test_after_free_there_is_no_model(echo: RunningBackend) -> None:
    await echo.client.load(LOADED, timeout=SOON)
    await echo.client.free(timeout=SOON)
    with pytest.raises(errors.ModelNotLoaded):
        await echo.client.predict(PredictOptions(Prompt="x"))
    await echo.client.load(LOADED, timeout=SOON)


async def test_free_waits_a_little_for_requests_and_then_ends_them(echo: RunningBackend) -> None:
    await echo.client.load(ModelOptions(Model="m", Options=["hang_after:1"]), timeout=SOON)
    async with aclosing(echo.client.predict_stream(PredictOptions(Prompt="a b"))) as parts:
        await anext(parts)
        await echo.client.free(timeout=SOON)
        with pytest.raises(errors.ModelNotLoaded, match="it was freed"):
            await anext(parts)


async def test_a_load_that_fails_says_why(echo: RunningBackend) -> None:
    with pytest.raises(errors.LoadFailed, match="told to fail"):
        await echo.client.load(ModelOptions(Model="m", Options=["error_at_load"]), timeout=SOON)
    with pytest.raises(errors.LoadFailed, match="not a number"):
        await echo.client.load(ModelOptions(Model="m", Options=["tokens:many"]), timeout=SOON)


async def test_it_stays_healthy_while_it_loads_and_while_it_answers(echo: RunningBackend) -> None:
    async with asyncio.TaskGroup() as group:
        load = group.create_task(
            echo.client.load(ModelOptions(Model="m", Options=["hang_at_load"]), timeout=timedelta(minutes=1))
        )
        await echo.client.health(timeout=SOON)
        load.cancel()
    await echo.client.load(ModelOptions(Model="m", Options=["hang_after:1"]), timeout=SOON)
    async with aclosing(echo.client.predict_stream(PredictOptions(Prompt="a b c"))) as parts:
        assert [part.message for part in await anext(parts)] == [b"a"]
        await echo.client.health(timeout=SOON)
        assert (await echo.client.status(timeout=SOON)).state == StatusResponse.BUSY


async def test_a_closed_stream_ends_the_work_on_it_and_no_other(echo: RunningBackend) -> None:
    await echo.client.load(ModelOptions(Model="m", Options=["hang_after:1"]), timeout=SOON)
    async with aclosing(echo.client.predict_stream(PredictOptions(Prompt="a b"))) as stays:
        await anext(stays)
        async with aclosing(echo.client.predict_stream(PredictOptions(Prompt="a b"))) as goes:
            await anext(goes)
        assert (await echo.client.status(timeout=SOON)).state == StatusResponse.BUSY
    await until_idle(echo.client)


async def until_idle(client: Backend) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while (await client.status(timeout=SOON)).state != StatusResponse.READY:
            pass


async def test_a_deadline_means_busy_and_not_gone(echo: RunningBackend) -> None:
    await echo.client.load(ModelOptions(Model="m", Options=["hang_after:0"]), timeout=SOON)
    with pytest.raises(errors.BackendBusy):
        await echo.client.predict(PredictOptions(Prompt="a"), timeout=timedelta(milliseconds=50))


async def test_a_failure_mid_stream_comes_after_what_was_said(echo: RunningBackend) -> None:
    await echo.client.load(ModelOptions(Model="m", Options=["error_after:2"]), timeout=SOON)
    heard: list[bytes] = []
    with pytest.raises(errors.BackendFailed, match="told to fail"):
        await hear(echo.client, heard)
    assert heard == [b"a", b" b"]


async def hear(client: Backend, heard: list[bytes]) -> None:
    async for parts in client.predict_stream(PredictOptions(Prompt="a b c")):
        heard += [part.message for part in parts]


async def test_a_process_that_dies_is_gone(echo: RunningBackend) -> None:
    await echo.client.load(ModelOptions(Model="m", Options=["crash_after:1"]), timeout=SOON)
    heard: list[bytes] = []
    with pytest.raises(errors.BackendGone):
        await hear(echo.client, heard)
    assert heard in ([], [b"a"])
    assert await echo.process.wait() == 3
    with pytest.raises(errors.BackendGone):
        await echo.client.health(timeout=SOON)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN.upper()])
async def test_no_method_answers_without_the_token(echo: RunningBackend, token: str) -> None:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    assert set((await codes_of_all(echo, metadata)).values()) == {grpc.StatusCode.UNAUTHENTICATED}


async def test_what_is_not_offered_is_unimplemented_and_what_is_wants_a_model(echo: RunningBackend) -> None:
    codes = await codes_of_all(echo, [("authorization", f"Bearer {TOKEN}")], but=OWN)
    assert {name for name, code in codes.items() if code is grpc.StatusCode.FAILED_PRECONDITION} == OFFERED
    assert {name for name, code in codes.items() if code is grpc.StatusCode.UNIMPLEMENTED} == codes.keys() - OFFERED


async def codes_of_all(
    echo: RunningBackend, metadata: list[tuple[str, str]], *, but: frozenset[str] = frozenset()
) -> dict[str, grpc.StatusCode]:
    """What each method answers to an empty request; streams of requests are left open and say nothing."""
    codes = {}
    async with aio.insecure_channel(echo.address) as channel:
        for method in METHODS:
            path = f"/backend.Backend/{method.name}"
            if method.name in but:
                continue
            if method.client_streaming:
                call: Any = channel.stream_stream(path)(metadata=metadata, timeout=SOON.total_seconds())
            elif method.server_streaming:
                call = channel.unary_stream(path)(b"", metadata=metadata, timeout=SOON.total_seconds())
            else:
                call = channel.unary_unary(path)(b"", metadata=metadata, timeout=SOON.total_seconds())
            codes[method.name] = await call.code()
            if method.client_streaming:  # its end is told before its own task has ended
                await call.initial_metadata()
    return codes


async def test_messages_of_many_megabytes_pass_both_ways(echo: RunningBackend) -> None:
    await echo.client.load(LOADED, timeout=SOON)
    text = "x" * (20 * 1024 * 1024)
    assert len((await echo.client.predict(PredictOptions(Prompt=text))).message) == len(text)
    with pytest.raises(errors.ReplyTooLarge):
        await echo.client.predict(PredictOptions(Prompt=text * 3))


async def test_the_same_load_again_does_nothing_and_another_one_replaces_it(echo: RunningBackend) -> None:
    await echo.client.load(ModelOptions(Model="m", Seed=1), timeout=SOON)
    assert "already" in await echo.client.load(ModelOptions(Model="m", Seed=2), timeout=SOON)
    await echo.client.load(ModelOptions(Model="n"), timeout=SOON)
    with pytest.raises(errors.OtherModelLoaded):
        await echo.client.predict(PredictOptions(Prompt="x", ModelIdentity="m"))


async def test_it_ends_at_sigterm_although_a_request_hangs(echo: RunningBackend) -> None:
    await echo.client.load(ModelOptions(Model="m", Options=["hang_after:1"]), timeout=SOON)
    async with aclosing(echo.client.predict_stream(PredictOptions(Prompt="a b"))) as parts:
        await anext(parts)
        echo.process.terminate()
        async with asyncio.timeout(SOON.total_seconds()):
            assert await echo.process.wait() == 0
        with pytest.raises(errors.BackendGone):
            await anext(parts)


async def test_a_port_that_is_taken_ends_it_with_a_sentence(echo: RunningBackend) -> None:
    async with start_process(backend_command("echo", "--addr", echo.address)) as second:
        assert await second.wait() == 1
        assert any(f"cannot listen on {echo.address}" in line for line in second.tail)


async def test_a_backend_without_a_fitting_python_says_so(tmp_path: Path) -> None:
    """Away from the checkout, and with a PATH that has what `run.sh` needs but no Python."""
    (tmp_path / "dirname").symlink_to(str(shutil.which("dirname")))
    (tmp_path / "here").mkdir()
    shutil.copy(BACKENDS / "echo" / "run.sh", tmp_path / "here" / "run.sh")
    shutil.copytree(BACKENDS / "sdk", tmp_path / "here" / "sdk")
    command = ChildCommand(
        argv=["./run.sh", "--addr", "127.0.0.1:0"],
        env={"PATH": str(tmp_path)},
        cwd=tmp_path / "here",
        output=Output.TAIL,
    )
    async with start_process(command) as process:
        assert await process.wait() == 1
        assert any("needs a Python 3.11 or newer" in line for line in process.tail)


async def test_it_ends_when_its_parent_is_gone() -> None:
    """A small program plays the worker: it starts the backend, says its id, and dies without a word to it."""
    port = lasting_port()
    command = backend_command(
        "echo", "--addr", f"127.0.0.1:{port}", env={"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": "20ms"}
    )
    worker = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.DEVNULL}
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", worker, *command.argv), cwd=command.cwd, env=dict(command.env), **pipes
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    async with Backend(f"127.0.0.1:{port}", token=TOKEN) as client:
        await until_answers(client)
        parent.kill()
        await parent.wait()
        await until_gone(pid)


async def until_answers(client: Backend) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while True:
            with contextlib.suppress(errors.BackendGone):
                return await client.health(timeout=SOON)


async def until_gone(pid: int) -> None:
    await asyncio.to_thread(wait_until, lambda: not psutil.pid_exists(pid), "the end of the orphan")
