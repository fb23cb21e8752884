"""Commands that run processes: `corral up`, `frontend`, `control`, `gateway` and `worker`."""

import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from corral.base.settings import default_data
from corral.cli.options import CorralCommand, CorralGroup, command_sources, process_sources, settings_options, warn
from corral.cli.processes.joining import joining, run_checks
from corral.cli.processes.worker_backends import backends
from corral.processes.configs import control_config, gateway_config, hubs_config, images_config, worker_config
from corral.processes.exit_codes import ExitCode
from corral.processes.settings import (
    CONTROL_NEEDS,
    GATEWAY_NEEDS,
    SECTIONS,
    WORKER_NEEDS,
    ClientSettings,
    UpSettings,
    hide_secrets,
)
from corral.processes.settings_sources import resolve

if TYPE_CHECKING:
    from corral.frontend.access.keys import Credentials
    from corral.frontend.config import ControlConfig
    from corral.processes.settings_sources import SettingSources
    from corral.processes.up import ReadyFleet
    from corral.processes.up_file import UpKeys

_CLEAR_LINE: Final = "\x1b[2K"
_QUESTION: Final = "What is the capital of France? Answer in one sentence."
_REAL_MODEL: Final = "hf://Qwen/Qwen2.5-1.5B-Instruct-GGUF"
"""One that gives useful answers on any machine of the last ten years, and that anybody may use for anything."""


@click.command(cls=CorralCommand)
@settings_options(up=None, log=None)
def up() -> int:
    """Run a whole fleet on this machine.

    Starts a NATS server, a frontend and workers, keeps them alive, and writes up.json into the data directory for
    scripts. Needs no configuration. Ctrl-C stops everything.
    """
    from corral.base.logs import LogOutput
    from corral.processes.up import run_up

    sources = process_sources()
    settings = resolve(UpSettings, sources)
    logs = resolve(LogOutput, sources)
    warn(sources.warnings)
    hide_secrets(SECTIONS)
    words = TerminalWords(
        lambda *words: client_command(settings, sources, *words), is_made="MAKELEVEL" in sources.environment
    )
    return run_up(settings, logs, sources, words)


@click.command(cls=CorralCommand)
@settings_options(client=frozenset({"data"}))
def down() -> None:
    """Stop the fleet of `corral up` on this machine.

    That of another data directory is named with --data. Models, keys and everything else that is stored stay.
    """
    from corral.processes.background import stop_fleet

    sources = command_sources()
    settings = resolve(ClientSettings, sources)
    warn(sources.warnings)
    stop_fleet(settings.data)
    click.echo("The fleet is stopped.")


def client_command(settings: UpSettings, sources: "SettingSources", *words: str) -> str:
    """The command line that calls this fleet from the same shell."""
    is_module = Path(sys.argv[0]).name == "__main__.py"
    program = Path(sys.executable).with_name("corral") if is_module else Path(sys.argv[0])
    on_path = shutil.which("corral")
    if is_module and not program.exists():
        arguments = [sys.executable, "-m", "corral", *words]
    elif on_path is not None and Path(on_path).resolve() == program.resolve():
        arguments = ["corral", *words]  # the shell finds it by its name
    else:
        arguments = [str(program), *words]
    if settings.data != default_data(sources.environment):
        arguments += ["--data", str(settings.data)]
    return shlex.join(arguments)


