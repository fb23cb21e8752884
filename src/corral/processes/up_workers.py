"""The workers of `corral up`: where each one lives, which ports it has, and how it is started."""

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from corral.base.errors import AddressInUse, PathNotUsable
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.base.processes import ChildCommand
from corral.processes.children import Child
from corral.processes.exit_codes import NOT_WORTH_A_RESTART, ExitCode
from corral.processes.listening import is_free
from corral.processes.own_program import own_command
from corral.processes.probe import ProbeAnswer, ask, until_ok
from corral.processes.settings import without_settings

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 21001
LAST_PORT: Final = 32601
STEP: Final = 100
"""Each worker has the ports from one below its base port to 98 above it, all outside the kernel's ephemeral range."""
READY_WITHIN: Final = timedelta(seconds=60)
GRACE: Final = timedelta(seconds=5)
DRAIN: Final = "2s"
"""Ctrl-C on a laptop must not take half a minute."""
RETRY: Final = "200ms"
"""The frontend starts at the same time, a second's work away."""
_DECIDED: Final = frozenset(
    {
        "register_to",
        "registration_token",
        "nats_url",
        "nats_jwt",
        "nats_seed",
        "nats_tls_ca",
        "nats_tls_cert",
        "nats_tls_key",
        "name",
        "data",
        "backends",
        "models",
        "address",
        "serve_address",
        "advertise_address",
        "http_address",
        "advertise_http_address",
        "max_port",
        "heartbeat_interval",
        "drain_timeout",
        "registration_retry",
    }
)
"""Settings that `corral up` decides for its workers; what the environment says of them is meant for others."""


class WorkerPorts:
    """Base ports, the same ones at every start as long as nobody else takes them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._taken: dict[int, int] = self._load()

    def choose(self, worker: int) -> int:
        """The port of last time if it is free, else the next one that is; remembered."""
        others = {port for number, port in self._taken.items() if number != worker}
        last = self._taken.get(worker)
        candidates: list[int] = [*([last] if last is not None else []), *range(FIRST_PORT, LAST_PORT, STEP)]
        for port in candidates:
            if port not in others and is_free(HOST, port) and is_free(HOST, port - 1):
                self._remember(worker, port)
                return port
        raise AddressInUse(f"all ports for workers are taken, from {FIRST_PORT} to {LAST_PORT} in steps of {STEP}")

    def _remember(self, worker: int, port: int) -> None:
        if self._taken.get(worker) != port:
            self._taken[worker] = port
            kept = {str(number): port for number, port in sorted(self._taken.items())}
            write_private(self._file, json.dumps(kept).encode())

    def _load(self) -> dict[int, int]:
        """What cannot be read is forgotten: ports are only a habit."""
        try:
            kept = json.loads(read_private(self._file) or b"{}")
            return {int(number): int(port) for number, port in kept.items() if 1024 < int(port) < 65536}
        except (ValueError, TypeError, AttributeError, PathNotUsable):
            return {}


class UpWorker:
    """One worker of `corral up`."""

    def __init__(
        self, number: int, *, directory: Path, ports: WorkerPorts, environment: Callable[[], Mapping[str, str]]
    ) -> None:
        self.name = f"worker-{number}"
        self._number = number
        self._directory = directory
        self._ports = ports
        self._environment = environment
        self._base_port = 0

    @property
    def address(self) -> str:
        """What the node list shows for it."""
        return f"{HOST}:{self._base_port}"

    @property
    def child(self) -> Child:
        return Child(
            name=self.name,
            command=self._command,
            ready=self._until_it_serves,
            ready_within=READY_WITHIN,
            stop_grace=GRACE,
            final_exit_codes=frozenset(NOT_WORTH_A_RESTART - {ExitCode.IN_USE}),
        )

    async def readiness(self) -> ProbeAnswer | None:
        """What it says about being registered and connected."""
        return await ask(HOST, self._base_port - 1, "/readyz") if self._base_port else None

    def _command(self) -> ChildCommand:
        """Called before every start: a port that somebody took meanwhile is replaced."""
        base = self._base_port = self._ports.choose(self._number)
        own = {
            "CORRAL_NODE_NAME": self.name,
            "CORRAL_LOG_NAME": self.name,
            "CORRAL_DATA": str(self._directory),
            "CORRAL_BACKENDS_PATH": str(self._directory / "backends"),
            "CORRAL_ADDRESS": self.address,
            "CORRAL_HTTP_ADDRESS": f"{HOST}:{base - 1}",
            "CORRAL_MAX_PORT": str(base + STEP - 2),
        }
        return ChildCommand(argv=own_command("worker"), env={**self._environment(), **own})

    async def _until_it_serves(self) -> None:
        await until_ok(HOST, self._base_port - 1, "/healthz")


def worker_environment(environment: Mapping[str, str], decided: Mapping[str, str]) -> dict[str, str]:
    """What all workers share: the caller's environment without what is decided here, then the decisions."""
    kept = without_settings(environment, "worker", _DECIDED)
    return {**kept, "CORRAL_DRAIN_TIMEOUT": DRAIN, "CORRAL_REGISTRATION_RETRY": RETRY, **decided}


def make_workers(count: int, data: Path, environment: Callable[[], Mapping[str, str]]) -> list[UpWorker]:
    """Workers 1 to `count`, each with a directory of its own; the environment is asked for before every start."""
    folder = make_private_directory(data / "workers")
    ports = WorkerPorts(folder / "ports.json")
    return [
        UpWorker(number, directory=folder / str(number), ports=ports, environment=environment)
        for number in range(1, count + 1)
    ]
