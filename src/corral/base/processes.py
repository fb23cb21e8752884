"""Child processes: started, waited for, heard, ended; and what processes that live long set for themselves.

Restarting a child is the caller's decision.
"""

import asyncio
import contextlib
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

import msgspec

from corral.base.errors import ChildFailed, CorralError
from corral.base.tasks import first_failure, task_group
from corral.base.values import PartlyPrinted

_ALLOCATIONS: Final = 20_000


def look_for_garbage_rarely() -> None:
    """Collect rarely: objects from start-up stay for ever, and later work leaves few cycles behind.

    With the default settings, a thousand concurrent requests would be traversed again and again for nothing.
    What start-up made is not even looked at once: in control that took a tenth of its start, to find half a megabyte.
    """
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, 20, 20)


def allow_descriptors(useful: int) -> int:
    """Raise the limit of open files and sockets to what is useful, as far as allowed; return how many of these this
    process may open. Children inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= useful:
        return useful
    allowed = useful if hard == resource.RLIM_INFINITY else min(useful, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


TAIL_LINES: Final = 100
TAIL_LINE_BYTES: Final = 4096
_POLL_SECONDS: Final = 0.05
_READ_BYTES: Final = 65536
_LAST_READS: Final = 64
_LAST_STANDARD_STREAM: Final = 2
_SECRET_BYTES: Final = 32768

_BECOMING: Final = str(Path(__file__).with_name("becoming.py"))


class Output(StrEnum):
    """Where a child's standard output and standard error go."""

    INHERIT = "inherit"
    TAIL = "tail"
    """Keep the last lines of both, for error messages; show nothing."""


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """Pass both outputs to callbacks as they arrive, in pieces of any length."""

    stdout: Callable[[bytes], None]
    stderr: Callable[[bytes], None]


class ChildCommand(PartlyPrinted, frozen=True, kw_only=True):
    """A command to start. Descriptors keep their numbers in the child."""

    unprinted = ("env",)

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    output: Output | Streams = Output.INHERIT
    shared: Sequence[int] = ()
    """Descriptors that this program keeps as well, such as listening sockets."""
    handed_over: Sequence[int] = ()
    """Descriptors that only the child gets: closed here at the start, whether it succeeds or not."""
    confinement: bytes | None = None
    """What the child gives up before it becomes the program, for `base/confining.py`. Only on Linux."""


def secret_descriptor(secret: bytes) -> int:
    """Return a descriptor for a child, which can read the secret from it once."""
    if len(secret) > _SECRET_BYTES:
        return _large_secret_descriptor(secret)
    reader, writer = os.pipe()
    try:
        os.write(writer, secret)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return reader


def _large_secret_descriptor(secret: bytes) -> int:
    """Return a descriptor of memory that has no name: so much might not fit into a pipe."""
    if sys.platform != "linux":
        raise ValueError(f"a secret of {len(secret)} bytes might not fit into a pipe")
    return _memory_descriptor("secret", secret)


def secret_from(descriptor: int | None) -> str:
    """Read what a parent wrote with `secret_descriptor`, and close the descriptor; "" without one.

    A standard stream becomes the null device: a socket that got its number would end the process, since libuv refuses
    to close those.
    """
    if descriptor is None:
        return ""
    with os.fdopen(descriptor, "rb", closefd=descriptor > _LAST_STANDARD_STREAM) as file:
        secret = file.read().decode()
    if descriptor <= _LAST_STANDARD_STREAM:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, descriptor)
        os.close(nothing)
    return secret


def start_process(command: ChildCommand) -> "ChildProcess":
    """Start a child. Needs a running event loop. Nothing is awaited, so no cancellation can lose the child."""
    try:
        return _start(command)
    except OSError as error:
        raise ChildFailed(f"cannot start {command.argv[0]}: {error.strerror}", child=command.argv[0]) from error
    except ValueError as error:  # an argument contains NUL, which no program can receive
        raise ChildFailed(f"cannot start {command.argv[0]}: {error}", child=command.argv[0]) from error
    finally:
        for descriptor in command.handed_over:
            os.close(descriptor)


