"""`corral frontend`: a launcher without logic. It starts control, starts it again when it dies, and ends it.

Control is ready for the launcher when it serves, not when all it depends on is up: a control that waits for NATS is
doing its work and must not be killed for it. Errors that another start would not mend end the launcher, with control's
own exit code; control has told the reason by then. Gateways will become siblings of control here.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

from corral.app.children import Child, Children
from corral.app.exit_codes import NOT_WORTH_A_RESTART, ExitCode, exit_code_of
from corral.app.failures import sole_cause
from corral.app.listening import take_port
from corral.app.probe import dialled, http_url, until_ok
from corral.app.settings import FrontendSettings, LogSettings, child_environment, own_command
from corral.app.settings_sources import Sources
from corral.app.signals import stop_on_signals
from corral.app.starting import start_patiently
from corral.base.clock import SystemClock
from corral.base.errors import CorralError
from corral.base.logs import set_up_logs
from corral.base.processes import Command
from corral.base.tasks import run_services

log = logging.getLogger(__name__)

CONTROL: Final = "control"
CONTROL_READY_WITHIN: Final = timedelta(seconds=120)
"""More than control itself waits for a database that does not answer, and a migration may follow."""
CONTROL_GRACE: Final = timedelta(seconds=4)
"""Requests under way get three seconds of it."""
STOP_WITHIN: Final = timedelta(seconds=5)


def run_frontend(
    settings: FrontendSettings, logs: LogSettings, sources: Sources, *, report: Callable[[Mapping[str, int]], None]
) -> int:
    """Run until a signal, or until control cannot be kept alive; returns the exit code. `report` is told the pids."""
    set_up_logs("frontend", format=logs.format, level=logs.level)
    return asyncio.run(_launch(settings, sources, report))


def report_nothing(_: Mapping[str, int]) -> None:
    """Nobody asked."""


def report_to(descriptor: int) -> Callable[[Mapping[str, int]], None]:
    """Write the pids as a line of JSON whenever one changes: so a supervisor learns of our children."""

    def report(pids: Mapping[str, int]) -> None:
        os.write(descriptor, json.dumps(dict(pids)).encode() + b"\n")

    return report


async def _launch(settings: FrontendSettings, sources: Sources, report: Callable[[Mapping[str, int]], None]) -> int:
    # A port that control chose would be another one after each of its restarts.
    port = settings.port or take_port(settings.host, 0)
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with Children(clock=SystemClock(), on_change=report, stop_within=STOP_WITHIN) as children:
            try:
                await run_services(stop, control=_keep(children, _control(settings.host, port, sources)))
            except ExceptionGroup as group:
                return _exit_code_after(sole_cause(group))
    return ExitCode.OK


async def _keep(children: Children, control: Child) -> None:
    await start_patiently(children, control, clock=SystemClock())
    await children.run()


def _control(host: str, port: int, sources: Sources) -> Child:
    environment = child_environment(sources, {"CORRAL_PORT": str(port)})

    def command() -> Command:
        take_port(host, port)  # whoever else listens there would answer in control's name
        return Command(argv=own_command("control"), env=environment)

    async def ready() -> None:
        await until_ok(dialled(host), port, "/healthz")
        log.info("serving", extra={"event": "frontend.serving", "url": http_url(host, port)})

    return Child(
        name=CONTROL,
        command=command,
        ready=ready,
        ready_within=CONTROL_READY_WITHIN,
        stop_grace=CONTROL_GRACE,
        final_exit_codes=frozenset(NOT_WORTH_A_RESTART - {ExitCode.IN_USE}),
    )


def _exit_code_after(error: CorralError) -> int:
    """The child's own exit code when it chose one; it told the reason itself."""
    code = error.fields.get("exit_code")
    if isinstance(code, int) and code > 0:
        return code
    log.error("%s", error, extra={"event": "frontend.failed"})
    return exit_code_of(error)
