"""One backend process: its whole life, from the start until it is gone and reaped.

One task runs it and makes every change of its state; everybody else asks and waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import msgspec
import psutil

from corral.base.errors import ChildFailed, Conflict, CorralError
from corral.base.processes import ChildCommand, ChildProcess, Streams, describe_exit, start_process
from corral.base.tasks import first_done
from corral.base.values import PartlyPrinted
from corral.wire.confinement import ConfinementWish
from corral.wire.replicas import ProcessKey
from corral.worker.config import SupervisionConfig
from corral.worker.hardware.visible_devices import DEVICE_VARIABLES
from corral.worker.installing.backend_directory import RUN, Home
from corral.worker.installing.switching import home_of
from corral.worker.membership.addresses import HostPort, local_host
from corral.worker.processes.backend_logs import BackendLog, LineWriter, OutputStream
from corral.worker.processes.remains import descendants_of

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
TOKEN_VARIABLE: Final = "LOCALAI_GRPC_AUTH_TOKEN"  # noqa: S105 - a name, not a token
KEY_VARIABLE: Final = "CORRAL_HTTP_KEY"
PYTHON_VARIABLE: Final = "ENV_DIR"
"""Tells start scripts of LocalAI's Python images where interpreter and virtual environment are."""
BYTECODE_VARIABLE: Final = "PYTHONPYCACHEPREFIX"
VULKAN_VARIABLES: Final = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
MARK_VARIABLE: Final = "CORRAL_PROCESS_MARK"
"""Environment variable that identifies our processes, even when their pid is reused."""


class ProcessState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    ENDED = "ended"


NEXT: Final[Mapping[ProcessState, frozenset[ProcessState]]] = {
    ProcessState.STARTING: frozenset({ProcessState.READY, ProcessState.STOPPING, ProcessState.ENDED}),
    ProcessState.READY: frozenset({ProcessState.STOPPING, ProcessState.ENDED}),
    ProcessState.STOPPING: frozenset({ProcessState.ENDED}),
    ProcessState.ENDED: frozenset(),
}


class BackendLink(Protocol):
    """A backend at the other end of gRPC."""

    async def health(self, *, timeout: timedelta) -> None: ...

    async def free(self, *, timeout: timedelta) -> None: ...

    async def close(self) -> None: ...


Connect = Callable[[str, str], BackendLink]
"""From an address and a token to the backend that serves there."""


class Launch(PartlyPrinted, frozen=True, kw_only=True):
    """What one process is started with."""

    unprinted = ("token", "http_key", "environment")

    key: ProcessKey
    backend: str
    """The name it was asked for by."""
    home: Home
    model_id: str
    """The name under which an engine's own HTTP port serves; empty when no model was named."""
    bind_host: str
    port: int
    http_port: int | None
    front_port: int | None = None
    """Port for requests that the engine itself ignores or refuses; only together with an HTTP port."""
    token: str
    has_own_token: bool = False
    """Nothing else has this token."""
    http_key: str
    mark: str
    environment: Mapping[str, str]
    cards: frozenset[str] = frozenset()
    """The GPUs that it may see."""
    device_variables: Mapping[str, str] = msgspec.field(default_factory=dict)
    """What hides the others from it; empty when it may see all."""
    wish: ConfinementWish = msgspec.field(default_factory=ConfinementWish)
    """What an administrator decided about its confinement."""
    scratch: Path | None = None
    """A directory of its own, which is removed with it; None: it uses the worker's directories."""

    @property
    def address(self) -> str:
        """Address for callers on this machine."""
        return str(HostPort(local_host(self.bind_host), self.port))

    @property
    def ports(self) -> list[int]:
        return [port for port in (self.port, self.http_port, self.front_port) if port is not None]

    @property
    def exchange(self) -> Path | None:
        """Where files of requests are passed to it and fetched from it, if it has a directory of its own."""
        return None if self.scratch is None else self.scratch / "exchange"

    @property
    def python_place(self) -> Path | None:
        """Where a backend that brings its own Python prepares it, if the process has a directory of its own."""
        return None if self.scratch is None or not self.home.brings_python else self.scratch / "backend"

    @property
    def kept_home(self) -> Path | None:
        """The HOME of all processes of this backend, which outlives them: engines keep there what they downloaded and
        compiled. Only an installed backend has one, and only where a process has a directory of its own as well."""
        is_installed = self.home.executable.name == RUN and not self.home.is_system
        return home_of(self.home.directory) if is_installed and self.scratch is not None else None

    @property
    def working_directory(self) -> Path:
        """The backend's own; or where it has links to the same files and may add others, as its libraries do."""
        return self.python_place or self.home.directory

    def argv(self) -> list[str]:
        words = [str(self.home.executable), "--addr", str(HostPort(self.bind_host, self.port))]
        if self.http_port is not None:
            words += ["--http-addr", str(HostPort(self.bind_host, self.http_port))]
            words += ["--model-name", self.model_id] if self.model_id else []
        if self.front_port is not None:
            words += ["--front-addr", str(HostPort(self.bind_host, self.front_port))]
        return words

    def variables(self) -> dict[str, str]:
        overridden = {TOKEN_VARIABLE, *(DEVICE_VARIABLES if self.device_variables else ())}
        variables = {name: value for name, value in self.environment.items() if name not in overridden}
        variables |= self.device_variables
        variables[MARK_VARIABLE] = self.mark
        if self.token:
            variables[TOKEN_VARIABLE] = self.token
        if self.http_port is not None:
            variables[KEY_VARIABLE] = self.http_key
        if self.scratch is not None:
            variables["HOME"] = str(self.kept_home or self.scratch / "home")
            variables["TMPDIR"] = str(self.scratch / "tmp")
        if self.python_place is not None:
            variables[PYTHON_VARIABLE] = str(self.python_place)
        if self.python_place is not None and self.kept_home is not None and not self.home.is_compiled:
            variables.setdefault(BYTECODE_VARIABLE, str(self.kept_home / ".cache" / "python"))
        if self.home.vulkan_drivers:
            variables |= dict.fromkeys(VULKAN_VARIABLES, ":".join(map(str, self.home.vulkan_drivers)))
        return variables


