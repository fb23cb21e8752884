"""The backend processes of this node: at most one for each key, each run by a task of its own.

Decides nothing about backends: what to start is found elsewhere, see `backends.py`.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from typing import Final, Protocol, Self

import msgspec

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError
from corral.base.ids import new_secret
from corral.base.tasks import end_tasks, first_done, start_task
from corral.base.values import PartlyPrinted
from corral.wire.backends import InstallRequest
from corral.wire.replicas import ProcessKey
from corral.worker.config import SupervisionConfig
from corral.worker.hardware.gpus import MeasuredGpu
from corral.worker.hardware.visible_devices import device_variables
from corral.worker.installing.backend_directory import Home, identity_of
from corral.worker.membership.registration import ProcessToken
from corral.worker.processes.backend_logs import BackendLogs
from corral.worker.processes.ports import Ports, accepts_connections
from corral.worker.processes.process import BackendProcess, Confinement, Connect, Ending, Launch, Unconfined
from corral.worker.processes.remains import Remains

log = logging.getLogger(__name__)

_SHOWN_TAIL: Final = 5


class ProcessDefaults(PartlyPrinted, frozen=True, kw_only=True):
    """What all processes of a node have in common."""

    unprinted = ("environment", "token")

    bind_host: str
    environment: Mapping[str, str]
    token: Callable[[InstallRequest], ProcessToken]
    """What callers of a backend must present that is started for a request."""
    limits: SupervisionConfig
    """How long each may take for what."""
    listens: Callable[[str], Awaitable[bool]] = accepts_connections
    """Whether a backend still listens at its address."""
    cards: Callable[[], Sequence[MeasuredGpu]] = tuple
    """The GPUs of the machine, as of now."""
    confinement: Confinement = msgspec.field(default_factory=Unconfined)


class StopResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of processes that were to end."""

    gone: Sequence[ProcessKey] = ()
    left: Sequence[ProcessKey] = ()
    """Processes that even the kernel could not end in time. They keep their keys and ports."""


class ExitListener(Protocol):
    """Receives processes that ended by themselves."""

    async def tell(self, launch: Launch, ending: Ending) -> None: ...


