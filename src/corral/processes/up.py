"""`corral up`: a whole fleet on one machine. NATS, a frontend and workers are separate processes, kept alive.

All start in parallel, because workers retry until their frontend is there. `up.json` exists exactly while the fleet
is ready. The stop has an order: workers, frontend, NATS. Nothing is left, even after SIGKILL: the kernel ends every
child with its parent.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

import msgspec

from corral.base.clock import SystemClock
from corral.base.errors import AddressInUse, ChildFailed, PathNotUsable, SettingInvalid
from corral.base.ids import new_secret
from corral.base.logs import LogOutput, set_up_logs
from corral.base.private_files import held, is_there, make_private_directory
from corral.base.processes import look_for_garbage_rarely
from corral.base.tasks import run_services, stop_on_signals, task_group
from corral.bus.server import NatsServer
from corral.frontend.nodes.decide.node import NodeStatus
from corral.processes.children import FINAL, FINAL_BUT_IN_USE, Child, Children, start_patiently
from corral.processes.configs import server_tls
from corral.processes.exit_codes import ExitCode, exit_code_of, sole_cause
from corral.processes.first_model import NAME, first_model_of, give_first_model
from corral.processes.probe import http_url, is_free, take_port
from corral.processes.settings import SECTIONS, WORKER_NEEDS, UpSettings, child_environment, without_settings
from corral.processes.settings_sources import SettingSources, resolve
from corral.processes.up_children import NATS_SETTINGS, UpFrontend, UpWorker, WorkerPorts, worker_environment
from corral.processes.up_file import LOCK, UpFile, UpKeys, UpPids, remove_up_file, write_up_file
from corral.worker.files.keys import refuse_private

log = logging.getLogger(__name__)

STOP_WITHIN: Final = timedelta(seconds=9)
LOOK_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 5.0
"""After this time the command shows the user what it waits for."""
_ATTEMPTS: Final = 3
_PORTS_TRIED: Final = 100
"""So many ports behind one that is taken are looked at for one that is free; otherwise any is offered."""
_DECIDED_FOR_FRONTEND: Final = frozenset(
    {*NATS_SETTINGS, "nats_account_seed", "nats_operator_seed", "nats_system_creds", "nats_worker_jwt_ttl"}
)
"""NATS settings of the environment, which are meant for another server than the embedded one."""
LOGS: Final = "logs"
"""Directory of all log files of the fleet, in the data directory."""
LOOPBACK: Final = "127.0.0.1"
FLEET_FILE: Final = "fleet.json"


class ReadyFleet(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a fleet that has started."""

    url: str
    healthy: int
    """Number of healthy nodes."""
    seconds: float
    """Duration of the start."""
    model: str | None
    """A model for the first question."""
    logs: Path


class UpWords(Protocol):
    """The messages of `corral up`."""

    def new_keys(self, keys: UpKeys, file: Path) -> None:
        """Called when the fleet has new keys, stored in this private file."""

    def waiting(self, reasons: list[str]) -> None: ...

    def ready(self, fleet: ReadyFleet) -> None: ...

    def stopping(self) -> None: ...

    def again(self, *flags: str) -> str:
        """The command line that starts this fleet with these flags."""


def run_up(settings: UpSettings, logs: LogOutput, sources: SettingSources, words: UpWords) -> int:
    """Run a fleet until a signal, or until a part of it cannot be kept alive; return the exit code."""
    began = time.monotonic()
    refuse_private(models=settings.models, staging=None, private=settings.data)
    if _is_made(settings.data):
        _refuse_lost(settings, sources)
    else:  # a refused start leaves nothing behind; an existing fleet is reported first
        _public_port(settings, words)
        take_port(settings.nats_host, settings.nats_port or 0, flag="--nats-port")
        with _naming_the_flag():
            make_private_directory(settings.data)
    log_directory = logs.directory or settings.data / LOGS
    already = f"another `corral up` runs in {settings.data}; stop it first, or choose another directory with --data"
    with held(settings.data / LOCK, already):
        set_up_logs("up", replace(logs, directory=log_directory))
        remove_up_file(settings.data)
        look_for_garbage_rarely()
        try:
            return asyncio.run(Up(settings, sources, words, log_directory=log_directory, began=began).run())
        except asyncio.CancelledError:  # second signal: no time for messages
            return ExitCode.INTERRUPTED


def _public_port(settings: UpSettings, words: UpWords) -> int:
    """The port that everybody uses. Many programs have the usual one, so the way past them is a line to copy."""
    try:
        return take_port(settings.host, settings.port)
    except AddressInUse as error:
        others = range(settings.port + 10, min(settings.port + _PORTS_TRIED, 65536))
        free = next((port for port in others if is_free(settings.host, port)), 0)
        host = [] if settings.host == LOOPBACK else ["--host", settings.host]
        raise AddressInUse(f"{error.message}, as in: {words.again(*host, '--port', str(free))}") from None


@contextmanager
def _naming_the_flag() -> Iterator[None]:
    try:
        yield
    except PathNotUsable as error:
        raise PathNotUsable(f"{error.message}; choose another directory with --data") from error


