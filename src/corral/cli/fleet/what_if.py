"""`corral what-if`: what a change of the fleet would do. Nothing is changed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from corral.cli.connection import connected, open_client
from corral.cli.names import complete_installed, complete_model, complete_node, find_node, unknown_backend_warnings
from corral.cli.options import CorralCommand, warn
from corral.cli.output import Column, json_option, plain, show_view, state_text, table
from corral.processes.exit_codes import ExitCode
from corral.wire.placement import ConsequenceView, WhatIfAsk, WhatIfView
from corral.wire.state_words import Subject

if TYPE_CHECKING:
    from rich.console import RenderableType

_PATH: Final = "/api/v1/what-if"
_LOSSES: Final = frozenset({"service_lost", "replica_lost", "not_added", "stays"})


@click.group("what-if")
def what_if() -> None:
    """See what a change would do to the models. Nothing is changed.

    The frontend places every replica that would end with the rules by which it places loads, one after the other, on
    the fleet as it is now. Ends with 1 when something would have no place, with 0 when all would.
    """


@what_if.command(cls=CorralCommand)
@click.argument("node", shell_complete=complete_node)
@click.argument("becomes", type=click.Choice(["down", "drained"]))
@json_option
@connected
def node(node: str, becomes: str, as_json: bool) -> int:
    """What if NODE goes down, or is drained?

    A node that is down takes its replicas with it. One that is drained keeps each until it is loaded elsewhere.
    """
    detail = find_node(open_client(), node)
    return _asked(WhatIfAsk(node=detail.id, becomes=becomes), as_json=as_json)


@what_if.command(cls=CorralCommand)
@click.argument("model", shell_complete=complete_model)
@click.argument("scaled", type=click.Choice(["scaled"]))
@click.argument("replicas", type=click.IntRange(0, 1000))
@json_option
@connected
def model(model: str, scaled: str, replicas: int, as_json: bool) -> int:
    """What if MODEL is scaled to so many replicas?"""
    return _asked(WhatIfAsk(model=model, replicas=replicas), as_json=as_json)


@what_if.command(cls=CorralCommand)
@click.argument("backend", shell_complete=complete_installed)
@click.argument("becomes", type=click.Choice(["deleted"]))
@json_option
@connected
def backend(backend: str, becomes: str, as_json: bool) -> int:
    """What if BACKEND is deleted on all nodes?"""
    warn(unknown_backend_warnings(open_client(), backend))
    return _asked(WhatIfAsk(backend=backend, becomes=becomes), as_json=as_json)


def _asked(ask: WhatIfAsk, *, as_json: bool) -> int:
    view = open_client().post(_PATH, WhatIfView, ask)
    show_view(view, lambda: what_if_page(view), as_json=as_json)
    return ExitCode.FAILED if any(each.fate in _LOSSES for each in view.consequences) else ExitCode.OK


_COLUMNS: Final[Sequence[Column[ConsequenceView]]] = (
    Column(title="MODEL", cell=lambda each: plain(each.model)),
    Column(title="WHAT", cell=lambda each: state_text(Subject.FATE, each.fate)),
    Column(title="FROM", cell=lambda each: plain(each.node or "–")),
    Column(title="TO", cell=lambda each: plain(each.to_node or "–")),
    Column(title="WHY", cell=lambda each: plain(_reason(each)), wraps=True),
)


def what_if_page(view: WhatIfView) -> "RenderableType":
    from rich.console import Group

    parts: list[RenderableType] = [f"[bold]If {plain(view.change)}:[/] {plain(view.summary)}"]
    if view.consequences:
        parts += ["", table(_COLUMNS, view.consequences)]
    return Group(*parts)


def _reason(each: ConsequenceView) -> str:
    words = [each.why] if each.why else []
    if each.is_interrupted:
        words.append("does not answer until it is loaded there")
    if each.is_curable:
        words.append("would have a place if something else ended")
    return "; ".join(words)
