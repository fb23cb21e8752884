"""Writes the reference pages, docs/reference/*.md, from the code itself.

    python tools/make_docs.py            write them
    python tools/make_docs.py --check    only say which ones differ; ends with 1 when one does

What is missing in a page is missing in the code: a setting's meaning, a command's docstring, a route's summary.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from corral.base.settings import Setting, settings_of
from corral.cli.main import cli
from corral.cli.options import SettingOption
from corral.frontend.access.decide import Permission, permits
from corral.frontend.api.parameters import field_of
from corral.frontend.api.route import Access, RouteSpec
from corral.frontend.diagnosis.routes.metrics import OF_CONTROL
from corral.frontend.record.decide import EventKind
from corral.frontend.routes import ROUTES
from corral.galleries.model_keys import MISPLACED, MODEL_KEYS, OPTIONS, USECASES, Use
from corral.gateway.inference import ROUTES as MODEL_ROUTES
from corral.processes.exit_codes import MEANINGS, NOT_WORTH_A_RESTART
from corral.processes.settings import ACCEPTED_WITHOUT_EFFECT, all_sections
from corral.wire.keys import Scope
from corral.wire.metrics import PER_GATEWAY, REPORT_AGE, UP, MetricDescription

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "reference"
SOURCES: Final = ROOT / "src" / "corral"
NOTE: Final = "<!-- Made by `make docs` from the code; changes belong there. -->"
LEVELS: Final = ("debug", "info", "warning", "error", "exception", "critical")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(text) for text in line) + " |" for line in lines)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def page(title: str, *parts: str) -> str:
    return "\n\n".join([NOTE, f"# {title}", *(part.strip() for part in parts if part.strip())]) + "\n"


# Settings


def settings_page() -> str:
    sections = []
    for group in all_sections():
        sections.append(f"## {group.title}\n\nSection `[{group.section}]` of the file. {summary_of(group)}")
        sections.extend(setting_text(setting) for setting in settings_of(group))
    later = table(
        ["variable", "why it changes nothing"],
        ([code(name), reason] for name, reason in sorted(ACCEPTED_WITHOUT_EFFECT.items())),
    )
    return page(
        "Settings",
        SETTINGS_INTRODUCTION,
        *sections,
        "## Variables of LocalAI that change nothing\n\nThey are accepted, so that a LocalAI environment can be used "
        f"as it is.\n\n{later}",
    )


SETTINGS_INTRODUCTION: Final = """
A value comes from a flag, then from the environment, then from a TOML file (`--config FILE` or `CORRAL_CONFIG`), then
from the default. Of several variables of one setting the first one listed wins; an empty variable counts as not set.
A value that cannot be used, an unknown flag or an unknown key in the file stops the start with a sentence that names
it; an unknown `CORRAL_*` variable is only warned about.

Secrets have no flag, and a URL that carries a password is not accepted as one: every user of a machine can read the
arguments of its processes. They come from the environment or from the file, which should have the mode 0600.
"""


def setting_text(setting: Setting) -> str:
    flag = setting.switch_flags.replace("/", "`, `") if setting.kind.is_switch and setting.flag else setting.flag
    facts = [
        ["flag", code(flag) or ("none: it is a secret" if setting.secret else "none")],
        ["environment", ", ".join(code(name) for name in setting.env)],
        ["allowed", setting.kind.allowed],
        ["default", default_cell(setting.default_text)],
    ]
    return f"### `{setting.section}.{setting.name}`\n\n{setting.meaning}\n\n{table(['', ''], facts)}"


def default_cell(text: str) -> str:
    is_words = "`" in text or " " in text or text in ("none", "required", "random", "detected")
    return text if is_words else code(text)


def summary_of(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


# Commands


def cli_page() -> str:
    texts = (command_text(path, command) for path, command in commands(cli, "corral"))
    return page("Commands", CLI_INTRODUCTION, *texts)


CLI_INTRODUCTION: Final = """
Flags that are settings are described in [settings](settings.md); commands that talk to a frontend take all of the
section `[client]`. Exit codes are listed in [exit codes](exit-codes.md).
"""


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that people see, groups before their members."""
    if command.hidden:
        return
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from commands(found, f"{path} {name}")


