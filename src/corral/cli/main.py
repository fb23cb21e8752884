"""The root of the command line: which commands there are, and what each kind of failure looks like from outside."""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from corral import __version__
from corral.base.errors import CorralError
from corral.cli.lazy import lazy_group
from corral.cli.usage import describe_usage_error
from corral.processes.exit_codes import ExitCode, exit_code_of, sole_cause

log = logging.getLogger(__name__)

COMMANDS: Final = {
    "up": "corral.cli.up:up",
    "frontend": "corral.cli.frontend:frontend",
    "worker": "corral.cli.worker:worker",
    "gateway": "corral.cli.gateway:gateway",
    "control": "corral.cli.control:control",
    "models": "corral.cli.models:models",
    "chat": "corral.cli.chat:chat",
    "gallery": "corral.cli.gallery:gallery",
    "backend": "corral.cli.backend:backend",
    "backends": "corral.cli.backends:backends",
    "ops": "corral.cli.ops:ops",
    "nodes": "corral.cli.nodes:nodes",
    "keys": "corral.cli.keys:keys",
    "events": "corral.cli.events:events",
    "logs": "corral.cli.logs:logs",
    "doctor": "corral.cli.doctor:doctor",
    "version": "corral.cli.version:version",
    "completion": "corral.cli.completion:completion",
}


@click.command(
    cls=lazy_group(COMMANDS), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, "--version", prog_name="corral", message="%(prog)s %(version)s")
def cli() -> None:
    """Turn a set of machines into one OpenAI-compatible endpoint.

    Begin with `corral up`, which runs everything on this machine.
    """


def main() -> NoReturn:
    """The entry point of the `corral` program."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; failures are told on standard error in one sentence."""
    try:
        outcome = _invoke(arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except click.Abort as error:
        return _interrupted(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        return _tell(describe_usage_error(error), ExitCode.USAGE)
    except CorralError as error:
        return _tell(error.message, exit_code_of(error))
    except BrokenPipeError:
        return _reader_left()
    except Exception:
        log.exception("a fault in Corral itself", extra={"event": "process.fault"})
        return ExitCode.INTERNAL
    return outcome if isinstance(outcome, int) else ExitCode.OK


def _invoke(arguments: Sequence[str]) -> object:
    try:
        return cli.main(args=list(arguments), prog_name="corral", standalone_mode=False)
    except ExceptionGroup as group:
        raise sole_cause(group) from group


def _interrupted(error: click.Abort) -> ExitCode:
    """Whoever pressed Ctrl-C knows. What comes next on the terminal begins a line of its own."""
    if not isinstance(error.__cause__, KeyboardInterrupt):  # of those click has ended the line
        click.echo(err=True)
    return ExitCode.INTERRUPTED


def _tell(sentence: str, code: ExitCode) -> ExitCode:
    prefix = click.style("error:", fg="red", bold=True)
    click.echo(f"{prefix} {sentence}", err=True)
    return code


def _reader_left() -> ExitCode:
    """Whoever read our output has seen enough. Python would complain once more when it closes the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK
