"""`corral models`: which models there are, where they are loaded, and how to remove one."""

from collections.abc import Sequence
from typing import Final

import click

from corral.cli.client import api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_model
from corral.cli.operation_watch import Watching, accepted_once, wait_options, watched
from corral.cli.options import CorralCommand, confirm
from corral.cli.output import (
    Column,
    facts,
    json_option,
    plain,
    print_json,
    say,
    show,
    show_view,
    styled,
    table,
)
from corral.wire.models import ModelList, ModelView
from corral.wire.operation_views import OperationView
from corral.wire.replicas import ReplicaView

_COLUMNS: Final[Sequence[Column[ModelView]]] = (
    Column(title="NAME", cell=lambda model: plain(model.name)),
    Column(title="STATE", cell=lambda model: styled(model.state)),
    Column(title="BACKEND", cell=lambda model: plain(model.backend or f"→ {model.alias_of}")),
    Column(title="NODES", cell=lambda model: plain(", ".join(replica.node for replica in model.replicas) or "-")),
    Column(title="FILE", cell=lambda model: plain(model.source), least_width=90),
)


@click.command("list", cls=CorralCommand)
@json_option
@connected
def list_models(as_json: bool) -> None:
    """List the models, and the files that could not be read."""
    listing = open_client().get("/api/v1/models", ModelList)
    if as_json:
        print_json(listing)
        return
    if listing.items:
        show(table(_COLUMNS, listing.items))
    else:
        say("There is no model yet; put a YAML file into the models directory.")
    for problem in listing.problems:
        about = f"{problem.source} ({problem.name})" if problem.name else problem.source
        say(f"Passed over: {about}: {problem.problem}")
    for model in listing.items:
        for warning in model.warnings:
            say(f"Warning: {model.source} ({model.name}): {warning}")


@click.command("show", cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@json_option
@connected
def show_model(model: str, as_json: bool) -> None:
    """Show everything about one model."""
    view = open_client().get(api_path("models", model), ModelView)
    show_view(view, lambda: facts(_facts(view)), as_json=as_json)


@click.command("remove", cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.option("--yes", is_flag=True, help="Do not ask.")
@wait_options
@connected
def remove_model(model: str, yes: bool, watching: Watching) -> int:
    """Remove a model from the whole fleet.

    With it go its file, its replicas, and what frontends and nodes have of its weights. Weights that another model
    needs stay. Nodes that are away delete theirs when they return. Ends with 0 when all is well (what waits for absent
    nodes included), 1 when it failed somewhere, 2 when it goes on.
    """
    client, path = open_client(), api_path("models", model)
    if not yes:
        view = client.get(path, ModelView)
        confirm(f"Remove {view.name} ({view.source}), and its weights {view.model or '(none)'}?")
    operation = accepted_once(lambda headers: client.delete_for(path, OperationView, headers=headers))
    return watched(client, operation, watching)


def _facts(model: ModelView) -> list[tuple[str, str]]:
    """What is known about a model; empty fields are left out."""
    pairs = [
        ("Name", model.name),
        ("State", model.state),
        ("Alias of", model.alias_of),
        ("Backend", model.backend),
        ("Weights", model.model),
        ("File", model.source),
        ("Revision", model.revision[:12]),
    ]
    load_message = ""
    if model.load_job is not None:
        load_message = model.load_job.message
        pairs.append(("Load", f"{model.load_job.state}: {load_message}".rstrip(": ")))
        pairs += [("Engine", line) for line in model.load_job.engine_lines]
    pairs += [("Replica", _replica(replica, load_message)) for replica in model.replicas]
    pairs += [("Warning", warning) for warning in model.warnings]
    pairs += [("Passed over", f"{problem.source}: {problem.problem}") for problem in model.problems]
    return [(name, styled(text) if name == "State" else plain(text)) for name, text in pairs if text]


def _replica(replica: ReplicaView, load_message: str) -> str:
    """One line about a replica. A reason that the load job already gives is not repeated: it may be long."""
    text = f"{replica.node} #{replica.index} {replica.state}"
    if replica.state in ("loaded", "unloading"):
        busy = "an unknown number of" if replica.in_flight is None else str(replica.in_flight)
        text += f", {busy} requests under way"
    reason = "" if replica.reason in load_message else replica.reason
    return f"{text} ({reason})" if reason else text
