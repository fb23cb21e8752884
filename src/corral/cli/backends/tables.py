"""How backends of the fleet look on a terminal: installed, planned, outdated. Nodes with the same build share a row."""

from collections.abc import Sequence
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from corral.base.words import listed
from corral.cli.output import Column, plain, say, show, state_text, table
from corral.cli.units import SHORT_ID, age, short_digest
from corral.frontend.backends.decide.backend import BuildIdentity
from corral.frontend.backends.decide.plan_words import fetched, outcome
from corral.frontend.backends.decide.upgrades import is_alike, usual_build
from corral.wire.fleet_rules import DriftView
from corral.wire.galleries import (
    BackendUpgradeView,
    FleetBackends,
    FleetBackendView,
    NodeBackendView,
    NodeUpgradeView,
    UpgradesView,
)
from corral.wire.operation_views import PlannedView
from corral.wire.state_words import Subject

if TYPE_CHECKING:
    from rich.table import Table


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One build of one backend, and the nodes that have it."""

    name: str
    build: BuildIdentity
    is_system: bool
    nodes: list[NodeBackendView]
    differs: bool
    """Whether more nodes have another build, or a newer one is on as many. An unknown version is not a difference."""


def rows(listing: FleetBackends) -> list[Row]:
    """Rows by name; the most common build of a backend comes first."""
    return [row for backend in listing.items for row in _rows_of(backend)]


def _rows_of(backend: FleetBackendView) -> list[Row]:
    groups: dict[tuple[BuildIdentity, bool], list[NodeBackendView]] = {}
    for node in backend.nodes:
        groups.setdefault(((node.version, node.digest), node.is_system), []).append(node)
    usual = usual_build(((node.version, node.digest), node.installed_at) for node in backend.nodes) or ("", "")
    ordered = sorted(groups.items(), key=lambda item: (item[0][0] != usual, -len(item[1])))
    return [
        Row(name=backend.name, build=build, is_system=is_system, nodes=nodes, differs=not is_alike(build, usual))
        for (build, is_system), nodes in ordered
    ]


def only_on(listing: FleetBackends, ids: Sequence[str]) -> FleetBackends:
    """The listing restricted to these nodes."""
    items = [
        msgspec.structs.replace(backend, nodes=[node for node in backend.nodes if node.node_id in ids])
        for backend in listing.items
    ]
    return FleetBackends(items=[backend for backend in items if backend.nodes], unheard=listing.unheard)


def backend_table(rows: Sequence[Row], now: datetime) -> "Table":
    columns: list[Column[Row]] = [
        Column(title="NAME", cell=lambda row: plain(row.name)),
        Column(title="VERSION", cell=lambda row: plain(row.build[0] or "–")),
        Column(title="NODES", cell=_nodes),
        Column(
            title="INSTALLED",
            cell=lambda row: (
                "with the system" if row.is_system else age(max(node.installed_at for node in row.nodes), now)
            ),
            least_width=80,
        ),
        Column(title="TOLD", cell=lambda row: age(min(node.seen_at for node in row.nodes), now), least_width=100),
        Column(title="DIGEST", cell=lambda row: plain(short_digest(row.build[1]) or "–"), least_width=110),
        Column(title="FROM", cell=lambda row: plain(row.nodes[0].uri or "–"), least_width=140),
    ]
    return table(columns, rows)


def _nodes(row: Row) -> str:
    """The names of the nodes, with their status when their report may be old."""
    alive = ("healthy", "draining")
    names = [
        node.node_name if node.node_status in alive else f"{node.node_name} ({node.node_status})" for node in row.nodes
    ]
    return f"[yellow]{plain(listed(names))} (differs)[/]" if row.differs else plain(listed(names))


def plan_table(planned: Sequence[PlannedView], verb: str) -> "Table":
    columns: list[Column[PlannedView]] = [
        Column(title="NODE", cell=lambda target: plain(target.node_name)),
        Column(title="STATUS", cell=lambda target: state_text(Subject.NODE, target.node_status)),
        Column(title="BACKEND", cell=lambda target: plain(target.backend)),
        Column(title="BYTES", cell=lambda target: plain(fetched(target))),
        Column(title="WHAT WOULD HAPPEN", cell=lambda target: plain(outcome(target, verb)), wraps=True),
    ]
    return table(columns, planned)


if TYPE_CHECKING:
    from rich.table import Table


def print_drift(items: Sequence[DriftView], now: datetime) -> None:
    """Print what is not as it was asked for, and the command that mends each."""
    if not items:
        say("All is as it was asked for.")
        return
    columns: Sequence[Column[DriftView]] = (
        Column(title="NODE", cell=lambda drift: plain(drift.node_name)),
        Column(title="BACKEND", cell=lambda drift: plain(drift.backend)),
        Column(title="STATE", cell=lambda drift: state_text(Subject.DRIFT, drift.kind)),
        Column(title="WANTED", cell=lambda drift: plain(drift.wanted), least_width=90),
        Column(title="HAS", cell=lambda drift: plain(drift.has)),
        Column(title="SINCE", cell=lambda drift: age(drift.since, now) if drift.since else "–", least_width=80),
        Column(title="RULE", cell=lambda drift: plain(drift.rule or "–"), least_width=110),
        Column(title="WHY", cell=lambda drift: plain(drift.why), wraps=True),
    )
    show(table(columns, items))
    for line in dict.fromkeys(filter(None, map(_mending, items))):
        say(line)


def _mending(drift: DriftView) -> str:
    """The command that makes a backend what was asked for; empty where nothing need be done."""
    if drift.fix is not None:
        ask = drift.fix.operation
        source = f"--uri {quote(ask.uri)} --name {quote(ask.name)}" if ask.uri else quote(ask.backend)
        force = " --force" if ask.force else ""
        return f"Mend it: corral backends {ask.verb} {source}{force} --node {quote(drift.node_name)}"
    if drift.kind in ("blocked", "failing") and drift.operation_id:
        return f"Try again: corral ops retry {drift.operation_id[:SHORT_ID]}"
    return ""


def print_upgrades(upgrades: UpgradesView, now: datetime) -> None:
    """Print what is outdated, what is unknown, and when that was checked."""
    rows = [row for backend in upgrades.items if backend.needs_upgrade for row in _same_builds(backend)]
    if rows:
        show(table(_UPGRADE_COLUMNS, rows))
    elif not upgrades.items:
        say("No backend is installed that could be outdated.")
    elif all(node.freshness == "current" for backend in upgrades.items for node in backend.nodes):
        say("Nothing is outdated.")
    else:
        say("Nothing is known to be outdated.")
    for line in _unknown_lines(upgrades.items):
        say(line)
    if upgrades.problem:
        say(f"Not up to date: {upgrades.problem}.")
    when = "never asked yet" if upgrades.checked_at is None else f"asked {age(upgrades.checked_at, now)}"
    say(f"Galleries and registries were {when}; --refresh asks again.")


def _unknown_lines(backends: Sequence[BackendUpgradeView]) -> list[str]:
    """A line for each backend that cannot be compared with its gallery, with the reason and the nodes."""
    lines = []
    for backend in backends:
        for reason, nodes in _unknown_nodes(backend).items():
            where = listed([node.node_name for node in nodes])
            lines.append(f"Nobody can tell whether {backend.name} on {where} is outdated: {reason}.")
    if any(backend.available_digest and _unknown_nodes(backend) for backend in backends):
        lines.append("`corral backends upgrade NAME` fetches what is offered now.")
    return lines


def _unknown_nodes(backend: BackendUpgradeView) -> dict[str, list[NodeUpgradeView]]:
    """Nodes on which the backend cannot be compared with its gallery, by reason."""
    groups: dict[str, list[NodeUpgradeView]] = {}
    for node in backend.nodes:
        if node.freshness == "unknown":
            groups.setdefault(node.reason, []).append(node)
    return groups


class _SameBuild(NamedTuple):
    """Nodes that have the same build of a backend."""

    backend: BackendUpgradeView
    nodes: list[NodeUpgradeView]


def _same_builds(backend: BackendUpgradeView) -> list[_SameBuild]:
    groups: dict[tuple[str, str, str], list[NodeUpgradeView]] = {}
    for node in backend.nodes:
        if node.freshness == "outdated" or node.differs:
            groups.setdefault((node.freshness, node.version, node.digest), []).append(node)
    return [_SameBuild(backend, nodes) for nodes in groups.values()]


_UPGRADE_COLUMNS: Final[Sequence[Column[_SameBuild]]] = (
    Column(title="NAME", cell=lambda row: plain(row.backend.name)),
    Column(
        title="STATE",
        cell=lambda row: state_text(
            Subject.FRESHNESS, "outdated" if row.nodes[0].freshness == "outdated" else "differs"
        ),
    ),
    Column(title="INSTALLED", cell=lambda row: _build(row.nodes[0].version, row.nodes[0].digest)),
    Column(title="AVAILABLE", cell=lambda row: _build(row.backend.available_version, row.backend.available_digest)),
    Column(title="NODES", cell=lambda row: plain(listed([node.node_name for node in row.nodes])), wraps=True),
    Column(title="FROM", cell=lambda row: plain(row.backend.uri or "–"), least_width=140),
)


def _build(version: str, digest: str) -> str:
    return plain(" ".join(filter(None, (version, short_digest(digest)))) or "–")