class TerminalWords:
    """Prints the messages of `corral up` on standard output, with colours on a terminal."""

    def __init__(self, command: Callable[..., str], *, is_made: bool = False) -> None:
        self._command = command
        self._is_made = is_made
        """Whether `make up` was typed, which takes flags in another way."""
        self._is_waiting = False

    def new_keys(self, keys: "UpKeys", file: Path) -> None:
        """Print new keys, but only on a terminal: other output may be a journal that others read."""
        if not sys.stdout.isatty():
            click.echo(f"The administrator key and the registration token are in {file}, readable only by you.")
            return
        self._end_waiting()
        click.echo(f"Administrator key:   {click.style(keys.admin, bold=True)}")
        click.echo(f"Registration token:  {click.style(keys.registration, bold=True)}")
        click.echo("They are kept in the data directory, readable only by you; this is the only time they are printed.")

    def waiting(self, reasons: list[str]) -> None:
        """Print what the start waits for. On a terminal the next line replaces it."""
        text = f"Still waiting for {'; '.join(reasons)}"
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
            click.echo(f"{_CLEAR_LINE}{text[: width - 1]}\r", nl=False)
            self._is_waiting = True
        else:
            click.echo(text)

    def ready(self, fleet: "ReadyFleet") -> None:
        nodes = {0: "no workers", 1: "1 healthy node"}.get(fleet.healthy, f"{fleet.healthy} healthy nodes")
        mark = click.style("Corral is ready", fg="green", bold=True)
        url = click.style(fleet.url, underline=True)
        self._end_waiting()
        click.echo(f"{mark} at {url} with {nodes}, after {fleet.seconds:.1f} s. Open it in a browser; Ctrl-C stops it.")
        click.echo(f"Logs are in {fleet.logs}; --verbose shows them here.")
        if fleet.model:
            click.echo(f"{fleet.model} is a toy. For a model to talk to: {self._command('run', _REAL_MODEL)}")
        words = ("chat", fleet.model, "--once", _QUESTION) if fleet.model else ("nodes", "list")
        click.echo(f"Try: {click.style(self._command(*words), bold=True)}")

    def _end_waiting(self) -> None:
        if self._is_waiting:
            click.echo(_CLEAR_LINE, nl=False)
            self._is_waiting = False

    def stopping(self) -> None:
        self._end_waiting()
        click.echo("Stopping…")

    def again(self, *flags: str) -> str:
        command = self._command("up", *flags)
        return f"make up ARGS={shlex.quote(command.partition(' up ')[2])}" if self._is_made else command


@click.command(cls=CorralCommand)
@settings_options(frontend=None, log=None)
@click.option("--report-descriptor", type=int, default=None, hidden=True)
def frontend(report_descriptor: int | None) -> int:
    """Run a frontend.

    That is the API, and the loops that keep the fleet as it should be. They run in the control process, a child that
    is started again when it dies.
    """
    from corral.base.logs import LogOutput
    from corral.frontend.config import ControlConfig
    from corral.processes.launcher import run_frontend

    sources = process_sources()
    settings = resolve(ControlConfig, sources)
    logs = resolve(LogOutput, sources)
    control_config(settings)  # says here, once, what would stop control
    warn(sources.warnings)
    hide_secrets(SECTIONS)
    return run_frontend(settings, logs, sources, report_descriptor=report_descriptor)


@click.command(cls=CorralCommand, hidden=True)
@settings_options(frontend=None, log=None)
@click.option("--gateway-key-descriptor", type=int, default=None, hidden=True)
def control(gateway_key_descriptor: int | None) -> None:
    """Run the control process of a frontend; `corral frontend` starts it."""
    import asyncio

    import uvloop

    from corral.base.logs import LogOutput, set_up_logs
    from corral.base.processes import look_for_garbage_rarely, secret_from
    from corral.base.tasks import stop_on_signals
    from corral.frontend.config import ControlConfig
    from corral.galleries.config import GalleriesConfig
    from corral.processes.control import run_control

    sources = command_sources()
    logs = resolve(LogOutput, sources)
    key = secret_from(gateway_key_descriptor)
    galleries = resolve(GalleriesConfig, sources)
    images = images_config(sources)
    base = control_config(resolve(ControlConfig, sources), gateway_key=key)
    config = replace(base, galleries=galleries, images=images, hubs=hubs_config(sources, images))
    set_up_logs(logs.name or "control", logs)
    hide_secrets(CONTROL_NEEDS)

    async def life() -> None:
        stop = asyncio.Event()
        with stop_on_signals(stop):
            await run_control(config, stop, announce_keys=announce_keys)

    look_for_garbage_rarely()
    uvloop.run(life())


