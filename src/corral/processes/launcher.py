"""`corral frontend`: a launcher without logic. It starts control and gateways, restarts them when they die, and stops
them.

The gateways own the public port; control listens on a private socket. A key that is created at every start, and
passed to both through descriptors, authenticates them to each other.

Control is ready for the launcher when it serves, even if it still waits for NATS: it must not be killed for that.
Errors that a restart cannot repair end the launcher with control's own exit code; control has logged the reason.
"""

import asyncio
import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from corral.base.clock import SystemClock
from corral.base.errors import CorralError
from corral.base.logs import LogOutput, set_up_logs
from corral.base.private_files import make_private_directory
from corral.base.processes import ChildCommand, secret_descriptor
from corral.base.tasks import run_services, stop_on_signals
from corral.frontend.config import ControlConfig
from corral.processes.children import Child, Children, own_command, start_patiently
from corral.processes.exit_codes import NOT_WORTH_A_RESTART, ExitCode, exit_code_of, sole_cause
from corral.processes.probe import dialled, http_url, take_port, until_ok, until_ok_behind_tls, until_socket_ok
from corral.processes.settings import CONTROL_NEEDS, GATEWAY_NEEDS, child_environment
from corral.processes.settings_sources import SettingSources
from corral.processes.tls import server_tls
from corral.wire.keys import new_key

log = logging.getLogger(__name__)

CONTROL: Final = "control"
GATEWAY: Final = "gateway"
GATEWAY_READY_WITHIN: Final = timedelta(seconds=30)
_LONGEST_SOCKET: Final = 104
"""Maximum bytes in the path of a Unix socket, on the system with the lowest limit."""
CONTROL_READY_WITHIN: Final = timedelta(seconds=120)
"""Longer than control itself waits for an unresponsive database, plus time for a migration."""
CONTROL_GRACE: Final = timedelta(seconds=4)
"""Requests in progress get three seconds of it."""
STOP_WITHIN: Final = timedelta(seconds=5)


def run_frontend(
    settings: ControlConfig, logs: LogOutput, sources: SettingSources, *, report: Callable[[Mapping[str, int]], None]
) -> int:
    """Run until a signal, or until control cannot be kept alive; return the exit code. `report` is called with the
    pids."""
    set_up_logs("frontend", logs)
    return asyncio.run(_launch(settings, sources, report))


def report_nothing(_: Mapping[str, int]) -> None:
    """Ignore the pids."""


def report_to(descriptor: int) -> Callable[[Mapping[str, int]], None]:
    """Return a function that writes changed pids as a line of JSON, so that a supervisor knows our children."""

    def report(pids: Mapping[str, int]) -> None:
        os.write(descriptor, json.dumps(dict(pids)).encode() + b"\n")

    return report


async def _launch(settings: ControlConfig, sources: SettingSources, report: Callable[[Mapping[str, int]], None]) -> int:
    # A port chosen by a gateway would change with each of its restarts.
    server_tls(settings.tls_cert, settings.tls_key)  # reports invalid settings here, once
    family = ChildSettings(
        host=settings.host,
        port=take_port(settings.host, settings.port),
        socket=socket_path(settings.data),
        key=new_key(),
        sources=sources,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
    )
    stop = asyncio.Event()
    try:
        with stop_on_signals(stop):
            async with Children(clock=SystemClock(), on_change=report, stop_within=STOP_WITHIN) as children:
                try:
                    await run_services(stop, family=_keep(children, family, settings.gateways))
                except ExceptionGroup as group:
                    return _exit_code_after(sole_cause(group))
    finally:  # removed after the children ended: gateways send their last report through it
        _remove_socket(family.socket, settings.data)
    return ExitCode.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What the children of one frontend have in common."""

    host: str
    port: int
    socket: Path
    key: str = field(repr=False)
    sources: SettingSources
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def url(self) -> str:
        return http_url(self.host, self.port, "https" if self.tls_cert else "http")


def socket_path(data: Path) -> Path:
    """Return the socket's path: in the private data directory, unless its name is too long for the kernel."""
    name = f"control-{os.getpid()}.sock"  # a second frontend in this directory must not use the first one's socket
    path = data.absolute() / name
    if len(os.fsencode(path)) < _LONGEST_SOCKET:
        return path
    return Path(tempfile.mkdtemp(prefix="corral-")) / name


def _remove_socket(socket: Path, data: Path) -> None:
    """Remove the socket, and the directory that was created for it if the data directory's name was too long."""
    socket.unlink(missing_ok=True)
    if socket.parent != data.absolute():
        with contextlib.suppress(OSError):
            socket.parent.rmdir()


async def _keep(children: Children, family: ChildSettings, gateways: int) -> None:
    """Start all in parallel: a gateway serves at once and reports itself that control is not ready."""
    make_private_directory(family.socket.parent)
    async with asyncio.TaskGroup() as starts:
        starts.create_task(start_patiently(children, _control(family), clock=SystemClock()), name="start control")
        group = [_gateway(family, f"{GATEWAY}-{number}") for number in range(1, gateways + 1)]
        starts.create_task(start_patiently(children, *group, clock=SystemClock()), name="start gateways")
    log.info("serving", extra={"event": "frontend.serving", "url": family.url})
    await children.run()


def _gateway(family: ChildSettings, name: str) -> Child:
    settings = {
        "CORRAL_HOST": family.host,
        "CORRAL_PORT": str(family.port),
        "CORRAL_CONTROL_URL": f"unix:{family.socket}",
        "CORRAL_LOG_NAME": name,
        "CORRAL_REUSE_PORT": "true",
    }
    if family.tls_cert and family.tls_key:
        settings |= {"CORRAL_TLS_CERT": str(family.tls_cert), "CORRAL_TLS_KEY": str(family.tls_key)}
    environment = child_environment(family.sources, settings, needs=GATEWAY_NEEDS)

    def command() -> ChildCommand:
        key = secret_descriptor(family.key.encode())
        argv = own_command("gateway", "--key-descriptor", str(key))
        return ChildCommand(argv=argv, env=environment, handed_over=[key])

    async def ready() -> None:
        until = until_ok_behind_tls if family.tls_cert else until_ok
        await until(dialled(family.host), family.port, "/healthz")

    return Child(
        name=name,
        command=command,
        ready=ready,
        ready_within=GATEWAY_READY_WITHIN,
        stop_grace=CONTROL_GRACE,
        final_exit_codes=frozenset(NOT_WORTH_A_RESTART - {ExitCode.IN_USE}),
    )


def _control(family: ChildSettings) -> Child:
    changes = {"CORRAL_CONTROL_SOCKET": str(family.socket)}
    environment = child_environment(family.sources, changes, needs=CONTROL_NEEDS)

    def command() -> ChildCommand:
        key = secret_descriptor(family.key.encode())
        argv = own_command("control", "--gateway-key-descriptor", str(key))
        return ChildCommand(argv=argv, env=environment, handed_over=[key])

    async def ready() -> None:
        await until_socket_ok(family.socket, "/healthz")

    return Child(
        name=CONTROL,
        command=command,
        ready=ready,
        ready_within=CONTROL_READY_WITHIN,
        stop_grace=CONTROL_GRACE,
        final_exit_codes=frozenset(NOT_WORTH_A_RESTART - {ExitCode.IN_USE}),
    )


def _exit_code_after(error: CorralError) -> int:
    """Return the child's own exit code if it chose one; the child has logged the reason."""
    code = error.fields.get("exit_code")
    if isinstance(code, int) and code > 0:
        return code
    log.error("%s", error, extra={"event": "frontend.failed"})
    return exit_code_of(error)