@_naming_the_flag()
def _is_made(data: Path) -> bool:
    """Whether the data directory is there, which means that it can be used as well."""
    return is_there(data) and make_private_directory(data).is_dir()


def _refuse_lost(settings: UpSettings, sources: SettingSources) -> None:
    """Refuse to start beside the keys of a fleet whose SQLite file is missing, before anything else is started.

    The frontend says so too, but only after NATS and workers were started for nothing.
    """
    keys = (settings.data / name for name in (FLEET_FILE, "secrets.key", "credentials.json"))
    if (settings.data / "corral.db").exists() or not any(key.exists() for key in keys):
        return
    # Only now: these imports take longer than the rest of a start.
    from corral.frontend.config import ControlConfig
    from corral.processes.control_data import fleet_data

    environment = {**sources.environment, "CORRAL_NATS_URL": f"nats://{LOOPBACK}"}  # the embedded one, not made yet
    config = resolve(ControlConfig, SettingSources(flags=sources.flags, environment=environment, file=sources.file))
    fleet_data(replace(config, data=settings.data, new_fleet=settings.new_fleet)).expect_file()


class Up:
    """One run of `corral up`."""

    def __init__(
        self, settings: UpSettings, sources: SettingSources, words: UpWords, *, log_directory: Path, began: float
    ) -> None:
        self._settings = settings
        self._log_directory = log_directory.absolute()
        self._words = words
        self._began = began
        self._is_ready = False
        self._pids: dict[str, int] = {}
        self._nats = NatsServer(
            settings.data / "nats", host=settings.nats_host, port=settings.nats_port, port_setting="--nats-port"
        )
        self._sources = sources
        self._models = make_private_directory(settings.models).absolute()
        self._trusted_token = new_secret()
        self._has_tls = server_tls(settings.tls_cert, settings.tls_key) is not None
        if "tls_cert" in sources.file.sections.get("frontend", {}):
            problem = f"`corral up` takes it from section [up] of {sources.file.path}, not from [frontend]"
            raise SettingInvalid("tls_cert", problem)
        port = _public_port(settings, words)
        self._public_url = http_url(settings.host, port, "https" if self._has_tls else "http")
        self._public_port = port
        self._frontend = UpFrontend(
            # Our workers and commands need no TLS, and the certificate need not name 127.0.0.1.
            host=LOOPBACK if self._has_tls else settings.host,
            port=take_port(LOOPBACK, 0) if self._has_tls else port,
            data=settings.data,
            environment=self._frontend_environment,
            on_change=self._publish,
        )
        self._known_keys = self._frontend.credentials()
        folder = make_private_directory(settings.data / "workers")
        self._ports = WorkerPorts(folder / "ports.json")
        self._workers = [
            UpWorker(number, directory=folder / str(number), ports=self._ports, environment=self._worker_environment)
            for number in range(1, settings.workers + 1)
        ]

    def _child_environment(self, needs: Sequence[str] = SECTIONS) -> dict[str, str]:
        changes = {"CORRAL_LOG_DIRECTORY": str(self._log_directory)}
        index = self._settings.provisions / "backends" / "index.yaml"  # lists images of Corral's own backends
        gallery = {"CORRAL_BUILTIN_GALLERY": str(index)} if index.exists() else {}
        return {**gallery, **child_environment(self._sources, changes, needs=needs)}

    @property
    def _first_model(self) -> Path | None:
        return self._settings.first_model or first_model_of(self._settings.provisions)

    def _frontend_environment(self) -> Mapping[str, str]:
        """Return the frontend's environment. Called after NATS runs, because its port may change until then."""
        tls = {
            "CORRAL_TLS_CERT": str(self._settings.tls_cert),
            "CORRAL_TLS_KEY": str(self._settings.tls_key),
            "CORRAL_PLAIN_PORT": str(self._frontend.port),
        }
        weights = self._first_model
        return {
            **({"CORRAL_FIRST_MODEL_FILE": str(weights.absolute())} if weights is not None else {}),
            **without_settings(self._child_environment(), "frontend", _DECIDED_FOR_FRONTEND),
            "CORRAL_HOST": self._settings.host,
            "CORRAL_PORT": str(self._public_port),
            **(tls if self._has_tls else {}),
            "CORRAL_DATA": str(self._settings.data),
            "CORRAL_MODELS_PATH": str(self._models),
            **self._nats.frontend_environment,
            "CORRAL_TRUSTED_REGISTRATION_TOKEN": self._trusted_token,
        }

    def _worker_environment(self) -> Mapping[str, str]:
        return worker_environment(
            self._child_environment(WORKER_NEEDS),
            {
                "CORRAL_REGISTER_TO": self._frontend.url,
                "CORRAL_REGISTRATION_TOKEN": self._trusted_token,
                "CORRAL_MODELS_PATH": str(self._models),
                "CORRAL_HEARTBEAT_INTERVAL": f"{self._settings.heartbeat_interval.total_seconds():f}s",
            },
        )

    async def run(self) -> int:
        """Run until a signal; a second one ends everything at once."""
        stop = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"  # noqa: S101 - for the type checker
        with closing(self._frontend), closing(self._ports), stop_on_signals(stop, hurry=task.cancel):
            async with Children(clock=SystemClock(), on_change=self._pids_changed, stop_within=STOP_WITHIN) as children:
                try:
                    await run_services(stop, fleet=self._keep(children))
                    self._words.stopping()
                except ExceptionGroup as group:
                    cause = sole_cause(group)
                    if not isinstance(cause, ChildFailed):
                        raise cause from group
                    # The children have logged their reasons; this says which one it was.
                    log.error("%s", cause, extra={"event": "up.failed"})  # noqa: TRY400 - they have the tracebacks
                    code = cause.fields.get("exit_code")
                    is_ours = cause.fields.get("child") != "nats-server"
                    return code if is_ours and isinstance(code, int) and code > 0 else exit_code_of(cause)
                finally:
                    self._is_ready = False
                    remove_up_file(self._settings.data)
        return ExitCode.OK

    async def _keep(self, children: Children) -> None:
        has_first_model = await asyncio.to_thread(give_first_model, self._models, self._first_model)
        for attempt in range(1, _ATTEMPTS + 1):
            self._nats.prepare()
            try:
                await children.start(self._nats.child)
                break
            except ChildFailed:  # a program may have taken the port between our check and the server's start
                if attempt == _ATTEMPTS:
                    raise
        async with task_group() as watch:  # the frontend may end for good while others start
            watcher = watch.create_task(children.run(), name="watch the fleet")
            async with task_group() as starts:
                starts.create_task(self._start(children, self._frontend.child), name="start the frontend")
                if self._workers:
                    workers = [worker.child for worker in self._workers]
                    work = self._start(children, *workers, final=FINAL_BUT_IN_USE)
                    starts.create_task(work, name="start the workers")
                starts.create_task(self._until_ready(), name="wait for the fleet")
            watcher.cancel()
        self._is_ready = True
        self._publish()
        keys = self._frontend.credentials()
        if keys is not None and keys != self._known_keys:
            self._words.new_keys(keys, self._frontend.credentials_file)
        fleet = ReadyFleet(
            url=self._public_url,
            healthy=len(self._workers),
            seconds=time.monotonic() - self._began,
            model=NAME if has_first_model and self._workers else None,
            logs=self._log_directory,
        )
        self._words.ready(fleet)
        await children.run()

    async def _start(self, children: Children, *group: Child, final: frozenset[int] = FINAL) -> None:
        await start_patiently(children, *group, clock=SystemClock(), attempts=_ATTEMPTS, final=final)

    async def _until_ready(self) -> None:
        last_message = time.monotonic()
        while reasons := await self._missing():
            if time.monotonic() - last_message >= PATIENCE_SECONDS:
                self._words.waiting(reasons)
                last_message = time.monotonic()
            await asyncio.sleep(LOOK_SECONDS)

    async def _missing(self) -> list[str]:
        """Return what keeps the fleet from being ready, for the user."""
        answer = await self._frontend.readiness()
        if answer is None or self._frontend.control_pid is None:
            return ["the frontend, which does not answer yet"]
        if answer.status != 200:
            return [f"the frontend, which says: {answer.sentence}"]
        page = await self._frontend.nodes()
        if page is None:
            return ["the frontend, which does not show its nodes yet"]
        statuses = {node.address: node.status for node in page.items}
        reasons = [await _why_not(worker, statuses.get(worker.address)) for worker in self._workers]
        return [reason for reason in reasons if reason]

    def _pids_changed(self, pids: Mapping[str, int]) -> None:
        """Update the pids. The file keeps the last pid of a process that is being restarted, never 0."""
        self._pids.update(pids)
        self._publish()

    def _publish(self) -> None:
        """Write `up.json`, if the fleet is ready."""
        keys = self._frontend.credentials()
        if not self._is_ready or keys is None:
            return
        content = UpFile(
            url=self._frontend.url,
            nats_url=self._nats.url,
            keys=keys,
            pids=UpPids(
                up=os.getpid(),
                frontend=self._pids[self._frontend.child.name],
                control=self._frontend.control_pid or 0,
                gateways=self._frontend.gateway_pids,
                nats=self._pids[self._nats.child.name],
                workers=[self._pids[worker.name] for worker in self._workers],
            ),
        )
        try:
            write_up_file(self._settings.data, content)
        except PathNotUsable as error:
            log.warning("up.json is out of date: %s", error, extra={"event": "up.not_written"})


async def _why_not(worker: UpWorker, status: str | None) -> str:
    """Return why a worker is not ready; empty if it is. Asks the worker too: the node list may show its last run."""
    answer = await worker.readiness()
    if answer is None:
        return f"{worker.name}, which does not answer yet"
    if answer.status != 200:
        return f"{worker.name}, which says: {answer.sentence}"
    if status != NodeStatus.HEALTHY:
        return f"{worker.name}, whose status is {status or 'unknown'}"
    return ""
