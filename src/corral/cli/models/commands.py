"""`corral models list`, `show`, `copy`, `disable` and `remove`: which models there are, and where they are loaded."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import click

from corral.base.words import counted, format_size
from corral.cli.client import api_path
from corral.cli.connection import connected, open_client
from corral.cli.fleet.why import load_text
from corral.cli.models.revisions import say_change
from corral.cli.models.scaling import rule_text
from corral.cli.names import complete_model
from corral.cli.operations.plans import plan_option, show_act_plan, tell_act_plan
from corral.cli.operations.watch import Watching, accepted_once, wait_options, watched
from corral.cli.options import CorralCommand, confirm, need_terminal
from corral.cli.output import Column, facts, json_option, plain, print_json, say, show, show_view, state_text, table
from corral.cli.units import moment
from corral.processes.exit_codes import ExitCode
from corral.wire.model_changes import ModelChange
from corral.wire.models import LoadJobView, ModelList, ModelMemoryView, ModelView
from corral.wire.operation_views import OperationView
from corral.wire.plans import ActPlanView, ModelRemovalAsk
from corral.wire.replicas import ReplicaView
from corral.wire.state_words import Subject, state_word

_COLUMNS: Final[Sequence[Column[ModelView]]] = (
    Column(title="NAME", cell=lambda model: plain(model.name)),
    Column(title="STATE", cell=lambda model: state_text(Subject.MODEL, _state(model))),
    Column(title="BACKEND", cell=lambda model: plain(_backend(model))),
    Column(title="SIZE", cell=lambda model: format_size(model.bytes) if model.bytes else "–", right=True),
    Column(title="NODES", cell=lambda model: plain(", ".join(_places(model)) or "-")),
    Column(title="WARNINGS", cell=lambda model: str(len(model.warnings) or "–"), right=True, least_width=70),
    Column(title="SOURCE", cell=lambda model: plain(source_of(model)), least_width=90),
)


@click.command("list", cls=CorralCommand)
@json_option
@connected
def list_models(as_json: bool) -> None:
    """List the models.

    Also the files that could not be read, and the weights that no model uses yet.
    """
    listing = open_client().get("/api/v1/models", ModelList)
    if as_json:
        print_json(listing)
        return
    if listing.items:
        show(table(_COLUMNS, listing.items))
    else:
        say("There is no model yet; `corral models search` finds one, `corral models pull` gets it.")
    for problem in listing.problems:
        about = f"{problem.source} ({problem.name})" if problem.name else problem.source
        say(f"Passed over: {about}: {problem.problem}")
    for model in listing.items:
        if model.reason:
            say(f"{state_word(Subject.MODEL, model.state).label}: {model.name}: {model.reason}")
        for warning in model.warnings:
            say(f"Warning: {source_of(model)} ({model.name}): {warning}")
    for file in listing.offered:
        say(f"Offered: {file.path} ({format_size(file.size)}) is no model yet; to use it: {_offer(file.path)}")


def _offer(path: str) -> str:
    return shlex.join(["corral", "models", "pull", path])


def _backend(model: ModelView) -> str:
    return model.backend or (f"→ {model.alias_of}" if model.alias_of else "–")


def _places(model: ModelView) -> list[str]:
    """Nodes that have it loaded, and engines of others that answer for it."""
    return [replica.node for replica in model.replicas] + [f"{engine.name} (elsewhere)" for engine in model.engines]


def _state(model: ModelView) -> str:
    return "disabled" if model.is_disabled else model.state


def source_of(model: ModelView) -> str:
    """Where the model comes from: its file, or what was pulled."""
    return model.source or (model.origin.reference if model.origin is not None else "") or model.kind


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
@plan_option
@wait_options
@connected
def remove_model(model: str, yes: bool, only_plan: bool, watching: Watching) -> int:
    """Remove a model from the whole fleet.

    With it go its file, its replicas, and what frontends and nodes have of its weights. Weights that another model
    needs stay. Nodes that are away delete theirs when they return. Before it asks, it shows what would happen; if that
    is something else by the time of the answer, nothing is done. Ends with 0 when all is well (what waits for absent
    nodes included), 1 when it failed somewhere, 2 when it goes on.
    """
    client, path = open_client(), api_path("models", model)
    if not only_plan and not yes:
        need_terminal()
    if only_plan or not yes:
        plan = client.post("/api/v1/model-removals/plan", ActPlanView, ModelRemovalAsk(name=model))
        if only_plan:
            show_act_plan(plan, as_json=watching.as_json)
            return ExitCode.OK
        tell_act_plan(plan)
        view = client.get(path, ModelView)
        confirm(f"Remove {view.name} ({source_of(view)}), and its weights {view.model or '(none)'}?")
        path += f"?plan_hash={plan.hash}"
    operation = accepted_once(lambda headers: client.delete_for(path, OperationView, headers=headers))
    return watched(client, operation, watching)


@click.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.argument("new")
@json_option
@connected
def copy(model: str, new: str, as_json: bool) -> None:
    """Add a model NEW with the configuration of another one. They share their weights."""
    change = open_client().post("/api/v1/model-copies", ModelChange, {"name": model, "to": new})
    print_json(change) if as_json else say_change(change, f"{new}: added, as {model} is.")


def _switch(name: str, field: str, value: bool, help: str, done: str) -> click.Command:
    """A command that sets one state of a model."""

    @click.command(name, cls=CorralCommand, help=help)
    @click.argument("model", shell_complete=complete_model)
    @json_option
    @connected
    def switch(model: str, as_json: bool) -> None:
        change = open_client().post("/api/v1/model-states", ModelChange, {"name": model, field: value})
        print_json(change) if as_json else say_change(change, f"{model}: {done}.")

    return switch


disable = _switch("disable", "is_disabled", True, "Answer no requests for a model, and stop its replicas.", "disabled")
enable = _switch("enable", "is_disabled", False, "Answer requests for a model that was disabled.", "enabled")
_KEEP: Final = (
    "Keep a model once it is loaded.\n\nIt makes way for no other model, and is not unloaded for being idle. LocalAI "
    "calls this pinned."
)
keep = _switch("keep", "is_pinned", True, _KEEP, "kept when it is loaded")
unkeep = _switch("unkeep", "is_pinned", False, "Let a model make way for others again.", "no longer kept")


def _facts(model: ModelView) -> list[tuple[str, str]]:
    """What is known about a model; empty fields are left out."""
    origin = model.origin
    pairs = [
        ("Name", model.name),
        ("State", _state(model)),
        ("Why", model.reason),
        ("Alias of", model.alias_of),
        ("Backend", model.backend),
        ("Weights", model.model),
        ("Size", format_size(model.bytes) if model.bytes else ""),
        ("Memory", _memory(model.memory)),
        ("File", model.source),
        ("From", "" if origin is None or origin.reference == model.source else origin.resolved or origin.reference),
        ("Gallery", "" if origin is None else origin.gallery),
        ("Licence", "" if origin is None else origin.licence),
        ("Revision", model.revision[:12]),
        ("Changed", _changed(model)),
        ("Kept", "once it is loaded" if model.is_pinned else ""),
        ("Replicas", "" if model.scheduling is None else rule_text(model.scheduling)),
        ("Problem", "" if model.scheduling is None else model.scheduling.problem),
    ]
    load_message = ""
    if model.load_job is not None:
        load_message = model.load_job.message
        pairs.append(("Load", _load(model.load_job)))
        pairs += [("Engine", line) for line in model.load_job.engine_lines]
    pairs += [("Replica", _replica(replica, load_message)) for replica in model.replicas]
    pairs += [
        ("Engine", f"{engine.name}, elsewhere: {state_word(Subject.ENGINE, engine.state).inline}")
        for engine in model.engines
    ]
    pairs += [("Warning", warning) for warning in model.warnings]
    pairs += [("Passed over", f"{problem.source}: {problem.problem}") for problem in model.problems]
    return [(name, state_text(Subject.MODEL, text) if name == "State" else plain(text)) for name, text in pairs if text]


def _load(job: LoadJobView) -> str:
    """The progress of a load, or only the reason while it waits."""
    if job.state == "loading":
        return load_text(job, datetime.now(UTC))
    return f"{state_word(Subject.LOAD, job.state).inline}: {job.message}".rstrip(": ")


def _memory(memory: ModelMemoryView | None) -> str:
    """What one replica takes, as far as that is known."""
    if memory is None or not memory.ram:
        return ""
    on_gpu = f"; with a GPU {format_size(memory.vram)} on it" if memory.vram else ""
    beside = f" and {format_size(memory.ram_beside_gpu)} beside" if on_gpu and memory.ram_beside_gpu else ""
    return f"about {format_size(memory.ram)}{on_gpu}{beside} (by {memory.source})"


def _changed(model: ModelView) -> str:
    """The number of the last change, who made it, and when."""
    if not model.number:
        return ""
    by = f" by {model.changed_by}" if model.changed_by else ""
    return f"{moment(model.changed_at, datetime.now(UTC))}{by}, change {model.number}"


def _replica(replica: ReplicaView, load_message: str) -> str:
    """One line about a replica. A reason that the load job already gives is not repeated: it may be long."""
    place = f"{replica.node} #{replica.index}".lstrip()  # a node that was removed has no name
    text = f"{place} {state_word(Subject.REPLICA, replica.state).inline}"
    if replica.state in ("loaded", "unloading"):
        busy = "an unknown number of requests" if replica.in_flight is None else counted(replica.in_flight, "request")
        text += f", {busy} under way"
    reason = "" if replica.reason in load_message else replica.reason
    return f"{text} ({reason})" if reason else text
