"""Real backend processes under supervision: shared starts, stops in every state, deaths, ports and leftovers."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from corral.base.errors import ChildFailed, Conflict
from corral.base.processes import ChildCommand, start_process
from corral.rpc.backend import Backend
from corral.rpc.errors import TokenRefused
from corral.worker.config import SupervisionConfig
from corral.worker.installing.orders import NoSuchBackend
from corral.worker.processes.ports import PortsExhausted
from corral.worker.processes.process import MARK_VARIABLE
from tests.kit.backend_node import BackendNode
from tests.kit.backend_scripts import (
    CLOSES_ITS_PORT,
    IGNORES_SIGTERM,
    Pipe,
    open_pipe,
    write_backend,
    write_serving_backend,
)
from tests.kit.clock import ManualClock
from tests.kit.loop_time import let_loop_time_pass, without_waiting
from tests.kit.ports import lasting_port
from tests.kit.waiting import WAIT_TIMEOUT

TOKEN = "node-secret"
LONG = timedelta(seconds=20)
QUICK = SupervisionConfig(ready_within=timedelta(seconds=20), stop_grace=timedelta(seconds=10))


class Rig(BackendNode):
    """Backends on a few ports of their own."""

    def __init__(self, folder: Path, clock: ManualClock, ports: list[int], limits: SupervisionConfig = QUICK) -> None:
        self.ports = ports
        super().__init__(
            folder=folder,
            clock=clock,
            ranges=[range(port, port + 1) for port in ports],
            limits=limits,
            token=TOKEN,
            environment={"PATH": os.defpath, "LOCALAI_GRPC_AUTH_TOKEN": "inherited"},
        )

    def pid(self, model: str) -> int:
        files = (self.folder / "processes").glob("*.json")
        records = [json.loads(file.read_text()) for file in files]
        return next(int(record["pid"]) for record in records if record["key"] == f"{model}#0")


@pytest.fixture
def rig(tmp_path: Path, clock: ManualClock) -> Rig:
    return Rig(tmp_path, clock, [lasting_port() for _ in range(4)])


@pytest.fixture
async def running(rig: Rig) -> AsyncIterator[Rig]:
    async with rig:
        yield rig


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    with open_pipe(tmp_path / "pipe") as pipe:
        yield pipe


async def test_a_backend_is_started_and_asks_for_the_token(running: Rig) -> None:
    launch = await running.install("echo", "m1")

    assert launch.address == f"127.0.0.1:{running.ports[0]}"
    assert (launch.http_port, running.running()) == (None, ["m1#0"])
    async with Backend(launch.address, token=TOKEN) as client:
        await client.health(timeout=LONG)
    async with Backend(launch.address, token="inherited") as stranger:
        with pytest.raises(TokenRefused):
            await stranger.health(timeout=LONG)


async def test_six_installs_of_one_key_share_one_process(running: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(running.install("echo", "m1")) for _ in range(6)]

    assert len({task.result().mark for task in tasks}) == 1
    assert len(running.supervisor.launches()) == 1


async def test_one_that_gives_up_does_not_end_the_start_of_the_others(running: Rig, pipe: Pipe) -> None:
    write_serving_backend(running.installed, "slow", pipe=pipe.path, body="say('starting')")
    impatient = asyncio.create_task(running.install("slow", "m1"))
    patient = asyncio.create_task(running.install("slow", "m1"))
    await pipe.line()
    impatient.cancel()

    assert (await patient).key == ("m1", 0)
    assert impatient.cancelled()


async def test_what_runs_is_answered_again(running: Rig) -> None:
    first = await running.install("echo", "m1")
    assert await running.install("echo", "m1") is first


async def test_an_admin_install_runs_under_the_backend_s_name(running: Rig) -> None:
    assert (await running.install("echo")).key == ("echo", 0)


async def test_replicas_are_processes_of_their_own(running: Rig) -> None:
    launches = [await running.install("echo", "m#1", replica) for replica in (0, 7)]
    assert [str(launch.key) for launch in launches] == ["m#1#0", "m#1#7"]
    assert len({launch.port for launch in launches}) == 2


async def test_an_unknown_backend_is_said_with_near_names(running: Rig) -> None:
    with pytest.raises(NoSuchBackend, match=r'no backend found with name "ecko"; did you mean echo'):
        await running.install("ecko", "m1")
    assert running.supervisor.launches() == []


@pytest.mark.parametrize("name", ["", "../echo", "a/b", ".", "x" * 300, "ECHO"])
async def test_a_name_that_is_none_finds_nothing(running: Rig, name: str) -> None:
    with pytest.raises(NoSuchBackend):
        await running.install(name, "m1")


async def test_one_that_dies_at_once_is_reported_with_its_last_words(running: Rig) -> None:
    lines = "for i in $(seq 1 30); do echo line $i >&2; done; printf unfinished >&2; exit 3"
    write_backend(running.installed, "dies", shell=lines)

    with pytest.raises(ChildFailed, match=r"process m1#0 died during startup") as failure:
        await running.install("dies", "m1")

    tail = [*(f"line {number}" for number in range(12, 31)), "unfinished"]
    assert failure.value.fields["tail"] == tail
    lines = ["backend process m1#0 died during startup. Last stderr:", *tail, "(exit code 3)"]
    assert failure.value.message.split("\n") == lines
    assert running.supervisor.launches() == []
    assert len(running.logs.of("m1#0").lines) == 31


async def test_one_that_is_no_program_is_reported(running: Rig) -> None:
    (running.installed / "broken").mkdir(parents=True)
    (running.installed / "broken" / "run.sh").write_bytes(b"#!/nowhere/at/all\n")

    with pytest.raises(ChildFailed, match="cannot run"):
        await running.install("broken", "m1")


async def test_one_that_never_becomes_ready_is_ended_and_reported(rig: Rig, pipe: Pipe) -> None:
    short = SupervisionConfig(ready_within=LONG, stop_grace=timedelta(seconds=0.2))
    rig = Rig(rig.folder, rig.clock, rig.ports, short)
    write_backend(rig.installed, "hangs", shell=f"trap '' TERM; echo $$ > {pipe.path}; while :; do sleep 1; done")
    async with rig:
        install = asyncio.create_task(rig.install("hangs", "m1"))
        pid = int(await pipe.line())
        with pytest.raises(ChildFailed, match=r"m1#0 did not become ready within 20s\. Last stderr:"):
            await without_waiting(install)
        assert not psutil.pid_exists(pid)


async def test_a_stop_during_the_start_ends_the_start(running: Rig, pipe: Pipe) -> None:
    write_backend(running.installed, "hangs", shell=f"echo $$ > {pipe.path}; exec sleep 1000")
    starts = [asyncio.create_task(running.install("hangs", "m1"))]
    pid = int(await pipe.line())
    starts += [asyncio.create_task(running.install("hangs", "m1")) for _ in range(2)]
    for _ in range(10):  # until they have joined: whoever came after the stop would start it anew
        await asyncio.sleep(0)

    await running.backends.stop("m1", force=False)

    for start in starts:
        with pytest.raises(Conflict, match="stopped before it was ready"):
            await start
    assert not psutil.pid_exists(pid)


async def test_the_end_of_the_worker_ends_a_start_and_answers(rig: Rig, pipe: Pipe) -> None:
    write_backend(rig.installed, "hangs", shell=f"echo $$ > {pipe.path}; exec sleep 1000")
    async with rig:
        start = asyncio.create_task(rig.install("hangs", "m1"))
        await pipe.line()
    with pytest.raises(Conflict):
        await start
    with pytest.raises(Conflict, match="shutting down"):
        await rig.install("echo", "m2")


async def test_a_stop_frees_first_unless_forced(running: Rig, pipe: Pipe) -> None:
    body = """
