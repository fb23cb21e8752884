"""`corral models history` and `rollback`: what a model was, who changed it, and the way back."""

import difflib
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

from corral.base.errors import NotFound
from corral.base.words import listed
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_model
from corral.cli.options import CorralCommand, confirm, warn
from corral.cli.output import json_option, print_json, print_json_list, say
from corral.cli.units import moment
from corral.wire.model_changes import ModelChange, ModelHistory, ModelRevisionView


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.option("--last", default=10, show_default=True, type=click.IntRange(1, 1000), help="How many changes to show.")
@json_option
@connected
def history(model: str, last: int, as_json: bool) -> None:
    """Show who changed a model, when, and what.

    The newest change comes first. Also for a model that was removed: `corral models rollback` brings it back.
    """
    revisions = revisions_of(open_client(), model)
    if as_json:
        print_json_list(revisions[:last])
        return
    before = [*revisions[1:], None]
    for revision, older in list(zip(revisions, before, strict=True))[:last]:
        author = f" by {revision.changed_by}" if revision.changed_by else ""
        say(f"{revision.number}  {revision.change}{author}, {moment(revision.changed_at, datetime.now(UTC))}")
        if older is not None:
            show_diff(older.text, revision.text, f"{model} {older.number}", f"{model} {revision.number}")


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.argument("number", type=click.IntRange(1), required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def rollback(model: str, number: int | None, yes: bool, as_json: bool) -> None:
    """Make a model what it was before its last change.

    Or what it was at the change with this NUMBER: `corral models history` shows them. The way back is a change of its
    own, and can be undone as well.
    """
    client = open_client()
    revisions = revisions_of(client, model)
    target = _target(revisions, model, number)
    if not as_json:
        show_diff(revisions[0].text, target.text, f"{model} {revisions[0].number}", f"{model} {target.number}")
    if not yes:
        confirm(f"Make {model} what it was at {target.number}?")
    change = client.post("/api/v1/model-rollbacks", ModelChange, {"name": model, "number": target.number})
    if as_json:
        print_json(change)
    else:
        say_change(change, f"{model} is as at {target.number} again; this is change {change.number}.")


def _target(revisions: Sequence[ModelRevisionView], model: str, number: int | None) -> ModelRevisionView:
    """The revision to go back to. Without a number, the newest one with another configuration."""
    now = revisions[0]
    if number is None:
        earlier = [older for older in revisions[1:] if now.change == "removed" or older.revision != now.revision]
        if not earlier:
            raise NotFound(f"{model} never was anything else; `corral models history {model}` shows its changes")
        return earlier[0]
    for revision in revisions:
        if revision.number == number:
            return revision
    numbers = listed([str(revision.number) for revision in revisions], most=10)
    raise NotFound(f"{model} has no change {number}; there are {numbers}")


def revisions_of(client: ApiClient, model: str) -> list[ModelRevisionView]:
    """All changes of a model, the newest first. NotFound when there was never such a model."""
    items = client.get(api_path("model-history", model), ModelHistory).items
    if not items:
        raise NotFound(f"nothing is known of a model {model}; `corral models list` shows all")
    return items


def current_revision(client: ApiClient, model: str) -> ModelRevisionView:
    """The model as it is now. NotFound when there is none."""
    newest = revisions_of(client, model)[0]
    if newest.change == "removed":
        raise NotFound(f"{model} was removed; `corral models rollback {model}` brings it back")
    return newest


def say_change(change: ModelChange, sentence: str) -> None:
    """Print what was done, which replicas are loaded again, and warnings."""
    if sentence:
        say(sentence)
    if count := len(change.reloads):
        say(f"{count} {'replica serves' if count == 1 else 'replicas serve'} what it was, and will be replaced.")
    warn(change.warnings)


def show_diff(before: str, after: str, name_before: str, name_after: str) -> None:
    """Print how two texts differ, in colours on a terminal."""
    for line in _diff(before, after, name_before, name_after):
        harmless = "".join(sign if sign.isprintable() or sign == "\t" else "\ufffd" for sign in line)
        click.echo(click.style(harmless, fg=_COLOURS.get(line[:1])) if sys.stdout.isatty() else harmless)


_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def _diff(before: str, after: str, name_before: str, name_after: str) -> Iterator[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name_before, name_after, lineterm="", n=2)
    yield from (line.rstrip("\n") for line in lines)