class Supervisor:
    """Runs from the beginning to the end of the `async with` block, which ends every process."""

    def __init__(
        self,
        *,
        surroundings: ProcessDefaults,
        ports: Ports,
        connect: Connect,
        logs: BackendLogs,
        remains: Remains,
        exits: ExitListener,
    ) -> None:
        self._surroundings = surroundings
        self._ports = ports
        self._connect = connect
        self._logs = logs
        self._remains = remains
        self._exits = exits
        self._processes: dict[ProcessKey, BackendProcess] = {}
        self._lives: dict[ProcessKey, asyncio.Task[None]] = {}
        """The task that runs each process, until its key and its ports are free as well."""
        self._is_closing = False
        self._followers: list[Callable[[Launch], None]] = []

    def on_end(self, follower: Callable[[Launch], None]) -> None:
        """Register a callback for every process that is gone, however it ended. It must be quick."""
        self._followers.append(follower)

    async def __aenter__(self) -> Self:
        """Stop what an earlier worker process left: nobody knows what it serves."""
        if ended_keys := await asyncio.to_thread(self._remains.end_all):
            log.warning("ended what an earlier life left running: %s", ended_keys, extra={"event": "backend.reaped"})
        await asyncio.to_thread(self._surroundings.confinement.sweep)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, *, force: bool = False) -> None:
        """Start nothing more, stop everything at once. Takes no longer than one stop may take."""
        self._is_closing = True
        try:
            await self.stop(list(self._processes), force=force)
        finally:
            await end_tasks(*self._lives.values())

    def running(self) -> list[Launch]:
        """The processes that are ready and not about to end. From memory, so that it never waits."""
        return [process.launch for process in self._processes.values() if process.is_serving]

    def launches(self) -> list[Launch]:
        """All processes, in any state."""
        return [process.launch for process in self._processes.values()]

    def runs(self, launch: Launch) -> bool:
        """Whether this very process is ready, and not about to end."""
        process = self._processes.get(launch.key)
        return process is not None and process.launch is launch and process.is_serving

    def find(self, key: ProcessKey) -> BackendProcess | None:
        """The process of this key, in any state."""
        return self._processes.get(key)

    def check_cards(self, request: InstallRequest) -> None:
        """UnknownCard when the request names GPUs that this machine lacks, before anything is stopped for it."""
        device_variables(self._surroundings.cards(), request.cards or ())

    async def join(self, request: InstallRequest) -> Launch | None:
        """The requested process, once it is ready, if it certainly is the backend of that name, unchanged since its
        start, with the requested GPUs, and still listening. None when it must be looked for, or started.

        Costs one look at the disk and one connection. A start that fails fails for everybody who joined it.
        """
        process = self._processes.get(request.process_key)
        if process is None or process.is_ending or not _has_cards(process.launch, request):
            return None
        launch, home = process.launch, process.launch.home
        if request.backend != launch.backend and request.backend not in home.names:
            return None
        await self._until_ready(process)
        if await asyncio.to_thread(identity_of, home.directory) != home.identity or not process.is_serving:
            return None
        if not await self._surroundings.listens(launch.address):
            log.warning("%s closed its port; ending it", launch.key, extra={"event": "backend.deaf"})
            process.ask_to_stop(force=True)
            return None
        return launch

    def begin(self, request: InstallRequest, home: Home) -> BackendProcess:
        """Return the requested process, started if needed; or one that must end first, which `until_serving` reports.

        Nothing is awaited, so that what the caller knows about the disk still holds, and no second start of the same
        key can come between.
        """
        key = request.process_key
        if (process := self._processes.get(key)) is not None:
            used = process.launch.home
            is_same = used.executable == home.executable and used.identity == home.identity
            is_same = is_same and _has_cards(process.launch, request)
            if not process.is_ending and not is_same:
                process.ask_to_stop(force=False)
            return process
        if self._is_closing:
            raise Conflict("this worker is shutting down and starts nothing more")
        launch = self._launch(request, home)
        process = BackendProcess(
            launch, connect=self._connect, log=self._logs.of(str(key)), config=self._surroundings.limits
        )
        self._processes[key] = process
        self._lives[key] = start_task(self._live(process), name=f"backend {key}")
        return process

    def _launch(self, request: InstallRequest, home: Home) -> Launch:
        """What to start, with all ports that the backend wants, or none of them when one is missing."""
        key = request.process_key
        machine_cards, token = self._surroundings.cards(), self._surroundings.token(request)
        cards = [card.id for card in machine_cards] if request.cards is None else request.cards
        mark = secrets.token_hex(8)
        with ExitStack() as undo:

            def take_port(owner: str) -> int:
                port = self._ports.take(owner)
                undo.callback(self._ports.release, port)
                return port

            launch = Launch(
                key=key,
                backend=request.backend,
                home=home,
                model_id=request.model_id,
                bind_host=self._surroundings.bind_host,
                port=take_port(str(key)),
                http_port=take_port(f"{key} HTTP") if home.manifest.has_openai_port else None,
                front_port=take_port(f"{key} front") if home.manifest.has_front else None,
                token=token.text,
                has_own_token=token.is_own,
                http_key=new_secret(),
                mark=mark,
                environment=self._surroundings.environment,
                cards=frozenset(cards),
                device_variables=device_variables(machine_cards, cards, self._surroundings.environment),
                wish=request.confinement,
                scratch=self._surroundings.confinement.scratch_of(mark),
            )
            undo.pop_all()
        return launch

    async def until_serving(self, process: BackendProcess) -> Launch | None:
        """Wait until the process is ready; None when it had to end first, and is gone now. Concurrent callers share the
        outcome.

        Raise ChildFailed when it does not become ready, Conflict when it is stopped before that.
        """
        if process.is_ending:
            await self._until_gone(process)
            if self._is_current(process):
                raise Conflict(f"backend {process.launch.key} is stopping, and does not end")
            return None
        await self._until_ready(process)
        return process.launch

    async def ensure(self, request: InstallRequest, home: Home) -> Launch:
        """Begin and wait: return a ready process as requested."""
        while True:
            if (launch := await self.until_serving(self.begin(request, home))) is not None:
                return launch

    def ask_to_stop(self, keys: Iterable[ProcessKey], *, force: bool) -> list[BackendProcess]:
        """Begin to stop these processes concurrently. From now on they serve nobody. Unknown keys are ignored."""
        ending = [process for key in keys if (process := self._processes.get(key)) is not None]
        for process in ending:
            process.ask_to_stop(force=force)
        return ending

    async def stop(self, keys: Iterable[ProcessKey], *, force: bool) -> StopResult:
        """Stop these processes; return when they are gone, or had more than enough time."""
        ending = self.ask_to_stop(keys, force=force)
        await self._until_gone(*ending)
        return StopResult(
            gone=[process.launch.key for process in ending if not self._is_current(process)],
            left=[process.launch.key for process in ending if self._is_current(process)],
        )

    async def end(self, launch: Launch) -> None:
        """Stop this very process, if it still serves."""
        if self.runs(launch):
            await self.stop([launch.key], force=False)

    async def _until_ready(self, process: BackendProcess) -> None:
        try:
            await process.until_ready()
        except CorralError:
            await self._until_gone(process)  # so that a caller who learns of the failure finds the key free
            raise

    async def _until_gone(self, *processes: BackendProcess) -> None:
        """Wait until the processes have ended and their keys and ports are free, or until the time for a stop is
        over."""
        lives = {self._lives[process.launch.key] for process in processes if self._is_current(process)}
        if lives:
            await asyncio.wait(lives, timeout=self._surroundings.limits.gone_within.total_seconds())

    def _is_current(self, process: BackendProcess) -> bool:
        return self._processes.get(process.launch.key) is process

    async def _live(self, process: BackendProcess) -> None:
        launch = process.launch
        key, mark = str(launch.key), launch.mark
        facts = {"key": key, "backend": launch.home.name, "port": launch.port}
        log.info("starting backend", extra={"event": "backend.starting", **facts})

        async def remember(pid: int) -> None:
            await asyncio.to_thread(self._remains.remember, pid, mark=mark, key=key)

        try:
            async with AsyncExitStack() as stack:
                around = self._surroundings.confinement.around(launch)
                ending = await process.run(remember, lambda: stack.enter_async_context(around))
                if ending.is_expected:
                    log.info("%s", ending.reason, extra={"event": "backend.stopped", **facts})
                else:
                    errors = list(ending.tail[-_SHOWN_TAIL:])
                    log.warning("%s", ending.reason, extra={"event": "backend.died", **facts, "errors": errors})
                    if ending.was_ready:
                        await self._exits.tell(launch, ending)
                # Before its key and ports are free again: nothing of it serves or writes any more.
                end = self._remains.end
                if ended_count := await asyncio.to_thread(end, process.pid, mark=mark, descendants=process.descendants):
                    facts_left = {"event": "backend.remains_ended", "processes": ended_count, **facts}
                    log.warning("ended what a backend left running", extra=facts_left)
        except Exception:
            log.exception("backend failed", extra={"event": "backend.failed", **facts})
        finally:
            del self._processes[launch.key], self._lives[launch.key]
            for port in launch.ports:
                self._ports.release(port)
            for follower in self._followers:
                follower(launch)


