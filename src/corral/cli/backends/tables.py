"""How the backends of the fleet look on a terminal: nodes with the same build share a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from corral.base.words import listed
from corral.cli.output import Column, plain, table
from corral.cli.units import age, short_digest, size
from corral.frontend.backends.decide.upgrades import BuildIdentity, is_alike, usual_build
from corral.wire.galleries import FleetBackends, FleetBackendView, NodeBackendView
from corral.wire.operation_views import PlannedView

if TYPE_CHECKING:
    from rich.table import Table

_REACHED: Final = {"install": "it is there", "upgrade": "it has the newest", "delete": "it is not there"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One build of one backend, and the nodes that have it."""

    name: str
    build: BuildIdentity
    is_system: bool
    nodes: list[NodeBackendView]
    differs: bool
    """Whether more nodes have another build, or a newer one is on as many. What is not told is no difference."""


def rows(listing: FleetBackends) -> list[Row]:
    """Rows by name; the most common build of a backend comes first."""
    return [row for backend in listing.items for row in _rows_of(backend)]


def _rows_of(backend: FleetBackendView) -> list[Row]:
    usual = usual_build((build_of(node), node.installed_at) for node in backend.nodes) or ("", "")
    groups: dict[tuple[BuildIdentity, bool], list[NodeBackendView]] = {}
    for node in backend.nodes:
        groups.setdefault((build_of(node), node.is_system), []).append(node)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0] != usual, -len(item[1])))
    return [
        Row(name=backend.name, build=build, is_system=is_system, nodes=nodes, differs=not is_alike(build, usual))
        for (build, is_system), nodes in ordered
    ]


def build_of(node: NodeBackendView) -> BuildIdentity:
    return node.version, node.digest


def only_on(listing: FleetBackends, ids: Sequence[str]) -> FleetBackends:
    """The listing restricted to these nodes."""
    items = [
        msgspec.structs.replace(backend, nodes=[node for node in backend.nodes if node.node_id in ids])
        for backend in listing.items
    ]
    return FleetBackends(items=[backend for backend in items if backend.nodes], unheard=listing.unheard)


def backend_table(rows: Sequence[Row], now: datetime, *, width: int) -> "Table":
    columns: list[Column[Row]] = [
        Column(title="NAME", cell=lambda row: plain(row.name)),
        Column(title="VERSION", cell=lambda row: plain(row.build[0] or "–")),
        Column(title="NODES", cell=_nodes),
        Column(title="INSTALLED", cell=lambda row: _installed(row, now), least_width=80),
        Column(title="TOLD", cell=lambda row: age(min(node.seen_at for node in row.nodes), now), least_width=100),
        Column(title="DIGEST", cell=lambda row: plain(short_digest(row.build[1]) or "–"), least_width=110),
        Column(title="FROM", cell=lambda row: plain(row.nodes[0].uri or "–"), least_width=140),
    ]
    return table(columns, rows, width=width)


def _nodes(row: Row) -> str:
    names = plain(listed([_node(node) for node in row.nodes]))
    return f"[yellow]{names} (differs)[/]" if row.differs else names


def _node(node: NodeBackendView) -> str:
    """The node's name, with its status when its report may be old."""
    return node.node_name if node.node_status in ("healthy", "draining") else f"{node.node_name} ({node.node_status})"


def _installed(row: Row, now: datetime) -> str:
    return "with the system" if row.is_system else age(max(node.installed_at for node in row.nodes), now)


def plan_table(planned: Sequence[PlannedView], verb: str, *, width: int) -> "Table":
    columns: list[Column[PlannedView]] = [
        Column(title="NODE", cell=lambda target: plain(target.node_name)),
        Column(title="STATUS", cell=lambda target: plain(target.node_status)),
        Column(title="BACKEND", cell=lambda target: plain(target.backend)),
        Column(
            title="BYTES", cell=lambda target: "–" if target.download_bytes is None else size(target.download_bytes)
        ),
        Column(title="WHAT WOULD HAPPEN", cell=lambda target: plain(_outcome(target, verb)), wraps=True),
    ]
    return table(columns, planned, width=width)


def _outcome(planned: PlannedView, verb: str) -> str:
    if planned.blocked:
        return f"blocked: {planned.blocked}"
    if planned.reached:
        return f"nothing: {_REACHED[verb]}"
    deed = f"{verb} when it comes back" if planned.node_status in ("offline", "unhealthy") else verb
    return f"{deed}; unknown: {planned.unknown}" if planned.unknown else deed
