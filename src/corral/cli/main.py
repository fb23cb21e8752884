"""The root of the command line: which commands there are, and what each kind of failure looks like from outside."""

import errno
import gc
import io
import json
import logging
import os
import platform
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from corral import __version__
from corral.base.errors import CorralError
from corral.base.words import printable
from corral.cli.options import lazy_group, print_error
from corral.cli.usage_errors import describe_usage_error
from corral.processes.exit_codes import ExitCode, exit_code_of, sole_cause

log = logging.getLogger(__name__)

_SHOWN: Final = 80
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

SECTIONS: Final = {
    "Begin": {
        "run": "corral.cli.models.run:run",
        "up": "corral.cli.processes.commands:up",
        "status": "corral.cli.fleet.status:status",
        "down": "corral.cli.processes.commands:down",
    },
    "Models": {
        "models": "corral.cli.models:models",
        "chat": "corral.cli.models.chat:chat",
        "ps": "corral.cli.fleet.ps:ps",
        "why": "corral.cli.fleet.why:why",
        "what-if": "corral.cli.fleet.what_if:what_if",
    },
    "Backends and machines": {
        "gallery": "corral.cli.gallery.commands:gallery",
        "backends": "corral.cli.backends.commands:backends",
        "backend": "corral.cli.authoring:backend",
        "apply": "corral.cli.backends.rules:apply",
        "ops": "corral.cli.operations.commands:ops",
        "nodes": "corral.cli.nodes.commands:nodes",
        "worker": "corral.cli.processes.commands:worker",
        "engines": "corral.cli.engines:engines",
    },
    "Find out": {
        "events": "corral.cli.fleet.events:events",
        "logs": "corral.cli.fleet.logs:logs",
        "doctor": "corral.cli.fleet.doctor:doctor",
    },
    "Access": {
        "login": "corral.cli.access.login:login",
        "logout": "corral.cli.access.login:logout",
        "whoami": "corral.cli.access.login:whoami",
        "password": "corral.cli.access.login:password",
        "users": "corral.cli.access.users:users",
        "keys": "corral.cli.access.keys:keys",
    },
    "Processes": {
        "frontend": "corral.cli.processes.commands:frontend",
        "gateway": "corral.cli.processes.commands:gateway",
        "control": "corral.cli.processes.commands:control",
    },
    "This program": {
        "version": "corral.cli.main:version",
        "completion": "corral.cli.main:completion",
        "help": "corral.cli.main:help_command",
    },
}
"""All commands under the titles of `corral --help`."""


@click.command(
    cls=lazy_group(SECTIONS), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, "--version", prog_name="corral", message="%(prog)s %(version)s")
def cli() -> None:
    """Turn a set of machines into one OpenAI-compatible endpoint.

    Begin with `corral run`, which talks to a model, or with `corral up`, which runs everything on this machine.
    """


_ALLOCATIONS: Final = 400_000
"""More than an import of control makes, which is a quarter of a million."""


def main() -> NoReturn:
    """The entry point of the `corral` program.

    What a command imports stays for ever. With Python's own threshold, a sixth of the processor time of an import of
    control would go into looking for garbage among it. Processes that live long choose another one when they run.
    """
    gc.set_threshold(_ALLOCATIONS)
    _open_closed_streams()
    _replace_what_is_no_text()
    sys.exit(run(sys.argv[1:]))


def _open_closed_streams() -> None:
    """Lead standard streams that were closed (`>&-`) nowhere. Otherwise the next socket would get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            lowest = os.open(os.devnull, os.O_RDWR)  # the number that was closed, as those below it are open
            os.set_inheritable(lowest, True)
            setattr(sys, name, open(lowest, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115


def _replace_what_is_no_text() -> None:
    """Let no character end a command: neither one that a terminal's encoding lacks, nor bytes of another encoding."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. A failure is one sentence on standard error."""
    try:
        return _outcome(arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except click.Abort as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):  # click has ended the line for those
            click.echo(err=True)
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        print_error(describe_usage_error(error))
        return ExitCode.USAGE
    except CorralError as error:
        print_error(error.message)
        return exit_code_of(error)
    except BrokenPipeError:  # the reader of a pipe closed it, which is no failure
        _discard_output()
        return ExitCode.OK
    except Exception as error:
        code = _explained(error)
        if code is None:
            log.exception("a fault in Corral itself", extra={"event": "process.fault"})
        return ExitCode.INTERNAL if code is None else code


def _explained(error: Exception) -> ExitCode | None:
    """Print a sentence where the machine or an argument is to blame; None where it is a fault of ours."""
    match error:
        case OSError() if error.errno in _NO_ROOM:
            _discard_output()
            print_error(f"{error.filename or 'the output'} cannot be written: {error.strerror}")
            return ExitCode.CANNOT_CREATE
        case UnicodeEncodeError():  # only arguments can have what UTF-8 has not: bytes of another encoding
            print_error(f"'{printable(error.object[:_SHOWN])}' cannot be sent: it is not UTF-8 text")
            return ExitCode.USAGE
        case _:
            return None


def _outcome(arguments: Sequence[str]) -> int:
    """The exit code of a command that did not fail; otherwise its one failure, as itself."""
    output = sys.stdout
    try:
        outcome = cli.main(args=list(arguments), prog_name="corral", standalone_mode=False)
    except ExceptionGroup as group:
        raise sole_cause(group) from group
    except SystemExit as end:
        if sys.stdout is output:
            raise
        # click replaces standard output and ends with 1 when the reader of a pipe closed it. Here 1 means a failure.
        raise BrokenPipeError from end
    return outcome if isinstance(outcome, int) else ExitCode.OK


def _discard_output() -> None:
    """Send what is left of the output nowhere: Python writes it at exit, and would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def version(as_json: bool) -> None:
    """Print the version of this program."""
    if as_json:
        click.echo(json.dumps({"version": __version__, "python": platform.python_version()}))
    else:
        click.echo(f"corral {__version__}")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for SHELL.

    \b
    bash: eval "$(corral completion bash)" in ~/.bashrc
    zsh:  eval "$(corral completion zsh)" in ~/.zshrc, after compinit
    fish: corral completion fish | source in ~/.config/fish/config.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click.Choice let only known shells through
    # The base class's method: bash's own first runs bash to learn its version.
    click.echo(ShellComplete.source(kind(cli, {}, "corral", "_CORRAL_COMPLETE")))


@click.command("help")
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
def help_command(command: tuple[str, ...]) -> None:
    """Print the help of a command, as its flag --help does."""
    cli.main(args=[*command, "--help"], prog_name="corral", standalone_mode=False)
