"""`corral frontend`: a launcher without logic. It starts control and gateways, restarts them when they die, and stops
them. An adapter is started when control needs one: see `adapter_child.py`.

The gateways own the public port; control listens on a private socket. A key that is created at every start, and
passed to both through descriptors, authenticates them to each other.

Control is ready for the launcher when it serves, even if it still waits for NATS: it must not be killed for that.
Errors that a restart cannot repair end the launcher with control's own exit code; control has logged the reason.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from corral.base.clock import SystemClock
from corral.base.errors import AddressInUse, CorralError, SettingInvalid
from corral.base.logs import LogOutput, set_up_logs
from corral.base.private_files import bind_private_socket, make_private_directory
from corral.base.processes import ChildCommand, look_for_garbage_rarely, secret_descriptor
from corral.base.tasks import run_services, stop_on_signals
from corral.base.values import PartlyPrinted
from corral.frontend.config import ControlConfig
from corral.processes.adapter_child import FrontendAdapter, adapter_argv
from corral.processes.children import FINAL_BUT_IN_USE, Child, Children, own_command, start_patiently
from corral.processes.configs import server_tls
from corral.processes.exit_codes import ExitCode, exit_code_of, sole_cause
from corral.processes.probe import ask, ask_socket, dialled, http_url, kept_port, take_port, until_ok, unverified_tls
from corral.processes.settings import CONTROL_NEEDS, GATEWAY_NEEDS, child_environment, listed_environment
from corral.processes.settings_sources import SettingSources
from corral.rpc.adapter_keeper import ADAPTER
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
    settings: ControlConfig, logs: LogOutput, sources: SettingSources, *, report_descriptor: int | None
) -> int:
    """Run until a signal, or until control cannot be kept alive; return the exit code.

    Changed pids are written to the descriptor as a line of JSON, so that a supervisor knows our children.
    """

    def report(pids: Mapping[str, int]) -> None:
        if report_descriptor is not None:
            os.write(report_descriptor, json.dumps(dict(pids)).encode() + b"\n")

    set_up_logs("frontend", logs)
    look_for_garbage_rarely()
    return asyncio.run(_launch(settings, logs, sources, report))


async def _launch(
    settings: ControlConfig, logs: LogOutput, sources: SettingSources, report: Callable[[Mapping[str, int]], None]
) -> int:
    server_tls(settings.tls_cert, settings.tls_key)  # reports invalid settings here, once
    # A port chosen by a gateway would change with each of its restarts.
    with kept_port(settings.host, settings.port) as port:
        return await _launch_on(port, settings, logs, sources, report)


async def _launch_on(
    port: int,
    settings: ControlConfig,
    logs: LogOutput,
    sources: SettingSources,
    report: Callable[[Mapping[str, int]], None],
) -> int:
    family = ChildSettings(
        host=settings.host,
        port=port,
        socket=socket_path(settings.data, CONTROL),
        key=new_key(),
        sources=sources,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
        adapter=socket_path(settings.data, ADAPTER),
    )
    make_private_directory(family.socket.parent)
    stop = asyncio.Event()
    try:
        with stop_on_signals(stop):
            # The adapter is ended last, after the gateways have passed on its answers.
            async with (
                _adapter(family, settings.adapter_host, logs),
                Children(clock=SystemClock(), on_change=report, stop_within=STOP_WITHIN) as children,
            ):
                try:
                    await run_services(stop, family=_keep(children, family, settings.gateways))
                except ExceptionGroup as group:
                    cause = sole_cause(group)
                    code = cause.fields.get("exit_code")
                    if isinstance(code, int) and code > 0:
                        return code  # the child's own, which has logged the reason
                    log.error("%s", cause, extra={"event": "frontend.failed"})  # noqa: TRY400 - it says it all
                    return exit_code_of(cause)
    finally:  # removed after the children ended: gateways send their last report through it
        for path in (family.socket, family.adapter):
            path.unlink(missing_ok=True)
            if path.parent != settings.data.absolute():  # see `socket_path`
                with contextlib.suppress(OSError):
                    path.parent.rmdir()
    return ExitCode.OK


class ChildSettings(PartlyPrinted, frozen=True, kw_only=True):
    """What the children of one frontend have in common."""

    unprinted = ("key",)

    host: str
    port: int
    socket: Path
    adapter: Path
    """The socket at which control asks for an adapter."""
    key: str
    sources: SettingSources
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def url(self) -> str:
        return http_url(self.host, self.port, "https" if self.tls_cert else "http")


def socket_path(data: Path, child: str) -> Path:
    """Return the path of a child's socket: in the private data directory, unless it is too long for the kernel."""
    name = f"{child}-{os.getpid()}.sock"  # a second frontend in this directory must not use the first one's socket
    path = data.absolute() / name
    if len(os.fsencode(path)) < _LONGEST_SOCKET:
        return path
    return Path(tempfile.mkdtemp(prefix="corral-")) / name


async def _keep(children: Children, family: ChildSettings, gateways: int) -> None:
    """Start all in parallel: a gateway serves at once and reports itself that control is not ready."""
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
    tls = unverified_tls() if family.tls_cert else None
    # It faces strangers, and needs nothing of what this frontend may do.
    environment = listed_environment(family.sources, settings, needs=GATEWAY_NEEDS)
    return Child(
        name=name,
        command=_command(family, "gateway", "--key-descriptor", environment),
        ready=lambda: until_ok(lambda: ask(dialled(family.host), family.port, "/healthz", tls=tls)),
        ready_within=GATEWAY_READY_WITHIN,
        stop_grace=CONTROL_GRACE,
        final_exit_codes=FINAL_BUT_IN_USE,
    )


def _control(family: ChildSettings) -> Child:
    settings = {"CORRAL_CONTROL_SOCKET": str(family.socket), "CORRAL_ADAPTER_SOCKET": str(family.adapter)}
    environment = child_environment(family.sources, settings, needs=CONTROL_NEEDS)
    return Child(
        name=CONTROL,
        command=_command(family, "control", "--gateway-key-descriptor", environment),
        ready=lambda: until_ok(lambda: ask_socket(family.socket, "/healthz")),
        ready_within=CONTROL_READY_WITHIN,
        stop_grace=CONTROL_GRACE,
        final_exit_codes=FINAL_BUT_IN_USE,
    )


@asynccontextmanager
async def _adapter(family: ChildSettings, host: str, logs: LogOutput) -> AsyncIterator[None]:
    if host in {str(ipaddress.IPv4Address(0)), str(ipaddress.IPv6Address(0))}:
        raise SettingInvalid("adapter_host", f"{host} is no address that a gateway can dial; name one of this machine")
    try:
        port = take_port(host, 0)
    except CorralError as error:
        raise SettingInvalid("adapter_host", error.message) from error
    environment = listed_environment(family.sources, needs=("log",))

    def command(listener: socket.socket) -> ChildCommand:
        nonlocal port
        try:
            port = take_port(host, port)  # the one it had, so that its URLs stay what they are
        except AddressInUse:
            port = take_port(host, 0)
        number = listener.fileno()
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        argv = adapter_argv(["--controls", str(number)], listen=place, logs=logs, log_name=ADAPTER)
        return ChildCommand(argv=argv, env=environment, shared=[number])

    with bind_private_socket(family.adapter) as listener:
        async with FrontendAdapter(listener=listener, command=command, clock=SystemClock()).kept():
            yield


def _command(
    family: ChildSettings, word: str, key_flag: str, environment: Mapping[str, str]
) -> Callable[[], ChildCommand]:
    """Return what makes the command of a child; each start gets a new descriptor with the key."""

    def command() -> ChildCommand:
        key = secret_descriptor(family.key.encode())
        return ChildCommand(argv=own_command(word, key_flag, str(key)), env=environment, handed_over=[key])

    return command