def _start(command: ChildCommand) -> "ChildProcess":
    executable = _find(command)
    tail = OutputTail()
    stdout, stderr, readers = _open_pipes(command.output, tail)
    environment = _environment_descriptor(command.env)
    confinement = None if command.confinement is None else _memory_descriptor("confinement", command.confinement)
    argv = list(command.argv)
    if environment is not None:
        words = [str(os.getpid()), str(environment), str(-1 if confinement is None else confinement), executable]
        argv = [sys.executable, "-I", "-S", _BECOMING, *words, *argv]
    try:
        popen = subprocess.Popen(  # noqa: S603 - no shell, and the caller decides what to run
            argv,
            executable=None if environment is not None else executable,
            env={} if environment is not None else command.env,
            cwd=command.cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[*command.shared, *command.handed_over, *_present(environment, confinement)],
            start_new_session=True,
        )
    except BaseException:
        _close_all(readers)
        raise
    finally:
        _close_all(set(_present(stdout, stderr, environment, confinement)))
    return ChildProcess(popen, tail, readers)


def _find(command: ChildCommand) -> str:
    """Return the path of the executable, resolved with the child's own PATH and working directory."""
    name = command.argv[0]
    if "/" not in name:
        path = shutil.which(name, path=command.env.get("PATH", os.defpath))
    else:
        path = str((command.cwd or Path()) / name)
    if path is None or not os.access(path, os.X_OK) or Path(path).is_dir():
        raise ChildFailed(f"{name} is not an executable file", child=name)
    return path if "/" not in name else name


def _environment_descriptor(env: Mapping[str, str]) -> int | None:
    """Return None on systems where a child cannot be tied to its parent's life."""
    if sys.platform != "linux":
        return None
    block = b"\0".join(os.fsencode(name) + b"=" + os.fsencode(value) for name, value in env.items())
    return _memory_descriptor("environment", block)


def _memory_descriptor(name: str, content: bytes) -> int:
    """Return a descriptor of memory from which a child can read the content. Only on Linux."""
    if sys.platform != "linux":
        raise ValueError(f"this system has no memory for the {name} of a child")
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _present(*descriptors: int | None) -> list[int]:
    return [descriptor for descriptor in descriptors if descriptor is not None]