import corral_backend_sdk.server as server
free = server.Service._free
async def told(self, request):
    say("free")
    return await free(self, request)
server.Service._free = told
"""
    write_serving_backend(running.installed, "frees", pipe=pipe.path, body=body)
    await running.install("frees", "m1")
    await running.backends.stop("m1", force=False)
    assert await pipe.line() == "free"

    await running.install("frees", "m2")
    await running.backends.stop_all(force=True)
    pipe.path.write_text("nothing else\n")
    assert await pipe.line() == "nothing else"


async def test_one_that_ignores_sigterm_is_killed(rig: Rig, pipe: Pipe) -> None:
    rig = Rig(rig.folder, rig.clock, rig.ports, SupervisionConfig(stop_grace=LONG))
    write_serving_backend(rig.installed, "stubborn", pipe=pipe.path, body=IGNORES_SIGTERM)
    async with rig:
        await rig.install("stubborn", "m1")
        pid = rig.pid("m1")
        stopping = asyncio.create_task(rig.backends.stop("m1", force=False))
        assert await pipe.line() == "SIGTERM"
        let_loop_time_pass(LONG)
        await stopping
        assert not psutil.pid_exists(pid)
        assert rig.supervisor.launches() == []


async def test_a_death_is_noticed_at_once_and_the_next_start_has_a_new_address(running: Rig) -> None:
    first = await running.install("echo", "m1")
    os.kill(running.pid("m1"), signal.SIGKILL)
    launch, ending = await running.exits.heard.get()
    assert (launch, ending.reason) == (first, "backend m1#0 ended by itself (signal 9)")
    assert "echo serves at" in ending.tail[-1]
    assert running.running() == []

    second = await running.install("echo", "m1")

    assert second.port != first.port, "the old port rests"
    await running.backends.stop("m1", force=True)
    await running.clock.advance(timedelta(seconds=15))
    assert (await running.install("echo", "m1")).port == second.port


async def test_what_a_backend_started_ends_with_it(running: Rig, pipe: Pipe) -> None:
    body = "say(str(subprocess.Popen(['sleep', '1000']).pid))"
    write_serving_backend(running.installed, "forks", pipe=pipe.path, body=body)
    await running.install("forks", "m1")
    grandchild = psutil.Process(int(await pipe.line()))

    await running.backends.stop("forks", force=False)

    await asyncio.to_thread(psutil.wait_procs, [grandchild], timeout=WAIT_TIMEOUT.total_seconds())
    assert not grandchild.is_running()


@pytest.mark.parametrize("how", ["stop", "force", "crash"])
async def test_what_a_backend_started_in_a_session_of_its_own_ends_with_it(running: Rig, pipe: Pipe, how: str) -> None:
    body = "say(str(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid))"
    write_serving_backend(running.installed, "forks", pipe=pipe.path, body=body)
    await running.install("forks", "m1")
    grandchild = psutil.Process(int(await pipe.line()))

    if how == "crash":
        os.kill(running.pid("m1"), signal.SIGKILL)
        await running.exits.heard.get()
    await running.backends.stop("forks", force=how == "force")

    await asyncio.to_thread(psutil.wait_procs, [grandchild], timeout=WAIT_TIMEOUT.total_seconds())
    assert not grandchild.is_running()


async def test_one_that_hides_in_a_session_without_an_environment_ends_with_a_stopped_backend(
    running: Rig, pipe: Pipe
) -> None:
    body = "say(str(subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True, env={}).pid))"
    write_serving_backend(running.installed, "hides", pipe=pipe.path, body=body.replace("{}", "dict()"))
    await running.install("hides", "m1")
    grandchild = psutil.Process(int(await pipe.line()))

    await running.backends.stop("hides", force=False)

    await asyncio.to_thread(psutil.wait_procs, [grandchild], timeout=WAIT_TIMEOUT.total_seconds())
    assert not grandchild.is_running()


async def test_a_replaced_directory_makes_a_new_process(running: Rig) -> None:
    write_serving_backend(running.installed, "b")
    first = await running.install("b", "m1")
    shutil.move(running.installed / "b", running.installed / "old")
    write_serving_backend(running.installed, "b")

    second = await running.install("b", "m1")

    assert second.mark != first.mark
    assert running.running() == ["m1#0"]


async def test_another_backend_for_the_same_key_takes_its_place(running: Rig) -> None:
    write_serving_backend(running.installed, "b")
    await running.install("b", "m1")
    launch = await running.install("echo", "m1")
    assert (launch.home.name, running.running()) == ("echo", ["m1#0"])


async def test_an_unknown_backend_for_a_running_key_stops_nothing(running: Rig) -> None:
    await running.install("echo", "m1")
    with pytest.raises(NoSuchBackend):
        await running.install("nope", "m1")
    assert running.running() == ["m1#0"]


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("m1", ["m2#0"]),
        ("m1#1", ["m1#0", "m2#0"]),
        ("b", []),
        ("my-alias", []),
        ("unknown", ["m1#0", "m1#1", "m2#0"]),
        ("m", ["m1#0", "m1#1", "m2#0"]),
    ],
)
async def test_a_stop_by_any_name(running: Rig, name: str, left: list[str]) -> None:
    directory = write_serving_backend(running.installed, "b")
    (directory / "metadata.json").write_text('{"name": "b", "alias": "my-alias"}')
    for backend, model, replica in (("b", "m1", 0), ("my-alias", "m1", 1), ("b", "m2", 0)):
        await running.install(backend, model, replica)

    await running.backends.stop(name, force=True)

    assert sorted(running.running()) == left


async def test_a_port_that_another_program_has_is_passed_over(running: Rig) -> None:
    with socket.create_server(("127.0.0.1", running.ports[0])):
        assert (await running.install("echo", "m1")).port == running.ports[1]


async def test_a_range_without_a_free_port_is_said(rig: Rig) -> None:
    rig = Rig(rig.folder, rig.clock, rig.ports[:1])
    async with rig:
        await rig.install("echo", "m1")
        with pytest.raises(PortsExhausted, match=r"no port is left for m2#0 in .*backends use 1"):
            await rig.install("echo", "m2")
        assert rig.running() == ["m1#0"]


async def test_a_backend_with_an_openai_port_gets_one_and_a_new_key_each_time(running: Rig, pipe: Pipe) -> None:
    body = "say(' '.join(sys.argv[1:])); say(os.environ['CORRAL_HTTP_KEY'])"
    directory = write_serving_backend(running.installed, "engine", pipe=pipe.path, body=body)
    (directory / "corral.json").write_text('{"name": "engine", "http": {"protocol": "openai", "ready": "/health"}}')

    launch = await running.install("engine", "my model")

    grpc, http = (f"127.0.0.1:{port}" for port in running.ports[:2])
    assert await pipe.line() == f"--addr {grpc} --http-addr {http} --model-name my model"
    assert (await pipe.line(), launch.http_port) == (launch.http_key, running.ports[1])
    await running.backends.stop_all(force=True)
    assert (await running.install("engine", "my model")).http_key != launch.http_key


async def test_a_backend_with_a_front_gets_a_third_port_and_all_are_given_back(running: Rig, pipe: Pipe) -> None:
    directory = write_serving_backend(running.installed, "engine", pipe=pipe.path, body="say(' '.join(sys.argv[1:]))")
    (directory / "corral.json").write_text('{"name": "engine", "http": {"protocol": "openai", "front": true}}')

    for _ in range(2):
        launch = await running.install("engine", "m")
        grpc, http, front = (f"127.0.0.1:{port}" for port in running.ports[:3])
        assert await pipe.line() == f"--addr {grpc} --http-addr {http} --model-name m --front-addr {front}"
        assert launch.front_port == running.ports[2]
        await running.backends.stop_all(force=True)
        await running.clock.advance(timedelta(seconds=15))


async def test_an_earlier_life_s_processes_are_ended_and_strangers_are_not(rig: Rig, pipe: Pipe) -> None:
    mark = {MARK_VARIABLE: "abc"}
    script = f"sleep 1000 & echo $! > {pipe.path}; setsid sleep 1000 & echo $! > {pipe.path}; wait"
    stranger = start_process(ChildCommand(argv=["/bin/sleep", "1000"], env={}))
    async with start_process(ChildCommand(argv=["/bin/sh", "-c", script], env=mark)) as left, stranger:
        grandchild, in_its_own_session = [psutil.Process(int(await pipe.line())) for _ in range(2)]
        rig.remains.remember(left.pid, mark="abc", key="m1#0")
        rig.remains.remember(stranger.pid, mark="def", key="m2#0")
        file = rig.folder / "processes" / f"{stranger.pid}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "started_at": 1.0}))

        async with rig:
            await left.wait()
            assert not grandchild.is_running()
            assert not in_its_own_session.is_running()
            assert stranger.returncode is None
    assert list((rig.folder / "processes").iterdir()) == []


async def test_nothing_is_remembered_of_what_has_ended(running: Rig) -> None:
    await running.install("echo", "m1")
    assert psutil.pid_exists(running.pid("m1"))
    await running.backends.stop_all(force=False)
    assert list((running.folder / "processes").iterdir()) == []


async def test_all_are_stopped_at_once(rig: Rig, pipe: Pipe) -> None:
    """Each hears the request to end before any of them is gone."""
    rig = Rig(rig.folder, rig.clock, rig.ports, SupervisionConfig(stop_grace=LONG))
    write_serving_backend(rig.installed, "stubborn", pipe=pipe.path, body=IGNORES_SIGTERM)
    async with rig:
        async with asyncio.TaskGroup() as group:
            for model in ("m1", "m2", "m3"):
                group.create_task(rig.install("stubborn", model))
        closing = asyncio.create_task(rig.supervisor.close())
        assert [await pipe.line() for _ in range(3)] == ["SIGTERM"] * 3
        assert len(rig.supervisor.launches()) == 3
        let_loop_time_pass(LONG)
        await closing


async def test_an_install_after_a_stop_never_gets_the_process_that_ends(running: Rig) -> None:
    first = await running.install("echo", "m1")
    stop = asyncio.create_task(running.backends.stop("m1", force=False))
    again = asyncio.create_task(running.install("echo", "m1"))
    await stop

    assert (await again).mark != first.mark
    assert running.running() == ["m1#0"]


async def test_the_second_answer_looks_at_the_disk_once(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await running.install("echo", "m1")
    looked: list[object] = []

    def counted(look: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def counting(path: object, **named: object) -> os.stat_result:
            looked.append(path)
            return look(path, **named)

        return counting

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    await running.install("echo", "m1")

    assert len(looked) == 1


async def test_the_second_answer_opens_nothing_and_is_quick(running: Rig) -> None:
    await running.install("echo", "m1")
    opened: list[object] = []

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if event in {"open", "os.scandir", "os.listdir"} and listening:
            opened.append(arguments)

    async def seconds() -> float:
        started = time.perf_counter()
        await running.install("echo", "m1")
        return time.perf_counter() - started

    listening = True
    sys.addaudithook(hear)
    fastest = min([await seconds() for _ in range(20)])  # of many: whatever else the machine does is not meant
    listening = False

    assert opened == []
    assert fastest < 0.05


async def test_one_that_closes_its_port_and_stays_alive_is_replaced(running: Rig, pipe: Pipe) -> None:
    """Its address would be refused again and again, and asked for again and again."""
    write_serving_backend(running.installed, "deaf", pipe=pipe.path, body=CLOSES_ITS_PORT)
    first = await running.install("deaf", "m1")
    pid = running.pid("m1")
    os.kill(pid, signal.SIGUSR1)
    assert await pipe.line() == "closed"
    assert running.running() == ["m1#0"]

    second = await running.install("deaf", "m1")

    assert (second.mark != first.mark, second.port != first.port) == (True, True)
    assert not psutil.pid_exists(pid)


async def test_a_busy_one_is_not_replaced(running: Rig) -> None:
    """A process that is stopped accepts nothing and answers nothing, but its port is open."""
    first = await running.install("echo", "m1")
    os.kill(running.pid("m1"), signal.SIGSTOP)
    try:
        assert await running.install("echo", "m1") is first
    finally:
        os.kill(running.pid("m1"), signal.SIGCONT)


async def test_a_name_that_no_program_can_be_given_is_refused(running: Rig) -> None:
    directory = write_serving_backend(running.installed, "engine")
    (directory / "corral.json").write_text('{"http": {"protocol": "openai"}}')
    with pytest.raises(ChildFailed, match="null byte"):
        await running.install("engine", "a\0b")
    assert running.supervisor.launches() == []


async def test_bare_executables_in_one_directory_are_backends_of_their_own(running: Rig) -> None:
    for name in ("one", "two"):
        script = write_serving_backend(running.folder / "made", name)
        running.installed.mkdir(exist_ok=True)
        (running.installed / name).write_text(f'#!/bin/sh\nexec "{script}/run.sh" "$@"\n')
        (running.installed / name).chmod(0o755)
        await running.install(name, f"model-{name}")
    await running.backends.stop("one", force=True)
    assert running.running() == ["model-two#0"]


async def test_six_installs_of_one_key_share_a_failure(running: Rig) -> None:
    write_backend(running.installed, "dies", shell="exit 3")
    starts = [asyncio.create_task(running.install("dies", "m1")) for _ in range(6)]
    await asyncio.wait(starts)
    assert {type(start.exception()) for start in starts} == {ChildFailed}
    assert running.supervisor.launches() == []
