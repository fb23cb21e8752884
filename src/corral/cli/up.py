"""`corral up`: runs everything on this machine."""

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from corral.base.settings import default_data
from corral.cli.options import CorralCommand, process_sources, settings_options, warn
from corral.processes.settings import UpSettings

if TYPE_CHECKING:
    from corral.processes.settings_sources import SettingSources
    from corral.processes.up import ReadyFleet
    from corral.processes.up_file import UpKeys

_CLEAR_LINE: Final = "\x1b[2K"
_QUESTION: Final = "What is the capital of France? Answer in one sentence."


@click.command(cls=CorralCommand)
@settings_options(up=None, log=None)
def up() -> int:
    """Run a whole fleet on this machine.

    Starts a NATS server, a frontend and workers, keeps them alive, and writes up.json into the data directory for
    scripts. Needs no configuration. Ctrl-C stops everything.
    """
    from corral.base.logs import LogOutput
    from corral.processes.settings_sources import resolve
    from corral.processes.up import run_up

    found = process_sources()
    settings = resolve(UpSettings, found)
    logs = resolve(LogOutput, found)
    warn(found.warnings)
    return run_up(settings, logs, found, TerminalWords(lambda *words: client_command(settings, found, *words)))


def client_command(settings: UpSettings, sources: "SettingSources", *words: str) -> str:
    """How to call a client of this fleet from the same shell."""
    arguments = [*_program(), *words]
    if settings.data != default_data(sources.environment):
        arguments += ["--data", str(settings.data)]
    return shlex.join(arguments)


def _program() -> list[str]:
    """What was typed to start us, or the plain name where the shell finds us by it."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return [sys.executable, "-m", "corral"]
    found = shutil.which("corral")
    is_on_path = found is not None and Path(found).resolve() == program.resolve()
    return ["corral" if is_on_path else str(program)]


class TerminalWords:
    """Says it on standard output, with colours where there is a terminal."""

    def __init__(self, command: Callable[..., str]) -> None:
        self._command = command
        self._is_waiting = False

    def new_keys(self, keys: "UpKeys", file: Path) -> None:
        """Keys are printed on a terminal only: any other output may be a journal that others read."""
        if not sys.stdout.isatty():
            click.echo(f"The administrator key and the registration token are in {file}, readable only by you.")
            return
        self._end_waiting()
        click.echo(f"Administrator key:   {click.style(keys.admin, bold=True)}")
        click.echo(f"Registration token:  {click.style(keys.registration, bold=True)}")
        click.echo("They are kept in the data directory, readable only by you; this is the only time they are printed.")

    def waiting(self, reasons: list[str]) -> None:
        """On a terminal the next line replaces this one: a slow start is no event."""
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
        click.echo(f"{mark} at {url} with {nodes}, after {fleet.seconds:.1f} s. Ctrl-C stops it.")
        click.echo(f"Logs are in {fleet.logs}; --verbose shows them here.")
        words = ("chat", fleet.model, "--once", _QUESTION) if fleet.model else ("nodes", "list")
        click.echo(f"Try: {click.style(self._command(*words), bold=True)}")

    def _end_waiting(self) -> None:
        if self._is_waiting:
            click.echo(_CLEAR_LINE, nl=False)
            self._is_waiting = False

    def stopping(self) -> None:
        self._end_waiting()
        click.echo("Stopping…")
