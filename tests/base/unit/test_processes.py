"""One child process: its environment, its descriptors, its end, and the end of all that it left behind."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from corral.base import processes
from corral.base.errors import ChildFailed
from corral.base.processes import (
    ChildCommand,
    Output,
    OutputTail,
    Streams,
    secret_descriptor,
    secret_from,
    start_process,
)

SHELL_ENV = {"PATH": os.defpath}
LONG = timedelta(seconds=30)
AT_ONCE = timedelta(0)


def shell(script: str, *, env: dict[str, str] | None = None, **fields: object) -> ChildCommand:
    return ChildCommand(argv=["sh", "-c", script], env=SHELL_ENV | (env or {}), output=Output.TAIL, **fields)  # type: ignore[arg-type]


class Gate:
    """A pipe on which a child says something; the test waits for it."""

    def __init__(self) -> None:
        self._reader, self.descriptor = os.pipe()
        self.path = f"/dev/fd/{self.descriptor}"

    async def line(self) -> str:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._reader, readable.set)
        try:
            async with asyncio.timeout(60):
                await readable.wait()
        finally:
            loop.remove_reader(self._reader)
        return os.read(self._reader, 1000).decode().strip()

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.descriptor)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.close()


async def until_gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(60):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


@pytest.fixture(params=["pidfd", "polling"])
def either_watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to notice an exit: Linux's and everybody else's."""
    if request.param == "polling":
        monkeypatch.setattr(processes, "_open_pidfd", lambda pid: None)


@pytest.mark.usefixtures("either_watch")
async def test_the_exit_code_and_the_tail_of_the_output_are_told() -> None:
    process = start_process(shell("echo one; echo two >&2; printf unfinished; exit 7"))

    assert await process.wait() == 7
    assert process.returncode == 7
    assert process.tail == ["one", "two", "unfinished"]


async def test_many_may_wait_and_a_cancelled_wait_changes_nothing() -> None:
    process = start_process(shell("sleep 1000"))
    async with process:
        cancelled = asyncio.create_task(process.wait())
        patient = asyncio.create_task(process.wait())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        process.kill()
        assert await patient == -signal.SIGKILL


async def test_the_environment_is_exactly_what_was_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "x")
    wanted = {"ONE": "1", "EMPTY": "", "LINES": "a=b\nc", "UMLAUT": "ü"}
    program = "import os; print(sorted(os.environb.items()))"
    process = start_process(ChildCommand(argv=[sys.executable, "-S", "-c", program], env=wanted, output=Output.TAIL))

    assert await process.wait() == 0
    seen = dict(eval(process.tail[-1]))
    seen.pop(b"LC_CTYPE", None)  # Python itself sets it in an empty locale
    assert seen == {name.encode(): value.encode() for name, value in wanted.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux starts children in two steps")
async def test_variables_for_the_command_do_not_touch_the_step_before_it(tmp_path: Path) -> None:
    process = start_process(
        ChildCommand(argv=["/bin/echo", "hello"], env={"LD_PRELOAD": str(tmp_path / "none.so")}, output=Output.TAIL)
    )

    assert await process.wait() == 0
    complaints, said = process.tail[:-1], process.tail[-1]
    assert said == "hello"
    assert len(complaints) == 1, "the loader complains about the missing file once: for the command itself"


async def test_a_secret_arrives_through_its_descriptor_and_is_closed_here() -> None:
    descriptor = secret_descriptor(b"hush")
    process = start_process(shell(f"cat /dev/fd/{descriptor}", handed_over=[descriptor]))

    assert await process.wait() == 0
    assert process.tail == ["hush"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


async def test_a_shared_descriptor_stays_open_here(gate: Gate) -> None:
    process = start_process(shell(f"echo shared > {gate.path}", shared=[gate.descriptor]))

    assert await process.wait() == 0
    assert await gate.line() == "shared"
    os.fstat(gate.descriptor)


async def test_a_failed_start_closes_what_was_handed_over_and_leaks_nothing() -> None:
    descriptor = secret_descriptor(b"hush")
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with pytest.raises(ChildFailed, match="no-such-program is not an executable file"):
        start_process(ChildCommand(argv=["no-such-program"], env={}, output=Output.TAIL, handed_over=[descriptor]))
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == before - 1


async def test_a_missing_directory_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match="cannot start sh: No such file"):
        start_process(shell("true", cwd=tmp_path / "missing"))


async def test_a_file_that_cannot_be_executed_ends_with_127(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    process = start_process(ChildCommand(argv=[str(broken)], env={}, output=Output.TAIL))

    assert await process.wait() == 127
    assert process.tail == [f"cannot run {broken}: Exec format error"]


async def test_signals_that_python_ignores_are_back_to_normal_in_the_child() -> None:
    process = start_process(ChildCommand(argv=["cat", "/proc/self/status"], env=SHELL_ENV, output=Output.TAIL))
    await process.wait()
    ignored = next(int(line.split()[1], 16) for line in process.tail if line.startswith("SigIgn"))
    assert not ignored & (1 << (signal.SIGPIPE - 1))
    assert not ignored & (1 << (signal.SIGXFSZ - 1))


async def test_the_child_leads_a_session_of_its_own() -> None:
    async with start_process(shell("sleep 1000")) as process:
        assert os.getsid(process.pid) == process.pid
        assert os.getpgid(process.pid) == process.pid


@pytest.mark.usefixtures("either_watch")
async def test_stop_is_a_request_first(gate: Gate) -> None:
    script = f"trap 'echo bye; exit 3' TERM; echo up > {gate.path}; while :; do sleep 0.01; done"
    process = start_process(shell(script, shared=[gate.descriptor]))
    await gate.line()

    assert await process.stop(LONG) == 3
    assert process.tail[-1] == "bye"


@pytest.mark.usefixtures("either_watch")
async def test_stop_kills_what_does_not_listen_with_all_its_descendants(gate: Gate) -> None:
    script = f"trap '' TERM; sleep 1000 & echo $! > {gate.path}; while :; do sleep 1000; done"
    process = start_process(shell(script, shared=[gate.descriptor]))
    descendant = int(await gate.line())

    assert await process.stop(AT_ONCE) == -signal.SIGKILL
    await until_gone(descendant)
    await until_gone(process.pid)


async def test_a_leader_that_ends_takes_its_group_along() -> None:
    process = start_process(shell("sleep 1000 & echo $!"))

    assert await process.wait() == 0
    await until_gone(int(process.tail[0]))


async def test_a_cancelled_stop_kills_and_reaps(gate: Gate) -> None:
    script = f"trap '' TERM; echo up > {gate.path}; while :; do sleep 1000; done"
    process = start_process(shell(script, shared=[gate.descriptor]))
    await gate.line()
    stopping = asyncio.create_task(process.stop(LONG))
    await asyncio.sleep(0)
    stopping.cancel()

    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert process.returncode == -signal.SIGKILL


async def test_stopping_what_has_ended_is_harmless() -> None:
    process = start_process(shell("exit 4"))
    await process.wait()

    assert await process.stop(LONG) == 4
    process.kill()


async def test_leaving_the_context_ends_the_child() -> None:
    async with start_process(shell("sleep 1000")) as process:
        assert process.returncode is None
    assert process.returncode == -signal.SIGKILL


async def test_a_program_with_threads_may_start_many_at_once() -> None:
    busy = threading.Event()
    threads = [threading.Thread(target=lambda: [re.compile(f"a{n}") for n in iter(busy.is_set, True)]) for _ in "12"]
    for thread in threads:
        thread.start()
    try:
        children = [start_process(shell("exit 0")) for _ in range(8)]
        assert [await child.wait() for child in children] == [0] * 8
    finally:
        busy.set()
        for thread in threads:
            thread.join()


PARENT = """
import asyncio, os, sys
from corral.base.processes import ChildCommand, start_process

async def main():
    child = start_process(ChildCommand(argv=["sleep", "1000"], env={"PATH": os.defpath}))
    print(child.pid, file=open(sys.argv[1], "w"), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent's life")
async def test_kill_minus_nine_of_the_parent_ends_the_child(gate: Gate) -> None:
    argv = [sys.executable, "-c", PARENT, gate.path]
    async with start_process(ChildCommand(argv=argv, env={}, shared=[gate.descriptor])) as parent:
        child = int(await gate.line())
        os.kill(parent.pid, signal.SIGKILL)
        await until_gone(child)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent's life")
def test_a_child_whose_parent_died_before_the_tie_does_not_start() -> None:
    ended = subprocess.run(
        [sys.executable, "-I", "-S", processes._BECOMING, "1", "0", "-1", "/bin/echo", "echo", "never"],
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (125, b"")


async def test_an_endless_output_without_line_ends_stays_bounded() -> None:
    process = start_process(shell("head -c 3000000 /dev/zero | tr '\\0' x"))
    assert await process.wait() == 0
    assert sum(len(line) for line in process.tail) <= (processes.TAIL_LINES + 1) * processes.TAIL_LINE_BYTES


def test_the_tail_keeps_the_last_lines_and_survives_split_characters() -> None:
    tail = OutputTail()
    for number in range(processes.TAIL_LINES + 5):
        tail.feed(f"line {number}\n".encode())
    tail.feed("ü".encode()[:1])
    tail.feed("ü".encode()[1:] + b"\nrest")

    assert tail.lines[0] == "line 6"
    assert tail.lines[-2:] == ["ü", "rest"]


@pytest.mark.parametrize("length", [0, 32768, 32769, 1_000_000])
def test_a_secret_of_any_length_is_passed_on(length: int) -> None:
    assert secret_from(secret_descriptor(b"x" * length)) == "x" * length


async def test_streams_are_heard_apart() -> None:
    out, err = bytearray(), bytearray()
    streams = Streams(stdout=out.extend, stderr=err.extend)
    script = "echo one; echo two >&2; printf three"
    async with start_process(ChildCommand(argv=["/bin/sh", "-c", script], env={}, output=streams)) as process:
        assert await process.wait() == 0

    assert (bytes(out), bytes(err)) == (b"one\nthree", b"two\n")
    assert process.tail == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines")
@pytest.mark.parametrize(
    ("order", "step"),
    [
        (b'{"cgroups": ["/nowhere/cgroup.procs"]}', "join its cgroup"),
        (b'{"landlock": {"size": 8, "paths": 0, "ports": 0, "scopes": 0}}', "use Landlock"),
        (b'{"filter": "00"}', "filter system calls"),
        (b'{"user": {}}', "become its own user"),
    ],
)
async def test_a_child_that_cannot_be_confined_does_not_start(order: bytes, step: str) -> None:
    argv = ["/bin/echo", "never"]
    process = start_process(ChildCommand(argv=argv, env={}, output=Output.TAIL, confinement=order))
    assert await process.wait() == 124
    (line,) = process.tail
    assert line.startswith(f"the backend was not started, because it could not {step}: ")


def test_a_secret_on_standard_input_leaves_no_gap_for_other_files() -> None:
    """libuv ends the process when it closes a socket that got the number of a standard stream."""
    script = "import os; from corral.base.processes import secret_from; print(secret_from(0), min(os.pipe()) > 2)"
    read = subprocess.run([sys.executable, "-c", script], input=b"hush", capture_output=True, check=True)
    assert read.stdout == b"hush True\n"
