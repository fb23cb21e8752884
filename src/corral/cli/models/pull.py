"""`corral models pull`: shows the plan, then a bar for each file, then how to use the model."""

import shlex
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from corral.base.errors import NotFound
from corral.base.words import format_size, printable_lines
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_offered_model
from corral.cli.operations.watch import Watching, accepted_once, wait_options, watched
from corral.cli.options import CorralCommand, confirm
from corral.cli.output import Column, facts, plain, print_json, say, show, table
from corral.frontend.models.decide.pull_words import facts_of
from corral.processes.exit_codes import ExitCode
from corral.wire.model_files import BuildChoiceView, PullPlanView
from corral.wire.models import ModelView
from corral.wire.operation_views import OperationView

_FITS: Final = {True: "yes", False: "no", None: "unknown"}

_COLUMNS: Final[Sequence[Column[BuildChoiceView]]] = (
    Column(title="", cell=lambda choice: "→" if choice.is_chosen else ""),
    Column(title="BUILD", cell=lambda choice: plain(choice.name)),
    Column(title="SIZE", cell=lambda choice: format_size(choice.bytes), right=True),
    Column(
        title="MEMORY",
        cell=lambda choice: format_size(choice.needed_bytes) if choice.needed_bytes else "–",
        right=True,
    ),
    Column(title="FITS", cell=lambda choice: _FITS[choice.fits]),
)


def show_plan(plan: PullPlanView) -> None:
    """Print what would be downloaded, and all there is to choose from."""
    if len(plan.choices) > 1:
        show(table(_COLUMNS, plan.choices))
        say("The build with the arrow is taken; --build NAME takes another.")
    show(facts([(name, plain(text)) for name, text in facts_of(plan)]))
    for note in plan.notes:
        say(f"Note: {note}")


def doubts(plan: PullPlanView) -> list[str]:
    """Reasons to ask before anything is downloaded."""
    chosen = next((choice for choice in plan.choices if choice.is_chosen), None)
    return [f"no machine of the fleet has the memory for {plan.name}"] if chosen and chosen.fits is False else []


_PATH: Final = "/api/v1/pulls"
_PATIENCE: Final = timedelta(minutes=5)
"""A frontend asks hubs and reads the beginnings of files before it answers, with timeouts of its own."""

name_option = click.option("--name", metavar="NAME", default="", help="What the model shall be called.")
build_option = click.option(
    "--build", metavar="BUILD", default="", help="Which of several builds, such as Q4_K_M; else the best that fits."
)


@click.command(cls=CorralCommand)
@click.argument("reference", shell_complete=complete_offered_model)
@name_option
@build_option
@click.option("--dry-run", is_flag=True, help="Show what would come, with the model's YAML, and download nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@wait_options
@connected
def pull(reference: str, name: str, build: str, dry_run: bool, yes: bool, watching: Watching) -> int:
    """Download a model, and add it to the fleet.

    \b
    REFERENCE is one of these:
      NAME or GALLERY@NAME                  an entry of a gallery; `corral models search` finds them
      hf://ORG/REPO[/FILE][@REVISION]       Hugging Face
      ollama://NAME[:TAG]                   the library of Ollama
      oci://HOST/REPO[:TAG]                 a registry of images
      https://…, file://…, /path, ./path    a file; paths are those of the frontend's machine

    Of several builds the best that fits the fleet is taken. You are asked only where there is a reason for doubt: it
    fits no machine. Ctrl-C ends only the watching: the download goes on. Ends with 0 when the model is there, 1 when it
    failed, 2 when it goes on.
    """
    client = open_client()
    plan = plan_of(client, reference, name=name, build=build)
    if dry_run:
        _print_plan(plan, as_json=watching.as_json)
        return ExitCode.OK
    if not watching.as_json:
        show_plan(plan)
    reasons = doubts(plan)
    is_agreed = bool(reasons) and not yes and sys.stdin.isatty()
    if is_agreed:
        confirm(f"{'; '.join(reasons).capitalize()}. Go on?")
    code = pulled(client, reference, plan, build=build, watching=watching, is_agreed=is_agreed)
    if code == ExitCode.OK and watching.wait and not watching.as_json:
        say(how_to_ask(client, plan.name))
    return code


def plan_of(client: ApiClient, reference: str, *, name: str, build: str) -> PullPlanView:
    """What a pull would do."""
    body = {"reference": whole_path(reference), "name": name, "build": build, "dry_run": True}
    return client.post(_PATH, PullPlanView, body, patience=_PATIENCE)


def whole_path(reference: str) -> str:
    """The reference; a relative path made absolute, because the frontend was started elsewhere."""
    is_relative = reference in (".", "..", "~") or reference.startswith(("./", "../", "~/"))
    return str(Path(reference).expanduser().absolute()) if is_relative else reference


def pulled(
    client: ApiClient, reference: str, plan: PullPlanView, *, build: str, watching: Watching, is_agreed: bool = False
) -> int:
    """Start the pull, watch it, and return the exit code.

    It fails when the plan has changed since the person agreed to it.
    """
    body = {"reference": whole_path(reference), "name": plan.name, "build": build}
    if is_agreed:
        body["plan_hash"] = plan.hash
    operation = accepted_once(
        lambda headers: client.post(_PATH, OperationView, body, headers=headers, patience=_PATIENCE)
    )
    return watched(client, operation, watching)


def how_to_ask(client: ApiClient, name: str) -> str:
    """The next command for a model that has just come."""
    quoted = shlex.quote(name)
    try:
        view = client.get(api_path("models", name), ModelView)
    except NotFound:
        return f"See it with: corral models show {quoted}"
    if view.config.get("embeddings") or view.config.get("reranking"):
        route = "/v1/embeddings" if view.config.get("embeddings") else "/v1/rerank"
        return f"It answers {route}. See it with: corral models show {quoted}"
    return f'Ask it with: corral chat {quoted} "Hi"'


def _print_plan(plan: PullPlanView, *, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    show_plan(plan)
    say("Its YAML:")
    click.echo(printable_lines(plan.config.rstrip("\n")))
