"""`corral engines add`, `set`, `list`, `show`, `test` and so on: each works on one external engine."""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from msgspec import UNSET, structs

from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.private_files import read_bounded
from corral.base.words import counted, near_names
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_engine, complete_model
from corral.cli.options import CorralCommand, confirm
from corral.cli.output import Column, answer, facts, json_option, plain, print_table, say, show_view, state_text
from corral.cli.units import age, moment
from corral.processes.exit_codes import ExitCode
from corral.wire.engines import ENGINE_USES, USUAL_USES, EngineAsk, EngineTrial, ExternalEngineView
from corral.wire.state_words import Subject

F = TypeVar("F", bound=Callable[..., Any])
PATH: Final = "/api/v1/external-engines"
_STANDARD_INPUT: Final = "-"
_LARGEST: Final = 256 * 1024
_GOOD: Final = "up"


def _field_options(function: F) -> F:
    """The options that say what an engine is like; None where one is not given."""
    options = [
        click.option("--remote-model", metavar="NAME", help="What the model is called there; the same by default."),
        click.option(
            "--use",
            "uses",
            multiple=True,
            type=click.Choice(list(ENGINE_USES)),
            help=f"What it can do; may be given several times.  [default: {', '.join(USUAL_USES)}]",
        ),
        click.option(
            "--engine-key-file",
            metavar="FILE",
            help="File that holds the key that the engine wants; - for standard input. A key is never an argument.",
        ),
        click.option("--ask-engine-key", is_flag=True, help="Ask for the engine's key on the terminal."),
        click.option(
            "--ca-file", metavar="FILE", help="Certificates of the authorities that it is checked against, as PEM."
        ),
        click.option(
            "--health-path",
            metavar="PATH",
            help="What is asked to see whether it lives, such as /health; the list of its models by default.",
        ),
        click.option(
            "--max-concurrent", type=int, metavar="N", help="Requests at once; 0, the default, for any number."
        ),
        click.option(
            "--weight",
            type=int,
            metavar="N",
            help="How many requests it gets for one that a replica of the fleet's gets.  [default: 1]",
        ),
        click.option(
            "--fallback-order",
            type=int,
            metavar="N",
            help="0, the default, asks it beside the fleet; 1 and more only when those of lower order cannot answer.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command("add", cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.argument("name")
@click.argument("engine_url", metavar="URL")
@_field_options
@click.option("--disabled", is_flag=True, help="Store it, and do not ask it yet.")
@json_option
@connected
def add_engine(model: str, name: str, engine_url: str, disabled: bool, as_json: bool, **options: Any) -> int:
    """Add the engine NAME at URL, which answers for MODEL.

    URL is what client libraries call the base URL, such as https://api.example.com/v1; without a path, /v1 is meant.
    The fleet need not have the model itself.
    """
    key = _read_key(options.pop("engine_key_file"), options.pop("ask_engine_key"))
    ask = EngineAsk(model=model, name=name, url=engine_url, is_enabled=not disabled, **_fields(options))
    ask.key = "" if key is None else key
    client = open_client()
    added = client.post(PATH, ExternalEngineView, ask)
    trial = None if disabled else client.post(api_path("external-engines", added.id, "test"), EngineTrial)
    where = f"{added.model} is answered by {added.name} at {added.url} as {added.remote_model}."
    outcome = "" if trial is None else f" {_trial_words(trial)}"
    answer({"engine": added, "test": trial}, where + outcome, as_json=as_json)
    return ExitCode.OK if trial is None or trial.state == _GOOD else ExitCode.FAILED


@click.command("set", cls=CorralCommand)
@click.argument("engine", shell_complete=complete_engine)
@click.option("--engine-url", metavar="URL", help="Where its API is.")
@click.option("--name", metavar="NAME", help="What it is called.")
@_field_options
@click.option("--no-engine-key", is_flag=True, help="It wants no key any more.")
@click.option("--system-ca", is_flag=True, help="Check its certificate against the authorities of the system again.")
@json_option
@connected
def set_engine(
    engine: str, engine_url: str | None, no_engine_key: bool, system_ca: bool, as_json: bool, **options: Any
) -> None:
    """Change what is known of ENGINE; what is not named stays."""
    key = _read_key(options.pop("engine_key_file"), options.pop("ask_engine_key"))
    client = open_client()
    before = find_engine(client, engine)
    changes = {**_fields(options), **({"url": engine_url} if engine_url else {}), **({"ca": ""} if system_ca else {})}
    ask = structs.replace(ask_of(before), **changes)
    ask.key = "" if no_engine_key else UNSET if key is None else key
    changed = put_engine(client, before, ask)
    answer(changed, f"{changed.name} is changed.", as_json=as_json)


def _read_key(file: str | None, is_asked: bool) -> str | None:
    """The engine's key, from a file, standard input or the terminal; None when none is given."""
    if is_asked:
        if not sys.stdin.isatty():
            raise InvalidInput("--ask-engine-key", "needs a terminal; --engine-key-file - reads standard input")
        typed: str = click.prompt("Key of the engine", hide_input=True, err=True)
        return typed.strip()
    return None if file is None else read_text(file, "--engine-key-file").strip()


def read_text(file: str, flag: str) -> str:
    """What a file holds, or standard input; InvalidInput names the flag."""
    try:
        data = sys.stdin.buffer.read(_LARGEST) if file == _STANDARD_INPUT else read_bounded(Path(file), _LARGEST)
        if data is None:
            raise InvalidInput(flag, f"there is no file {file}")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(flag, f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    """What was given on the command line, as fields of an engine."""
    fields = {name: value for name, value in options.items() if value is not None and name not in ("uses", "ca_file")}
    if options["uses"]:
        fields["uses"] = list(options["uses"])
    if options["ca_file"] is not None:
        fields["ca"] = read_text(options["ca_file"], "--ca-file")
    return fields


@click.command("list", cls=CorralCommand)
@json_option
@connected
def list_engines(as_json: bool) -> None:
    """List the engines, and whether they answer."""
    now = datetime.now(UTC)
    columns: Sequence[Column[ExternalEngineView]] = (
        Column(title="MODEL", cell=lambda engine: plain(engine.model)),
        Column(title="NAME", cell=lambda engine: plain(engine.name)),
        Column(title="STATE", cell=lambda engine: state_text(Subject.ENGINE, engine.state)),
        Column(title="ORDER", cell=lambda engine: str(engine.fallback_order), right=True),
        Column(title="SINCE", cell=lambda engine: age(engine.since, now) if engine.since else "–", least_width=90),
        Column(title="URL", cell=lambda engine: plain(engine.url), least_width=70),
        Column(title="REASON", cell=lambda engine: plain(engine.reason), least_width=60, wraps=True),
    )
    engines = open_client().get(PATH, list[ExternalEngineView])
    print_table(engines, columns, nothing="There are no engines; `corral engines add` adds one.", as_json=as_json)


@click.command("show", cls=CorralCommand)
@click.argument("engine", shell_complete=complete_engine)
@json_option
@connected
def show_engine(engine: str, as_json: bool) -> None:
    """Show what is known of ENGINE, named by its name, by MODEL/NAME or by its id. Its key is never shown."""
    view = find_engine(open_client(), engine)
    show_view(view, lambda: facts(_facts(view)), as_json=as_json)


def _facts(view: ExternalEngineView) -> list[tuple[str, str]]:
    now = datetime.now(UTC)
    since = f" since {moment(view.since, now)}" if view.since else ""
    return [
        ("id", view.id),
        ("model", plain(view.model)),
        ("name", plain(view.name)),
        ("url", plain(view.url)),
        ("model there", plain(view.remote_model)),
        ("state", f"{state_text(Subject.ENGINE, view.state)}{since}"),
        ("reason", plain(view.reason or "–")),
        ("looked at", moment(view.checked_at, now) if view.checked_at else "never"),
        ("uses", ", ".join(view.uses)),
        ("key", "stored" if view.has_key else "none"),
        ("authorities", "its own" if view.ca else "those of the system"),
        ("health path", plain(view.health_path or "the list of its models")),
        ("at once", str(view.max_concurrent or "any number")),
        ("under way", "not known" if view.in_flight is None else str(view.in_flight)),
        ("weight", str(view.weight)),
        ("fallback order", str(view.fallback_order)),
        ("last used", moment(view.last_used_at, now) if view.last_used_at else "not lately"),
        ("changed", f"{moment(view.changed_at, now)} by {plain(view.changed_by)}"),
    ]


@click.command("enable", cls=CorralCommand)
@click.argument("engine", shell_complete=complete_engine)
@json_option
@connected
def enable_engine(engine: str, as_json: bool) -> None:
    """Ask ENGINE again."""
    _switch(engine, is_enabled=True, as_json=as_json)


@click.command("disable", cls=CorralCommand)
@click.argument("engine", shell_complete=complete_engine)
@json_option
@connected
def disable_engine(engine: str, as_json: bool) -> None:
    """Ask ENGINE no longer, and keep what is known of it. Answers under way are finished."""
    _switch(engine, is_enabled=False, as_json=as_json)


def _switch(engine: str, *, is_enabled: bool, as_json: bool) -> None:
    client = open_client()
    before = find_engine(client, engine)
    changed = put_engine(client, before, structs.replace(ask_of(before), is_enabled=is_enabled))
    answer(changed, f"{changed.name} is {'asked' if is_enabled else 'not asked any more'}.", as_json=as_json)


@click.command("remove", cls=CorralCommand)
@click.argument("engine", shell_complete=complete_engine)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def remove_engine(engine: str, yes: bool, as_json: bool) -> None:
    """Forget ENGINE and its key. The engine itself is left alone."""
    client = open_client()
    view = find_engine(client, engine)
    if not yes:
        confirm(f"Forget the engine {view.name} of {view.model}?")
    client.delete(api_path("external-engines", view.id))
    answer({"removed": view.id}, f"{view.name} is forgotten.", as_json=as_json)


@click.command("test", cls=CorralCommand)
@click.argument("engine", shell_complete=complete_engine)
@json_option
@connected
def test_engine(engine: str, as_json: bool) -> int:
    """Look at ENGINE now, from the frontend. Ends with 0 when it answers and takes its key."""
    client = open_client()
    view = find_engine(client, engine)
    trial = client.post(api_path("external-engines", view.id, "test"), EngineTrial)
    answer(trial, f"{view.name}: {_trial_words(trial)}", as_json=as_json)
    if not as_json and trial.has_model is False:
        near = near_names(view.remote_model, trial.models) or trial.models[:3]
        say(f"It lists {counted(len(trial.models), 'model')}, among them {', '.join(near)}.")
    return ExitCode.OK if trial.state == _GOOD else ExitCode.FAILED


def _trial_words(trial: EngineTrial) -> str:
    why = f": {trial.reason}" if trial.reason else ""
    return f"It is {trial.state}{why} ({trial.seconds * 1000:.0f} ms)."


# Which engine is meant.


def find_engine(client: ApiClient, reference: str) -> ExternalEngineView:
    """The engine of this id, MODEL/NAME or name. NotFound when no engine matches, Conflict when several do."""
    engines = client.get(PATH, list[ExternalEngineView])
    for means in (lambda each: each.id, lambda each: f"{each.model}/{each.name}", lambda each: each.name):
        matches = [each for each in engines if means(each) == reference]
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(f"{each.model}/{each.name}" for each in matches)
            raise Conflict(f"{reference} may mean {names}; name it so")
    near = near_names(reference, [each.name for each in engines])
    hint = f"did you mean {' or '.join(near)}?" if near else "`corral engines list` shows all"
    raise NotFound(f"there is no engine {reference}; {hint}")


def ask_of(view: ExternalEngineView) -> EngineAsk:
    """What a `PUT` would have to say to change nothing."""
    names = [name for name in EngineAsk.__struct_fields__ if name != "key"]
    return EngineAsk(**{name: getattr(view, name) for name in names})


def put_engine(client: ApiClient, before: ExternalEngineView, ask: EngineAsk) -> ExternalEngineView:
    """Store a changed engine. It fails when another change came first."""
    headers = {"If-Match": f'"{before.revision}"'}
    return client.put(api_path("external-engines", before.id), ExternalEngineView, ask, headers=headers)
