"""`corral ps`: what runs where, what it takes, and what it has to do."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from corral.base.errors import InvalidInput, PeerUnavailable
from corral.base.words import counted, format_size
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import complete_model, complete_node, find_nodes
from corral.cli.options import CorralCommand
from corral.cli.output import Column, json_option, keep_showing, plain, print_json_list, show, state_text, table
from corral.cli.units import age
from corral.wire.placement import ReplicaList
from corral.wire.replicas import ReplicaView
from corral.wire.state_words import Subject, state_word

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_SERVING: Final = ("loaded", "unloading")
_UNKNOWN: Final = "unknown"


@click.command(cls=CorralCommand)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    shell_complete=complete_model,
    help="Only replicas of this model.",
)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NODE",
    shell_complete=complete_node,
    help="Only replicas on the node of this name or id.",
)
@click.option("--watch", is_flag=True, help="Keep showing the list as it changes, until Ctrl-C.")
@json_option
@connected
def ps(models: Sequence[str], nodes: Sequence[str], watch: bool, as_json: bool) -> None:
    """List what runs, with memory, requests and speed.

    MEMORY is what a replica counts with when others are placed: video memory, then memory. TOKENS/S is the speed of
    its latest answers; engines that do not tell their tokens are unknown.
    """
    client = open_client()
    _check_names(client, models, nodes)
    if watch:
        if as_json:
            raise InvalidInput("--watch", "cannot be combined with --json; use `corral events --follow --json`")
        _watch(client, models, nodes)
        return
    replicas = chosen(client.get("/api/v1/replicas", ReplicaList).items, models, nodes)
    if as_json:
        print_json_list(replicas)
    else:
        show(_listing(replicas, datetime.now(UTC), filtered=bool(models or nodes)))


def _check_names(client: ApiClient, models: Sequence[str], nodes: Sequence[str]) -> None:
    """Raise NotFound for a model or a node that does not exist: an empty list would look like one that is idle."""
    for model in models:
        client.get(api_path("models", model), dict[str, object])
    find_nodes(client, nodes)


def chosen(replicas: Sequence[ReplicaView], models: Sequence[str], nodes: Sequence[str]) -> list[ReplicaView]:
    return [
        replica
        for replica in replicas
        if (not models or replica.model in models)
        and (not nodes or replica.node in nodes or any(replica.node_id.startswith(node) for node in nodes))
    ]


def _listing(replicas: Sequence[ReplicaView], now: datetime, *, filtered: bool) -> "RenderableType":
    if replicas:
        return replica_table(replicas, now)
    return "Nothing runs there." if filtered else "Nothing runs; a model is loaded when somebody asks for it."


def _watch(client: ApiClient, models: Sequence[str], nodes: Sequence[str]) -> None:
    """Show the list again every second, also while the frontend does not answer."""
    from rich.console import Group
    from rich.text import Text

    def look() -> "RenderableType":
        try:
            replicas = chosen(client.get("/api/v1/replicas", ReplicaList).items, models, nodes)
        except PeerUnavailable as error:
            return Text(error.message, style="red")
        listing = _listing(replicas, datetime.now(UTC), filtered=bool(models or nodes))
        return Group(listing, Text(replica_summary(replicas), style="dim"))

    keep_showing(look)


def replica_table(replicas: Sequence[ReplicaView], now: datetime) -> "Table":
    columns: Sequence[Column[ReplicaView]] = (
        Column(title="MODEL", cell=lambda replica: plain(replica.model)),
        Column(title="NODE", cell=lambda replica: plain(replica.node or replica.node_id)),
        Column(title="STATE", cell=lambda replica: state_text(Subject.REPLICA, replica.state)),
        Column(title="MEMORY", cell=lambda replica: _memory(replica), right=True, least_width=60),
        Column(title="IN FLIGHT", cell=_in_flight, right=True),
        Column(title="TOKENS/S", cell=_speed, right=True, least_width=70),
        Column(title="IDLE", cell=lambda replica: _idle(replica, now), least_width=80),
        Column(title="AGE", cell=lambda replica: age(replica.created_at, now).removesuffix(" ago"), least_width=90),
        Column(title="GPUS", cell=lambda replica: plain(", ".join(replica.cards) or "–"), least_width=110),
        Column(title="WANTED", cell=lambda replica: plain(replica.why), least_width=130),
    )
    return table(columns, replicas)


def replica_summary(replicas: Sequence[ReplicaView]) -> str:
    """One line such as `3 replicas: 2 loaded, 1 loading`."""
    counts = Counter(replica.state for replica in replicas)
    return f"{counted(len(replicas), 'replica')}: " + ", ".join(
        f"{count} {state_word(Subject.REPLICA, state).inline}" for state, count in sorted(counts.items())
    )


def _memory(replica: ReplicaView) -> str:
    sizes = [format_size(count) for count in (replica.vram, replica.ram) if count]
    return " + ".join(sizes) if sizes else _UNKNOWN


def _in_flight(replica: ReplicaView) -> str:
    if replica.state not in _SERVING:
        return "–"
    return _UNKNOWN if replica.in_flight is None else str(replica.in_flight)


def _speed(replica: ReplicaView) -> str:
    if replica.tokens_per_second is not None:
        return f"{replica.tokens_per_second:.1f}"
    return _UNKNOWN if replica.state in _SERVING else "–"


def _idle(replica: ReplicaView, now: datetime) -> str:
    """The time since the last request, or since the load if there was no request."""
    if replica.state not in _SERVING or replica.in_flight:
        return "–"
    return age(replica.last_used_at or replica.changed_at, now).removesuffix(" ago")