def command_text(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    help_text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    options = [own_options(command, context), settings_line(command, context)]
    parts = [f"## `{path}`", f"```\n{usage}\n```", help_text, *options]
    return "\n\n".join(part for part in parts if part)


def own_options(command: click.Command, context: click.Context) -> str:
    options = [
        parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    records = [record for option in options if (record := option.get_help_record(context)) is not None]
    return table(["option", "meaning"], [[code(name), text] for name, text in records]) if records else ""


def settings_line(command: click.Command, context: click.Context) -> str:
    flags = [parameter.opts[0] for parameter in command.get_params(context) if isinstance(parameter, SettingOption)]
    return f"Settings: {', '.join(code(flag) for flag in flags)}" if flags else ""


# Routes


def routes_page() -> str:
    rows = []
    for route in ROUTES:
        answers = "; ".join(f"{status}: {when}" for status, when in route.codes.items())
        rows.append([code(f"{route.method} {route.path}"), route.access.value, route.summary, answers])
    queries = [
        f"### `{route.method} {route.path}`\n\n"
        + table(
            ["parameter", "meaning"],
            [[code(name), field_of(described).text] for name, described in route.query.items()],
        )
        for route in ROUTES
        if route.query
    ]
    return page(
        "Routes",
        ROUTES_INTRODUCTION,
        table(["route", "who", "what", "answers"], rows),
        MODEL_ROUTES_INTRODUCTION,
        table(["route", "what"], model_routes()),
        "## Query parameters",
        *queries,
    )


def model_routes() -> list[list[str]]:
    """Return the routes that models answer, with all names of each. Raise for a route without a description."""
    named: dict[bytes, list[bytes]] = {}
    for path, target in MODEL_ROUTES.items():
        named.setdefault(target, []).append(path)
    return [
        [", ".join(code(f"POST {path.decode()}") for path in paths), MODEL_ROUTE_MEANINGS[target.decode()]]
        for target, paths in named.items()
    ]


MODEL_ROUTES_INTRODUCTION: Final = """
## Models

Keys of scope inference may ask. The body names the `model`; answers, and errors, have OpenAI's shape, below
`/v1/messages` Anthropic's, below `/api/` Ollama's. What a model does not do is answered with 400 that says so, a model
that is not loaded yet with 503, `Retry-After` and a `loading` object.

The gateway itself answers `GET /v1/models`, `GET /v1/models/NAME` and, in Ollama's form, `GET /api/tags`,
`GET /api/ps`, `POST /api/show` and `GET /api/version`. It refuses Ollama's routes that change models.

A path may name the model instead of the body: `/openai/deployments/NAME/chat/completions` and its like, as clients of
Azure ask, and `/v1/engines/NAME/completions`. Below `/openai/v1/` are the same routes as below `/v1/`.
"""

MODEL_ROUTE_MEANINGS: Final = {
    "/v1/chat/completions": "A chat, whole or streamed.",
    "/v1/completions": "A text continued, whole or streamed.",
    "/v1/edits": "Texts (`input`) edited by an `instruction`, where the backend only speaks gRPC. LocalAI's.",
    "/v1/embeddings": "Vectors of texts.",
    "/v1/audio/speech": "A text of up to 4,096 characters as a WAV file; with `stream` one that begins at once.",
    "/v1/audio/transcriptions": (
        "A form with a `file`: what is said in it, as `json`, `text`, `srt`, `vtt` or `verbose_json`; "
        "with `stream` as events."
    ),
    "/v1/rerank": (
        "How well each of `documents` fits the `query`: `results`, the best first, up to `top_n`. LocalAI's."
    ),
    "/v1/vad": (
        "Where somebody speaks in `audio`, samples from -1 to 1 at 16,000 a second: `segments` in seconds. LocalAI's."
    ),
    "/v1/responses": "OpenAI's newer form of a chat, from llama.cpp and from backends that only speak gRPC.",
    "/v1/messages": "Anthropic's form of a chat, from llama.cpp and from backends that only speak gRPC.",
    "/v1/messages/count_tokens": "How many tokens such a chat would take, where the backend tells.",
    "/api/chat": "Ollama's form of a chat, in lines of JSON unless `stream` is false; from the same backends.",
    "/api/generate": (
        "An answer to a `prompt` in Ollama's form; with `raw` the text continued. No prompt: the model is loaded."
    ),
    "/api/embed": "Vectors of texts in Ollama's form.",
    "/api/embeddings": "One vector, in Ollama's older form.",
    "/tokenize": "The `tokens` of `content`. LocalAI's.",
    "/detokenize": "The `content` of `tokens`. LocalAI's.",
}

ROUTES_INTRODUCTION: Final = """
Who may call: `public` everyone; `node` workers, with the registration token, their own secret or a key of scope node;
`metrics` everyone or keys with the permission `metrics.read`, by the setting `frontend.metrics_public`. Everything else
is a permission that the key must give: [permissions](permissions.md) says which keys do. Keys are
sent as `Authorization: Bearer KEY`. Any route may also answer 401 without a valid key, 403 with a key that lacks the
permission, 413 to a body over `frontend.max_body`, and 503 with `Retry-After` while the database is away. A running
frontend shows the same at `/docs`, and as OpenAPI at `/openapi.json`.
"""


# Permissions

PEOPLE: Final = (Scope.ADMIN, Scope.OPERATOR, Scope.VIEWER, Scope.INFERENCE)
ROLE_NAMES: Final = ("administrator", "operator", "viewer", "inference")


def permissions_page() -> str:
    meanings = member_docstrings(SOURCES / "frontend/access/decide.py", "Permission")
    permissions = [[code(each), meanings[each.name], *allowed(each, PEOPLE)] for each in Permission]
    calls = [[code(f"{route.method} {route.path}"), *callers(route)] for route in ROUTES]
    return page(
        "Permissions",
        PERMISSIONS_INTRODUCTION,
        "## What a role may do",
        table(["permission", "meaning", *ROLE_NAMES], permissions),
        "## Who may call what",
        CALLS_INTRODUCTION,
        table(["route", "needs", *ROLE_NAMES, "others"], calls),
    )


def allowed(permission: Permission, scopes: Iterable[Scope]) -> list[str]:
    return ["yes" if permits([scope], permission) else "" for scope in scopes]


def callers(route: RouteSpec) -> list[str]:
    """What a route needs, which roles have it, and who else may call."""
    others = {Access.PUBLIC: "everyone", Access.METRICS: "everyone, by setting", Access.WORKER: "workers"}
    other = others[route.access] if isinstance(route.access, Access) else ""
    if route.permission is None:
        return ["", *("yes" if route.access is Access.PUBLIC else "" for _ in PEOPLE), other]
    if permits([Scope.GATEWAY], route.permission):
        other = "gateways"
    return [code(route.permission), *allowed(route.permission, PEOPLE), other]


PERMISSIONS_INTRODUCTION: Final = """
Every route needs one permission, and a key gives those of its scopes. [Access](../concepts/access.md) explains the
roles. Permissions can not be given one by one.
"""
CALLS_INTRODUCTION: Final = """
A key without the permission is answered 403, which names it. A few bodies need more than their route: an operation
or a fleet rule that names a uri or galleries of its own needs `backends.trust`, and a pull of files of the frontend's
machine needs `machine.read`. The routes that ask models are in [routes](routes.md#models); they need `inference`, and
`GET /v1/models` does too.
"""


# Events


@dataclass(frozen=True)
class LogEvent:
    name: str
    level: str
    message: str
    module: str


def events_page() -> str:
    meanings = member_docstrings(SOURCES / "frontend/record/decide.py", "EventKind")
    kinds = [[code(kind.value), meanings.get(kind.name, "")] for kind in EventKind]
    logged = sorted({(event.name, event.level, event.message, event.module) for event in log_events()})
    return page(
        "Events",
        "## The record\n\nWhat `corral events`, `GET /api/v1/events` and its stream show. Kept in the database for "
        "`frontend.event_retention`.",
        table(["kind", "meaning"], kinds),
        "## Log lines\n\nStable names in the field `event` of every log line that tells of a change of state.",
        table(["event", "level", "message", "from"], [[code(n), lv, m, code(f)] for n, lv, m, f in logged]),
    )


def member_docstrings(path: Path, class_name: str) -> dict[str, str]:
    """The texts that stand under the members of an enumeration."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    found = {}
    for member, following in pairwise(body):
        match member, following:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
    return found


def log_events() -> Iterator[LogEvent]:
    """Every call of a logger whose `extra` names an event, and every such dictionary made beforehand."""
    for path in sorted(SOURCES.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        told = dict[int, tuple[str, str]]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (words := logged_words(node)) is not None:
                told.update({id(part): words for part in ast.walk(node)})
        for node in ast.walk(tree):
            if (name := event_name(node)) is not None:
                level, message = told.get(id(node), ("", ""))
                yield LogEvent(name, level, message, module)


def logged_words(call: ast.Call) -> tuple[str, str] | None:
    """Level and message of a call such as `log.info("node approved", …)`."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in LEVELS or not call.args:
        return None
    if not isinstance(function.value, ast.Name) or function.value.id not in ("log", "logger"):
        return None
    first = call.args[0]
    message = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    return ("error" if function.attr == "exception" else function.attr), message


def event_name(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Dict):
        return None
    for key, value in zip(node.keys, node.values, strict=True):
        is_event = isinstance(key, ast.Constant) and key.value == "event"
        if is_event and isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


# Exit codes


def exit_codes_page() -> str:
    rows = [
        [str(exit_code.value), meaning, "no" if exit_code in NOT_WORTH_A_RESTART else ""]
        for exit_code, meaning in MEANINGS.items()
    ]
    return page("Exit codes", EXIT_INTRODUCTION, table(["code", "meaning", "worth a restart"], rows))


EXIT_INTRODUCTION: Final = """
Every command and every process of Corral ends with one of these. Where it says that a restart is not worth it,
the same start will fail in the same way until a person changes something; `corral frontend` and `corral up` then end
with the code of the process that failed.
"""

# Metrics


def metrics_page() -> str:
    return page(
        "Metrics",
        METRICS_INTRODUCTION,
        f"## Of the frontend\n\n{metrics_table(OF_CONTROL)}",
        f"## Of its gateways\n\n{metrics_table((UP, REPORT_AGE, *PER_GATEWAY))}",
    )


METRICS_INTRODUCTION: Final = """
`GET /metrics` shows all of this in the form of Prometheus, and `process_*` of the control process. Who may read it is
said in [access](../concepts/access.md).

Each frontend shows the gateways that report to it, wherever they run; the label `gateway` is new at every start of a
gateway, and its counters begin anew with it. A gateway that was not heard for five seconds has only `corral_gateway_up`
and its age. While control is away, a gateway shows its own series and says so in the first line.
"""


def metrics_table(metrics: Iterable[MetricDescription]) -> str:
    rows = ([code(one.name), one.kind.value, ", ".join(map(code, one.labels)), one.help] for one in metrics)
    return table(["metric", "kind", "labels", "meaning"], rows)


# Keys of models


def model_keys_page() -> str:
    headings = ["key", "type", "default", "meaning", "Corral", "backends"]
    rows = [
        [code(key.key), key.type.shown, key.default, key.meaning, key.use.value, key.backends] for key in MODEL_KEYS
    ]
    uses = [[use.value, str(sum(key.use is use for key in MODEL_KEYS))] for use in Use]
    misplaced = [[code(key), code(meant)] for key, meant in MISPLACED.items()]
    options = [[who, ", ".join(map(code, sorted(names.split())))] for who, names in OPTIONS.items()]
    return page(
        "Keys of a model's configuration",
        MODEL_KEYS_INTRODUCTION,
        table(["keys that are", "number"], uses),
        table(headings, rows),
        f"## In the wrong place\n\n{MISPLACED_INTRODUCTION}",
        table(["where nothing reads it", "what was meant"], misplaced),
        f"## Options\n\n{OPTIONS_INTRODUCTION}",
        table(["read by", "names"], options),
        "## Uses\n\nWords in `known_usecases`, also spelled like `FLAG_CHAT`: "
        + ", ".join(map(code, sorted(USECASES)))
        + ".",
    )


MODEL_KEYS_INTRODUCTION: Final = """
What a model's YAML file, or an entry of a gallery of models, may say. The words are LocalAI's, so that its files work
as they are. A key that is not here is warned about with its line and the key that was probably meant; a value of
another type, or a key given twice, is refused with file, line, key and value. Keys that begin with `x-` are your own.
Items of lists are written as `[]`.
"""
MISPLACED_INTRODUCTION: Final = "LocalAI's gallery has these keys where they have no effect; Corral says so."
OPTIONS_INTRODUCTION: Final = """
Items of `options` are `name:value`, `name=value` or a bare name. All are passed on to the backend; these occur in
LocalAI's gallery. A name that is nearly one of them is warned about.
"""


PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings_page,
    "cli.md": cli_page,
    "routes.md": routes_page,
    "permissions.md": permissions_page,
    "events.md": events_page,
    "exit-codes.md": exit_codes_page,
    "metrics.md": metrics_page,
    "model-keys.md": model_keys_page,
}


def differing(folder: Path = FOLDER) -> list[str]:
    """Pages that are not what the code says."""
    return [name for name, render in PAGES.items() if not is_current(folder / name, render())]


def is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say which pages differ")
    options = parser.parse_args(arguments)
    stale = differing()
    if options.check:
        for name in stale:
            print(f"docs/reference/{name} differs from the code; run: make docs")
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
