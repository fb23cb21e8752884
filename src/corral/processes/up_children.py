"""The children of `corral up`: how its frontend and its workers are started and probed."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import AddressInUse, PathNotUsable
from corral.base.private_files import read_private, write_private
from corral.base.processes import ChildCommand
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.frontend.config import CREDENTIALS_FILE
from corral.processes.children import FINAL_BUT_IN_USE, Child, own_command
from corral.processes.launcher import CONTROL, GATEWAY
from corral.processes.probe import ProbeAnswer, ask, dialled, http_url, is_free, until_ok
from corral.processes.settings import without_settings
from corral.processes.up_file import UpKeys
from corral.wire.nodes import NodePage

FRONTEND_READY_WITHIN: Final = timedelta(seconds=120)
FRONTEND_GRACE: Final = timedelta(seconds=6)
_REPORT_BYTES: Final = 4096


class UpFrontend:
    """The frontend. `on_change` is called whenever a pid of control or of a gateway changes."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        data: Path,
        environment: Callable[[], Mapping[str, str]],
        on_change: Callable[[], None],
    ) -> None:
        self.control_pid: int | None = None
        self._host = dialled(host)
        self.port = port
        self.url = http_url(host, port)
        self.credentials_file = data / CREDENTIALS_FILE
        self._environment = environment
        self._on_change = on_change
        self._reports: int | None = None
        self._gateways: dict[str, int] = {}

    @property
    def gateway_pids(self) -> list[int]:
        """The last known pids: a gateway that dies is restarted at once."""
        return [pid for _, pid in sorted(self._gateways.items())]

    @property
    def child(self) -> Child:
        return Child(
            name="frontend",
            command=self._command,
            ready=lambda: until_ok(lambda: ask(self._host, self.port, "/healthz")),
            ready_within=FRONTEND_READY_WITHIN,
            stop_grace=FRONTEND_GRACE,
            final_exit_codes=FINAL_BUT_IN_USE,
            final_when_ready=True,  # a gateway answers before control has looked at the database
        )

    def credentials(self) -> UpKeys | None:
        """Return the keys that control stores for us; None before its first start, or if the file is not ours."""
        try:
            text = read_private(self.credentials_file)
            return None if text is None else msgspec.json.decode(text, type=UpKeys)
        except (PathNotUsable, *UNREADABLE_JSON):
            return None

    async def readiness(self) -> ProbeAnswer | None:
        """Ask the gateway, and if it is ready, control."""
        gateway_answer = await ask(self._host, self.port, "/readyz")
        return (
            await ask(self._host, self.port, "/api/v1/ready")
            if gateway_answer is not None and gateway_answer.status == 200
            else gateway_answer
        )

    async def nodes(self) -> NodePage | None:
        """Return the fleet as control sees it; None while it gives no answer."""
        keys = self.credentials()
        if keys is None:
            return None
        headers = {"Authorization": f"Bearer {keys.admin}"}
        answer = await ask(self._host, self.port, "/api/v1/nodes?limit=1000", headers)
        if answer is None or answer.status != 200:
            return None
        return msgspec.json.decode(answer.body, type=NodePage)

    def close(self) -> None:
        """Close the pipe of the reports."""
        if self._reports is not None:
            asyncio.get_running_loop().remove_reader(self._reports)
            os.close(self._reports)
            self._reports = None

    def _command(self) -> ChildCommand:
        self.close()
        self._reports, writer = os.pipe()
        os.set_blocking(self._reports, False)
        asyncio.get_running_loop().add_reader(self._reports, self._read_report)
        argv = own_command("frontend", "--report-descriptor", str(writer))
        environment = {**self._environment(), "CORRAL_CREDENTIALS_FILE": str(self.credentials_file)}
        return ChildCommand(argv=argv, env=environment, handed_over=[writer])

    def _read_report(self) -> None:
        """Read the reported pids. They are a few short lines, which a pipe transfers atomically."""
        if self._reports is None:
            return
        data = os.read(self._reports, _REPORT_BYTES)
        if not data:
            self.close()
            return
        pids: dict[str, int] = json.loads(data.splitlines()[-1])
        control = pids.get(CONTROL, self.control_pid)
        gateways = {name: pid for name, pid in pids.items() if name.startswith(GATEWAY)}
        changed = control != self.control_pid or not gateways.items() <= self._gateways.items()
        self.control_pid = control
        self._gateways |= gateways
        if changed:
            self._on_change()


HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 21001
LAST_PORT: Final = 32601
STEP: Final = 100
"""Ports per worker: from one below its base port to 98 above it, all outside the kernel's ephemeral range. The last is
no port of the worker: it shows other fleets that the others are taken."""
WORKER_READY_WITHIN: Final = timedelta(seconds=60)
WORKER_GRACE: Final = timedelta(seconds=5)
DRAIN: Final = "2s"
"""Short, so that Ctrl-C on a laptop does not take half a minute."""
RETRY: Final = "200ms"
"""Short, because the frontend starts at the same time and needs about a second."""
NATS_SETTINGS: Final = ("nats_url", "nats_jwt", "nats_seed", "nats_tls_ca", "nats_tls_cert", "nats_tls_key")
_DECIDED: Final = frozenset(
    {
        *NATS_SETTINGS,
        "register_to",
        "registration_token",
        "join_code",
        "fleet_pin",
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
"""Settings that `corral up` decides for its workers; those of the environment are ignored."""


class WorkerPorts:
    """Base ports of workers, the same at every start while they are free. Closing it frees them for other fleets."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._reserved: dict[int, tuple[int, socket.socket]] = {}
        try:
            stored = json.loads(read_private(file) or b"{}")
            self._ports: dict[int, int] = {
                int(number): int(port) for number, port in stored.items() if 1024 < int(port) < 65536 - STEP
            }
        except (ValueError, TypeError, AttributeError, PathNotUsable):  # an unreadable file is replaced
            self._ports = {}

    def choose(self, worker: int) -> int:
        """Return the last port if it is free, else the next free one; reserve and store it."""
        other_ports = {port for number, port in self._ports.items() if number != worker}
        last = self._ports.get(worker)
        candidates: list[int] = [*([last] if last is not None else []), *range(FIRST_PORT, LAST_PORT, STEP)]
        for port in candidates:
            is_ours = port not in other_ports and is_free(HOST, port) and is_free(HOST, port - 1)
            if is_ours and self._reserve(worker, port):
                if port != last:
                    self._ports[worker] = port
                    stored = {str(number): base for number, base in sorted(self._ports.items())}
                    write_private(self._file, json.dumps(stored).encode())
                return port
        raise AddressInUse(f"all ports for workers are taken, from {FIRST_PORT} to {LAST_PORT} in steps of {STEP}")

    def close(self) -> None:
        for _, guard in self._reserved.values():
            guard.close()
        self._reserved.clear()

    def _reserve(self, worker: int, port: int) -> bool:
        """Keep a fleet that starts at the same moment away: until its worker listens, a port looks free to both.

        The last port of each stretch is bound for that, and used for nothing else.
        """
        reserved, guard = self._reserved.get(worker, (0, None))
        if reserved == port:
            return True
        new_guard = socket.socket()
        try:
            new_guard.bind((HOST, port + STEP - 2))
        except OSError:
            new_guard.close()
            return False
        if guard is not None:
            guard.close()
        self._reserved[worker] = port, new_guard
        return True


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
        """Its address in the node list."""
        return f"{HOST}:{self._base_port}"

    @property
    def child(self) -> Child:
        return Child(
            name=self.name,
            command=self._command,
            ready=lambda: until_ok(lambda: ask(HOST, self._base_port - 1, "/healthz")),
            ready_within=WORKER_READY_WITHIN,
            stop_grace=WORKER_GRACE,
            final_exit_codes=FINAL_BUT_IN_USE,
        )

    async def readiness(self) -> ProbeAnswer | None:
        """Ask whether it is registered and connected."""
        return await ask(HOST, self._base_port - 1, "/readyz") if self._base_port else None

    def _command(self) -> ChildCommand:
        """Build the command before every start: a port that was taken meanwhile is replaced."""
        base = self._base_port = self._ports.choose(self._number)
        addresses = {
            "CORRAL_NODE_NAME": self.name,
            "CORRAL_LOG_NAME": self.name,
            "CORRAL_DATA": str(self._directory),
            "CORRAL_BACKENDS_PATH": str(self._directory / "backends"),
            "CORRAL_ADDRESS": self.address,
            "CORRAL_HTTP_ADDRESS": f"{HOST}:{base - 1}",
            "CORRAL_MAX_PORT": str(base + STEP - 3),
        }
        return ChildCommand(argv=own_command("worker"), env={**self._environment(), **addresses})


def worker_environment(environment: Mapping[str, str], decided: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of all workers: the caller's without the settings decided here, then the decisions."""
    inherited = without_settings(environment, "worker", _DECIDED)
    return {**inherited, "CORRAL_DRAIN_TIMEOUT": DRAIN, "CORRAL_REGISTRATION_RETRY": RETRY, **decided}
