"""`corral run`: a model by its name or reference, with everything that it still needs, and then a talk."""

import difflib
import shlex
import sys
import time
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Final

import click

from corral.base.errors import Conflict, CorralError, NotFound, PeerUnavailable
from corral.cli.client import ApiClient, Unreachable
from corral.cli.connection import NoFrontendKnown, connected, target_of
from corral.cli.models.chat import StatusLine, Wishes, ask_once, converse, wishes_options
from corral.cli.models.pull import build_option, name_option, plan_of, pulled, show_plan, whole_path
from corral.cli.names import complete_model
from corral.cli.operations.watch import Watching
from corral.cli.options import CorralCommand, command_sources, warn
from corral.cli.output import say
from corral.cli.processes.commands import client_command
from corral.processes.exit_codes import ExitCode
from corral.processes.settings import ClientSettings, UpSettings
from corral.processes.settings_sources import resolve
from corral.wire.models import ModelList

if TYPE_CHECKING:
    from corral.processes.settings_sources import SettingSources

_MOST_PROMPT: Final = 16 * 1024 * 1024


@click.command(cls=CorralCommand)
@click.argument("reference", shell_complete=complete_model)
@click.argument("prompt", required=False)
@name_option
@build_option
@wishes_options
@click.option("--up", "start", is_flag=True, help="Without a fleet, start one and do not ask.")
@connected
def run(
    reference: str,
    prompt: str | None,
    name: str,
    build: str,
    system: str,
    temperature: float | None,
    seed: int | None,
    start: bool,
) -> None:
    """Talk to a model, whatever is still missing for it.

    REFERENCE is the name of a model, or what `corral models pull` takes: then the model is downloaded, unless it is
    there already. Without a fleet, `corral up` is started in the background if you agree, and goes on afterwards;
    `corral down` stops it. With a PROMPT, or text through a pipe, one answer is printed, and nothing else on standard
    output.
    """
    if prompt is not None and not prompt.strip():
        raise click.UsageError("PROMPT needs a text to ask")
    with redirect_stdout(sys.stderr):  # only answers go to standard output
        client, models = _fleet(start=start)
        model = _known(models, whole_path(reference), name=name, build=build) or _pulled(
            client, models, reference, name=name, build=build
        )
    question = prompt if prompt is not None else _piped()
    wishes = Wishes(system=system, temperature=temperature, seed=seed)
    if question is None:
        converse(client, model, wishes)
    elif question.strip():
        ask_once(client, model, question, wishes)
    else:
        click.echo(f"{model} is there. It was asked nothing, because standard input is empty.", err=True)


def _known(models: ModelList, reference: str, *, name: str, build: str) -> str:
    """The model of this name, or the one that came from this reference; empty when it has to be pulled.

    Conflict when it is disabled.
    """
    named = [model for model in models.items if model.name == (name or reference)]
    if not named and not name and not build:
        named = [model for model in models.items if model.origin is not None and model.origin.reference == reference]
    if named and named[0].is_disabled:
        enable = shlex.join(["corral", "models", "enable", named[0].name])
        raise Conflict(f"the model {named[0].name} is disabled; to use it: {enable}")
    return named[0].name if named else ""


def _pulled(client: ApiClient, models: ModelList, reference: str, *, name: str, build: str) -> str:
    """Pull a model and return its name; the command ends when that fails, or somebody stops watching."""
    try:
        plan = plan_of(client, reference, name=name, build=build)
    except NotFound as error:
        near = difflib.get_close_matches(reference, [model.name for model in models.items], n=3)
        hint = f"; the fleet has {' and '.join(near)}" if near else ""
        raise NotFound(f"{error.message}{hint}") from error
    show_plan(plan)
    watching = Watching(wait=True, within=None, as_json=False)
    code = pulled(client, reference, plan, build=build, watching=watching)
    if code != ExitCode.OK:
        click.get_current_context().exit(code)
    return plan.name


def _piped() -> str | None:
    """The text of a pipe, which is one question; None on a terminal."""
    if sys.stdin.isatty():
        return None
    text = sys.stdin.read(_MOST_PROMPT + 1)
    if len(text) > _MOST_PROMPT:
        raise click.UsageError(f"the text on standard input is longer than {_MOST_PROMPT} characters")
    return text


def _fleet(*, start: bool) -> tuple[ApiClient, ModelList]:
    """A client of the fleet and the models that it has. With `start`, a fleet is started if none runs."""
    sources = command_sources()
    settings = resolve(ClientSettings, sources)
    warn(sources.warnings)
    try:
        client = ApiClient(target_of(settings))
        return client, client.get("/api/v1/models", ModelList)
    except (NoFrontendKnown, Unreachable) as error:
        if settings.url:
            raise  # it is somewhere else, where nothing can be started
        _agree(error, start=start)
    _start(sources)
    client = ApiClient(target_of(settings))
    return client, client.get("/api/v1/models", ModelList)


def _agree(missing: CorralError, *, start: bool) -> None:
    """Ask whether to start a fleet; PeerUnavailable where the answer is no, or nobody can be asked."""
    if start:
        return
    if not sys.stdin.isatty():
        raise PeerUnavailable(f"{missing.message}; `corral run --up` starts it in the background") from missing
    click.echo("There is no fleet on this machine yet.", err=True)
    if not click.confirm("Start one now, in the background?", default=True, err=True):
        raise PeerUnavailable(
            "without a fleet there is no answer; `corral up` starts one in this terminal"
        ) from missing


def _start(sources: "SettingSources") -> None:
    """Start a fleet, wait until it is ready, and say how to stop it."""
    from corral.processes.background import start_fleet

    settings = resolve(UpSettings, sources)
    began = time.monotonic()
    line = StatusLine() if sys.stderr.isatty() else None
    if line is None:
        say("Starting a fleet in the background.")

    def on_wait() -> None:
        if line is not None:
            line.write(f"Starting a fleet in the background, {time.monotonic() - began:.0f} s")

    try:
        fleet = start_fleet(sources, settings.data, on_wait=on_wait)
    finally:
        if line is not None:
            line.end()
    stop = client_command(settings, sources, "down")
    say(f"The fleet is ready at {fleet.content.url}, after {time.monotonic() - began:.1f} s.")
    say(f"It goes on in the background. To stop it: {stop}")