class OutputTail:
    """The last lines of an output, bounded in number and length."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._unfinished = b""

    def feed(self, data: bytes) -> None:
        *whole, self._unfinished = (self._unfinished + data).split(b"\n")
        self._lines.extend(line[:TAIL_LINE_BYTES].decode(errors="replace") for line in whole[-TAIL_LINES:])
        if len(self._unfinished) >= TAIL_LINE_BYTES:
            self.feed(b"\n")

    @property
    def lines(self) -> list[str]:
        unfinished = [self._unfinished.decode(errors="replace")] if self._unfinished else []
        return [*self._lines, *unfinished]


_Readers = dict[int, Callable[[bytes], None]]


def _open_pipes(output: Output | Streams, tail: OutputTail) -> tuple[int | None, int | None, _Readers]:
    """Return the child's ends of its outputs, None where it inherits ours, and our ends with their receivers."""
    if output is Output.INHERIT:
        return None, None, {}
    reader, writer = _pipe()
    if not isinstance(output, Streams):
        return writer, writer, {reader: tail.feed}
    other_reader, other_writer = _pipe()
    return writer, other_writer, {reader: output.stdout, other_reader: output.stderr}


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    return reader, writer


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class ChildProcess:
    """A child from its start until it is reaped. Create it with `start_process`."""

    def __init__(self, popen: subprocess.Popen[bytes], tail: OutputTail, outputs: _Readers) -> None:
        self._popen = popen
        self._tail = tail
        self._outputs = outputs
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = _open_pidfd(popen.pid)
        for output in self._outputs:
            self._loop.add_reader(output, self._read, output)
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._reap)
        else:
            self._poll()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; None while the child runs, negative when a signal ended it."""
        return self._popen.returncode

    @property
    def tail(self) -> list[str]:
        """The last lines of output, when they are kept."""
        return self._tail.lines

    async def wait(self) -> int:
        """Return the exit code once the group is gone and the leader reaped. Cancelling this does not affect the
        child."""
        return await asyncio.shield(self._exited)  # shielded: cancelling one waiter must not cancel the others

    def terminate(self) -> None:
        """Send SIGTERM to the group."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the group."""
        self._signal_group(signal.SIGKILL)

    async def stop(self, grace: timedelta) -> int:
        """Ask the group to end, kill it after `grace`, reap it. A cancelled stop kills at once and still reaps."""
        self.terminate()
        try:
            async with asyncio.timeout(grace.total_seconds()):
                await self.wait()
        except TimeoutError:
            pass
        finally:
            self.kill()
            await self.wait()
        return await self.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        await self.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        """Signal the group while the leader is not reaped: until then nobody else can have its id."""
        if self._exited.done():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a zombie
            os.killpg(self._popen.pid, number)

    def _poll(self) -> None:
        """Fallback without pidfd. Looking reaps the leader, so leftovers of the group are killed just after it."""
        if self._popen.poll() is None:
            self._loop.call_later(_POLL_SECONDS, self._poll)
        else:
            self._reap()

    def _reap(self) -> None:
        self.kill()
        code = self._popen.wait()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        # What is left is read, bounded: a process that left the group may hold the pipe open for ever.
        for output in list(self._outputs):
            for _ in range(_LAST_READS):
                if not self._read(output):
                    break
            self._close_output(output)
        if not self._exited.done():
            self._exited.set_result(code)

    def _read(self, output: int) -> bool:
        """Read available output. Return False at its end, or when nothing is available now."""
        if output not in self._outputs:
            return False
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._outputs[output](data)
        else:
            self._close_output(output)
        return bool(data)

    def _close_output(self, output: int) -> None:
        if self._outputs.pop(output, None) is not None:
            self._loop.remove_reader(output)
            os.close(output)


def _open_pidfd(pid: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or a sandbox that forbids it
        return None


SHOWN_LINES: Final = 20
"""Number of output lines that are shown in an error or a log line."""


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a child, how to check that it is ready, and how to stop it."""

    name: str
    command: Callable[[], ChildCommand]
    """Called before every start, so that descriptors and one-time keys are new each time."""
    ready: Callable[[], Awaitable[None]]
    """Returns once the child works. Cancelled when the child ends before that."""
    ready_within: timedelta = timedelta(seconds=30)
    stop_grace: timedelta = timedelta(seconds=10)
    final_exit_codes: frozenset[int] = frozenset()
    """Exit codes after which a restart would fail in the same way, such as a wrong configuration."""
    final_when_ready: bool = False
    """These codes are final also after it was ready. For a supervisor, which ends only when a restart would not
    help."""


async def until_ready(child: Child, process: ChildProcess) -> None:
    """Wait until the child is ready. Raise ChildFailed when it ends early, its check fails, or the time is over."""

    async def fail_at_exit() -> None:
        code = await process.wait()
        raise failure_of(child, process, f"ended before it was ready ({describe_exit(code)})", code)

    try:
        with first_failure(ChildFailed):
            async with asyncio.timeout(child.ready_within.total_seconds()), task_group() as group:
                watcher = group.create_task(fail_at_exit(), name=f"exit of {child.name}")
                await child.ready()
                watcher.cancel()
    except ChildFailed:
        raise
    except TimeoutError as error:
        problem = f"was not ready within {child.ready_within.total_seconds():g} s"
        raise failure_of(child, process, problem, None) from error
    except (CorralError, OSError) as error:
        raise failure_of(child, process, f"was not ready: {error}", None) from error


def failure_of(child: Child, process: ChildProcess, problem: str, code: int | None) -> ChildFailed:
    """What a child that failed said last, under the sentence that tells what it did."""
    tail = process.tail[-SHOWN_LINES:]
    text = "".join(f"\n    {line}" for line in tail)
    return ChildFailed(f"{child.name} {problem}{text}", child=child.name, exit_code=code, tail=tail)


def describe_exit(code: int) -> str:
    """Describe an exit code for people."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