def _has_cards(launch: Launch, request: InstallRequest) -> bool:
    """Whether a process sees the GPUs that it should, where the request names some."""
    return request.cards is None or launch.cards == frozenset(request.cards)


class UnusedProcesses:
    """Stops processes that nobody needs: started by an administrator's install, because LocalAI's protocol wants an
    address in the answer, and not used by any model since."""

    def __init__(self, end: Callable[[Launch], Awaitable[None]], *, clock: Clock, after: timedelta) -> None:
        """`end` must be idempotent; an `after` of zero keeps all processes running."""
        self._end = end
        self._clock = clock
        self._after = after.total_seconds()
        self._due: dict[str, tuple[float, Launch]] = {}
        self._used: set[str] = set()
        self._rung = asyncio.Event()

    def asked_for(self, launch: Launch, *, by_model: bool) -> None:
        """A process was requested. From a model's first request on it is in use."""
        if by_model:
            self._used.add(launch.mark)
            self._due.pop(launch.mark, None)
        elif launch.mark not in self._used and self._after:
            self._due[launch.mark] = (self._clock.monotonic() + self._after, launch)
            self._rung.set()

    def forget(self, launch: Launch) -> None:
        """Stop tracking a process that is gone."""
        self._used.discard(launch.mark)
        self._due.pop(launch.mark, None)

    async def run(self) -> None:
        """End processes whose time is over, until cancelled."""
        while True:
            self._rung.clear()
            if not self._due:
                await self._rung.wait()
                continue
            seconds = min(due for due, _ in self._due.values()) - self._clock.monotonic()
            if await first_done(self._rung.wait(), self._clock.sleep(seconds)) == 1:
                await self.sweep()

    async def sweep(self) -> None:
        """End those whose time is over."""
        while overdue := [launch for due, launch in self._due.values() if due <= self._clock.monotonic()]:
            del self._due[overdue[0].mark]
            await self._end(overdue[0])