def announce_keys(credentials: "Credentials", config: "ControlConfig") -> None:
    """Hand over the keys that this start made, unless a credentials file has them.

    They are printed on a terminal. Other output usually ends in a journal, which more people may read than may have the
    keys: there they are written into the data directory, and only the path is printed.
    """
    from corral.frontend.config import CREDENTIALS_FILE

    if config.credentials_file is not None:
        return
    if not sys.stdout.isatty():
        file = config.data / CREDENTIALS_FILE
        if credentials.write_new(file):
            click.echo(f"The new keys are in {file}, readable only by you. Keep them elsewhere, and delete the file.")
        return
    if credentials.new_admin_key is not None:
        click.echo(f"Administrator key (shown once, keep it): {credentials.new_admin_key}")
    if credentials.new_registration_token:
        click.echo(f"Registration token for workers (shown once): {credentials.registration_token}")


@click.command(cls=CorralCommand)
@settings_options(gateway=None, log=None)
@click.option("--key-descriptor", type=int, default=None, hidden=True)
def gateway(key_descriptor: int | None) -> None:
    """Run a gateway alone, to serve more.

    It has a public port, and relays requests to replicas and everything else to control. It needs the URL of a
    frontend and a key of the scope gateway, and neither the database nor NATS.
    """
    from corral.base.logs import LogOutput, set_up_logs
    from corral.base.processes import secret_from
    from corral.gateway.config import GatewayConfig
    from corral.processes.gateway import main

    sources = process_sources()
    logs = resolve(LogOutput, sources)
    config = gateway_config(resolve(GatewayConfig, sources), key=secret_from(key_descriptor))
    warn(sources.warnings)
    set_up_logs(logs.name or "gateway", logs)
    hide_secrets(GATEWAY_NEEDS)
    main(config)


@click.group(cls=CorralGroup, invoke_without_command=True)
@settings_options(worker=None, gallery=None, images=None, log=None)
@click.option(
    "--join",
    "join_url",
    default="",
    metavar="URL",
    help="Join the fleet of this frontend with a code, which is asked for; `corral nodes invite` prints both. Only for"
    " the first start: it is remembered.",
)
@click.option(
    "--code-file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Private file with the join code, instead of being asked.",
)
@click.option("--code-descriptor", type=int, default=None, help="Open descriptor from which the join code can be read.")
@click.option("--check", "is_check", is_flag=True, help="Only tell what would fail here, and do not run.")
@click.pass_context
def worker(
    context: click.Context, join_url: str, code_file: Path | None, code_descriptor: int | None, is_check: bool
) -> int:
    """Make this machine a node of a fleet.

    The worker registers, reports how the machine is, and runs what it is given. A new node waits for an administrator's
    approval. With a command it does not run, and only that is done.
    """
    if context.invoked_subcommand is not None:
        return ExitCode.OK
    from corral.base.logs import LogOutput, set_up_logs
    from corral.galleries.config import GalleriesConfig
    from corral.worker.config import WorkerConfig

    sources = process_sources()
    galleries = resolve(GalleriesConfig, sources)
    settings = joining(resolve(WorkerConfig, sources), join_url, code_file=code_file, code_descriptor=code_descriptor)
    config = worker_config(settings, sources.environment, galleries)
    if is_check:
        warn(sources.warnings)
        return run_checks(config)
    images = images_config(sources)
    logs = resolve(LogOutput, sources)
    warn(sources.warnings)

    from corral.processes.worker import main

    log_name = logs.name or "worker"
    set_up_logs(log_name, logs)
    hide_secrets(WORKER_NEEDS)
    return main(replace(config, logs=logs, log_name=log_name, galleries=galleries, images=images))


worker.add_command(backends)
