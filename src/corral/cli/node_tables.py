"""How nodes look on a terminal."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from corral.cli.humane import ago, moment, share, size
from corral.cli.node_names import SHORT_ID
from corral.cli.output import Column, facts, plain, styled, table
from corral.wire.labels import AUTOMATIC
from corral.wire.node_views import NodeDetail

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS: Final[Sequence[Column[NodeDetail]]] = (
    Column(title="NAME", cell=lambda node: plain(node.name)),
    Column(title="STATUS", cell=lambda node: styled(node.status) + _marks(node)),
    Column(title="ID", cell=lambda node: plain(node.id[:SHORT_ID])),
    Column(title="HEARD", cell=lambda node: ago(node.heard_seconds_ago), least_width=50),
    Column(title="ADDRESS", cell=lambda node: plain(node.address), least_width=90),
    Column(title="RAM FREE", cell=lambda node: share(node.available_ram, node.total_ram), least_width=70),
    Column(title="DISK FREE", cell=lambda node: share(node.available_disk, node.total_disk), least_width=120),
    Column(title="VERSION", cell=lambda node: plain(_software(node)), least_width=110),
    Column(title="LABELS", cell=lambda node: plain(label_text(node)), least_width=140),
)


def node_table(nodes: Sequence[NodeDetail], *, width: int) -> "Table":
    return table(COLUMNS, nodes, width=width)


def summary(nodes: Sequence[NodeDetail]) -> str:
    """`3 nodes: 2 healthy, 1 pending`."""
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.status] = counts.get(node.status, 0) + 1
    total = f"{len(nodes)} node" + ("" if len(nodes) == 1 else "s")
    return f"{total}: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


def label_text(node: NodeDetail) -> str:
    """Labels that say more than the table itself."""
    return " ".join(f"{key}={value}" for key, value in node.labels.items() if key not in AUTOMATIC)


def node_facts(node: NodeDetail, now: datetime) -> "Table":
    """Everything about one node."""
    return facts([(name, value) for name, value in _pairs(node, now) if value])


def _pairs(node: NodeDetail, now: datetime) -> list[tuple[str, str]]:
    return [
        ("Name", plain(node.name)),
        ("Id", plain(node.id)),
        ("Status", styled(node.status)),
        ("Problems", "\n".join(f"[yellow]{plain(problem)}[/]" for problem in node.problems)),
        ("Type", plain(node.node_type)),
        ("Address", plain(node.address)),
        ("HTTP address", plain(node.http_address)),
        ("Software", plain(_software(node))),
        ("Heard", f"{ago(node.heard_seconds_ago)}, beats every {node.heartbeat_seconds:g} s"),
        ("Approved", _by(node.approved_by, node.approved_at, now) if node.approved else _not_approved(node)),
        ("Draining", _by(node.draining_by, node.draining_since, now) if node.draining else ""),
        ("Deregistered", moment(node.deregistered_at, now) if node.deregistered_at else ""),
        ("RAM free", share(node.available_ram, node.total_ram)),
        ("Disk free", share(node.available_disk, node.total_disk)),
        ("VRAM free", _vram(node)),
        ("GPU", plain(f"{node.gpu_vendor} {node.gpu_compute_capability}".strip())),
        ("Builds for", plain(node.capability or "")),
        ("Replicas", f"at most {node.max_replicas_per_model} of one model{_set_by_hand(node)}"),
        ("Labels", "\n".join(plain(f"{key}={value}") + _origin(node, key) for key, value in node.labels.items())),
        ("Removed labels", plain(", ".join(node.removed_labels))),
        ("Own secret", "yes" if node.has_secret else "no: it uses the shared token"),
        ("Registered", moment(node.created_at, now)),
    ]


def _marks(node: NodeDetail) -> str:
    """What the status word hides: an unhealthy node may be draining too, and any node may have problems."""
    draining = " (draining)" if node.draining and node.status != "draining" else ""
    return draining + (" [yellow]![/]" if node.problems else "")


def _software(node: NodeDetail) -> str:
    return f"corral {node.corral.version}" if node.corral is not None else "localai"


def _by(who: str, at: str | None, now: datetime) -> str:
    return f"by {plain(who)}, {moment(at, now)}" if who else moment(at, now)


def _not_approved(node: NodeDetail) -> str:
    return f"[yellow]no[/]; run: corral nodes approve {plain(node.id[:SHORT_ID])}"


def _vram(node: NodeDetail) -> str:
    if not node.total_vram:
        return ""
    budget = f", budget {size(node.vram_budget_bytes)}" if node.vram_budget_bytes not in (UNSET, 0) else ""
    return share(node.available_vram, node.total_vram) + budget


def _set_by_hand(node: NodeDetail) -> str:
    return " (set by hand)" if node.max_replicas_per_model_manually_set else ""


def _origin(node: NodeDetail, key: str) -> str:
    return " [dim](set by hand)[/]" if key in node.admin_labels else ""
