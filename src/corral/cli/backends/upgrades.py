"""`corral backends outdated`: asks what is outdated, waits for a new check, and prints the answer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from corral.base.words import listed
from corral.cli.client import ApiClient
from corral.cli.output import Column, plain, say, show, table
from corral.cli.units import age, short_digest
from corral.wire.galleries import BackendUpgradeView, NodeUpgradeView, UpgradesView

if TYPE_CHECKING:
    from rich.table import Table


PATH: Final = "/api/v1/backends/upgrades"
_PAUSE_SECONDS: Final = 0.3
_PATIENCE_SECONDS: Final = 150.0
"""Longer than a frontend waits for galleries that do not answer."""


def last_check(client: ApiClient) -> UpgradesView:
    """The result of the last check."""
    return client.get(PATH, UpgradesView)


def new_check(client: ApiClient) -> UpgradesView:
    """The result of a new check, or of the last one when the new one takes too long."""
    before = client.post(f"{PATH}/check", UpgradesView)
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        latest = last_check(client)
        if latest.checked_at != before.checked_at:
            return latest
        time.sleep(_PAUSE_SECONDS)
    return before


def print_upgrades(upgrades: UpgradesView, now: datetime, *, width: int) -> None:
    """Print what is outdated, what is unknown, and when that was checked."""
    rows = [row for backend in upgrades.items if backend.needs_upgrade for row in _rows(backend)]
    if rows:
        show(_upgrade_table(rows, width=width))
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
    """A line for each backend and reason why nobody knows whether it is outdated, with the nodes."""
    lines = []
    for backend in backends:
        for reason, nodes in _unknown_nodes(backend).items():
            where = listed([node.node_name for node in nodes])
            lines.append(f"Nobody can tell whether {backend.name} on {where} is outdated: {reason}.")
    if any(backend.available_digest and _unknown_nodes(backend) for backend in backends):
        lines.append("`corral backends upgrade NAME` fetches what is offered now.")
    return lines


def _unknown_nodes(backend: BackendUpgradeView) -> dict[str, list[NodeUpgradeView]]:
    """Nodes where nobody knows whether the backend is outdated, by reason."""
    groups: dict[str, list[NodeUpgradeView]] = {}
    for node in backend.nodes:
        if node.freshness == "unknown":
            groups.setdefault(node.reason, []).append(node)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Nodes that have the same build of a backend."""

    backend: BackendUpgradeView
    nodes: Sequence[NodeUpgradeView]

    @property
    def state(self) -> str:
        node = self.nodes[0]
        return "outdated" if node.freshness == "outdated" else "differs"


def _rows(backend: BackendUpgradeView) -> list[_Row]:
    groups: dict[tuple[str, str, str], list[NodeUpgradeView]] = {}
    for node in backend.nodes:
        if node.freshness == "outdated" or node.differs:
            groups.setdefault((node.freshness, node.version, node.digest), []).append(node)
    return [_Row(backend=backend, nodes=nodes) for nodes in groups.values()]


def _upgrade_table(rows: Sequence[_Row], *, width: int) -> "Table":
    columns: list[Column[_Row]] = [
        Column(title="NAME", cell=lambda row: plain(row.backend.name)),
        Column(title="STATE", cell=lambda row: f"[yellow]{row.state}[/]"),
        Column(title="INSTALLED", cell=lambda row: _build(row.nodes[0].version, row.nodes[0].digest)),
        Column(title="AVAILABLE", cell=lambda row: _build(row.backend.available_version, row.backend.available_digest)),
        Column(title="NODES", cell=lambda row: plain(listed([node.node_name for node in row.nodes])), wraps=True),
        Column(title="FROM", cell=lambda row: plain(row.backend.uri or "–"), least_width=140),
    ]
    return table(columns, rows, width=width)


def _build(version: str, digest: str) -> str:
    return plain(" ".join(filter(None, (version, short_digest(digest)))) or "–")