class Confinement(Protocol):
    """Prepares the surroundings of processes, and removes what is left of them."""

    def scratch_of(self, mark: str) -> Path | None:
        """Return where the process with this mark will have a directory of its own; None without one."""
        ...

    def around(self, launch: Launch) -> AbstractAsyncContextManager[bytes | None]:
        """Provide the surroundings of a process for the time of the context, and the order for `base/confining.py`.

        Raise ChildFailed when they cannot be had.
        """
        ...

    def sweep(self) -> None:
        """Remove what an earlier worker process left. Blocks."""
        ...


class Unconfined:
    """Leaves processes as they are."""

    def scratch_of(self, _: str) -> Path | None:
        return None

    def around(self, _: Launch) -> AbstractAsyncContextManager[bytes | None]:
        return nullcontext(None)

    def sweep(self) -> None:
        """Do nothing: processes without confinement leave no directories or groups behind."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Why and how a backend process ended."""

    reason: str
    """Reason as a sentence for people."""
    is_expected: bool
    was_ready: bool = False
    tail: tuple[str, ...] = ()
    """The last lines of its standard error."""


class BackendProcess:
    """Run it once; ask it for readiness or to stop as often as you like, also before it runs."""

    def __init__(self, launch: Launch, *, connect: Connect, log: BackendLog, config: SupervisionConfig) -> None:
        self.launch = launch
        self.state = ProcessState.STARTING
        self.pid = 0
        self._connect = connect
        self._config = config
        self._stdout = LineWriter(log, OutputStream.STDOUT)
        self._stderr = LineWriter(log, OutputStream.STDERR)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._last_problem = ""
        self._is_held = False
        """Whether it may only use the files on a list."""
        self.freed = False
        """The model was freed before the process ended."""
        self.not_freed = ""
        """Why not, where that was tried."""
        self.descendants: list[psutil.Process] = []
        """What it had started, as seen before it was asked to end."""

    async def until_ready(self) -> None:
        """Return when the process serves. Raise ChildFailed when it never will, Conflict when it is stopped before."""
        await asyncio.shield(self._ready)  # many wait for one start: one that gives up must not cancel it

    @property
    def is_ending(self) -> bool:
        return self._stop.is_set() or self.state in {ProcessState.STOPPING, ProcessState.ENDED}

    @property
    def is_serving(self) -> bool:
        return self.state is ProcessState.READY and not self._stop.is_set()

    def ask_to_stop(self, *, force: bool) -> None:
        """Begin to end the process.

        With force, its model is not freed first. A later call with force shortens an earlier stop.
        """
        if force:
            self._force.set()
        self._stop.set()

    async def run(
        self, started: Callable[[int], Awaitable[None]], confine: Callable[[], Awaitable[bytes | None]]
    ) -> Ending:
        """The whole life. Cancelling kills. `started` gets the number of the process as soon as there is one; `confine`
        prepares its surroundings and says what it gives up."""
        try:
            order = await confine()
            self._is_held = order is not None and b'"landlock"' in order
            async with start_process(self._command(order)) as process:
                self.pid = process.pid
                await started(process.pid)
                ending = await self._live(process)
        except ChildFailed as error:
            error = self._explained(error)
            ending = Ending(reason=error.message, is_expected=False)
            self._settle(error)
        finally:
            self.state = ProcessState.ENDED
            self._settle(Conflict(f"backend {self.launch.key} was stopped before it was ready"))
        return ending

    def _command(self, confinement: bytes | None) -> ChildCommand:
        return ChildCommand(
            argv=self.launch.argv(),
            env=self.launch.variables(),
            cwd=self.launch.working_directory,
            output=Streams(stdout=self._stdout.feed, stderr=self._stderr.feed),
            confinement=confinement,
        )

    async def _live(self, process: ChildProcess) -> Ending:
        """The whole life of the process, as a list of steps."""
        match await first_done(self._stop.wait(), process.wait(), self._probe(), timeout=self._config.ready_within):
            case 0:
                return await self._end(process)
            case 1:
                raise self._failure(f"backend process {self.launch.key} died during startup", _exit_of(process))
            case None:
                self.descendants = await asyncio.to_thread(descendants_of, process.pid)
                await process.stop(self._config.stop_grace)
                seconds = self._config.ready_within.total_seconds()
                problem = f"backend {self.launch.key} did not become ready within {seconds:g}s"
                raise self._failure(problem, self._last_problem)
        self.state = ProcessState.READY
        self._settle(None)
        if await first_done(self._stop.wait(), process.wait()) == 0:
            await self._free()
            return await self._end(process)
        reason = f"backend {self.launch.key} ended by itself ({_exit_of(process)})"
        return Ending(reason=reason, is_expected=False, was_ready=True, tail=tuple(self._tail()))

    async def _probe(self) -> None:
        """Wait until the backend reports that it is healthy.

        Each probe opens a new connection: an old one retries at growing intervals.
        """
        while True:
            link = self._connect(self.launch.address, self.launch.token)
            try:
                await link.health(timeout=self._config.probe_timeout)
            except CorralError as error:
                self._last_problem = error.message
            else:
                return
            finally:
                await link.close()
            await asyncio.sleep(self._config.probe_interval.total_seconds())

    async def _free(self) -> None:
        """Let the backend give its model back. Many cannot; that only costs the time."""
        self.state = ProcessState.STOPPING
        if self._force.is_set():
            return
        link = self._connect(self.launch.address, self.launch.token)
        try:
            self.freed = await first_done(self._force.wait(), link.free(timeout=self._config.free_within)) == 1
        except CorralError as error:
            self.not_freed = error.message
            facts = {"event": "backend.not_freed", "key": str(self.launch.key)}
            log.info("backend did not free its model: %s", error, extra=facts)
        finally:
            await link.close()

    async def _end(self, process: ChildProcess) -> Ending:
        self.state = ProcessState.STOPPING
        self.descendants = await asyncio.to_thread(descendants_of, process.pid)
        await process.stop(self._config.stop_grace)
        return Ending(reason=f"backend {self.launch.key} was stopped ({_exit_of(process)})", is_expected=True)

    def _settle(self, error: CorralError | None) -> None:
        """Notify all waiters; the first outcome counts."""
        if self._ready.done():
            return
        if error is None:
            self._ready.set_result(None)
        else:
            self._ready.set_exception(error)
            self._ready.exception()  # mark as retrieved: perhaps nobody waits

    def _failure(self, problem: str, detail: str) -> ChildFailed:
        """Return the error in the words of LocalAI's worker, with further details at the end."""
        tail = self._tail()
        lines = [f"{problem}. Last stderr:", *tail, *([f"({detail})"] if detail else [])]
        return ChildFailed("\n".join(lines), child=str(self.launch.key), tail=tail)

    def _explained(self, error: ChildFailed) -> ChildFailed:
        """Say which setting to look at, if confinement may be why a file could not be used."""
        if not self._is_held or not looks_denied(error.message):
            return error
        hint = (
            "(a file could not be used. If the backend needs files outside of its directory, name them in the worker's "
            "setting backend_read_paths (CORRAL_BACKEND_READ_PATHS), or exempt the backend: "
            f"corral backends confine {self.launch.home.name} --off --reason TEXT)"
        )
        return ChildFailed(f"{error.message}\n{hint}", **error.fields)

    def _tail(self) -> list[str]:
        """The last errors of this process, not of an earlier one with the same key."""
        self._stdout.end()
        self._stderr.end()
        return self._stderr.tail


def looks_denied(message: str) -> bool:
    """Whether a failed start says that a file may not be read or run: in words, or as a shell does by its exit code."""
    return "permission denied" in message.lower() or message.endswith(("(exit code 126)", "(exit code 127)"))


def _exit_of(process: ChildProcess) -> str:
    return describe_exit(process.returncode) if process.returncode is not None else "still there"
