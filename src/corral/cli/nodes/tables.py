"""How nodes look on a terminal: the list, all facts of one, its files, and what changed about it by itself."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from corral.base.words import counted
from corral.cli.backends.confinement import confinement_words
from corral.cli.output import Column, facts, plain, state_text, table
from corral.cli.units import SHORT_ID, ago, moment, share, size
from corral.wire.labels import AUTOMATIC
from corral.wire.model_files import NodeFilesView, StagedModelView
from corral.wire.nodes import CardView, NodeChangeView, NodeDetail
from corral.wire.registration import Feature
from corral.wire.state_words import Subject, state_word

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_COLUMNS: Final[Sequence[Column[NodeDetail]]] = (
    Column(title="NAME", cell=lambda node: plain(node.name)),
    Column(title="STATUS", cell=lambda node: state_text(Subject.NODE, node.status) + _marks(node)),
    Column(title="ID", cell=lambda node: plain(node.id[:SHORT_ID])),
    Column(title="HEARD", cell=lambda node: ago(node.heard_seconds_ago), least_width=50),
    Column(title="ADDRESS", cell=lambda node: plain(node.address), least_width=90),
    Column(title="RAM FREE", cell=lambda node: share(node.available_ram, node.total_ram), least_width=70),
    Column(title="DISK FREE", cell=lambda node: share(node.available_disk, node.total_disk), least_width=120),
    Column(title="VERSION", cell=lambda node: plain(_software(node)), least_width=110),
    Column(title="LABELS", cell=lambda node: plain(_own_labels(node)), least_width=140),
)


def _out(card: CardView) -> str:
    return ", [yellow]out of service[/]" if card.is_out else ""


_FINGERPRINT: Final[Column[NodeDetail]] = Column(title="FINGERPRINT", cell=lambda node: plain(node.fingerprint or "–"))


def node_table(nodes: Sequence[NodeDetail], *, width: int | None = None) -> "Table":
    """The list of nodes. It has a column of fingerprints while a node waits for approval and somebody must compare."""
    has_to_compare = any(node.fingerprint and not node.approved for node in nodes)
    columns = (*_COLUMNS[:3], _FINGERPRINT, *_COLUMNS[3:]) if has_to_compare else _COLUMNS
    return table(columns, nodes, width=width)


def node_summary(nodes: Sequence[NodeDetail]) -> str:
    """One line such as `3 nodes: 2 healthy, 1 pending`."""
    counts = Counter(node.status for node in nodes)
    return f"{counted(len(nodes), 'node')}: " + ", ".join(
        f"{count} {state_word(Subject.NODE, status).inline}" for status, count in sorted(counts.items())
    )


def _own_labels(node: NodeDetail) -> str:
    """The node's labels that were not set automatically."""
    return " ".join(f"{key}={value}" for key, value in node.labels.items() if key not in AUTOMATIC)


def node_facts(node: NodeDetail, now: datetime) -> "Table":
    """All that is known about a node, for `corral nodes show`."""
    by_hand = " (set by hand)" if node.max_replicas_per_model_manually_set else ""
    not_approved = f"[yellow]no[/]; run: corral nodes approve {plain(node.id[:SHORT_ID])}"
    origins = {key: " [dim](set by hand)[/]" for key in node.admin_labels}
    vram = share(node.available_vram, node.total_vram) if node.total_vram else ""
    if vram and node.vram_budget_bytes not in (UNSET, 0):
        vram += f", budget {size(node.vram_budget_bytes)}"
    pairs = [
        ("Name", plain(node.name)),
        ("Id", plain(node.id)),
        ("Status", state_text(Subject.NODE, node.status)),
        ("Problems", "\n".join(f"[yellow]{plain(problem)}[/]" for problem in node.problems)),
        ("Type", plain(node.node_type)),
        ("Address", plain(node.address)),
        ("HTTP address", plain(node.http_address)),
        ("Software", plain(_software(node))),
        ("Heard", f"{ago(node.heard_seconds_ago)}, beats every {node.heartbeat_seconds:g} s"),
        ("Approved", _by(node.approved_by, node.approved_at, now) if node.approved else not_approved),
        ("Draining", _by(node.draining_by, node.draining_since, now) if node.draining else ""),
        ("Deregistered", moment(node.deregistered_at, now) if node.deregistered_at else ""),
        ("RAM free", share(node.available_ram, node.total_ram)),
        ("Disk free", share(node.available_disk, node.total_disk)),
        ("VRAM free", vram),
        ("GPU", plain(f"{node.gpu_vendor} {node.gpu_compute_capability}".strip())),
        ("GPUs", "\n".join(f"{plain(card.id)} {share(card.free, card.total)}{_out(card)}" for card in node.cards)),
        ("Builds for", plain(node.capability or "")),
        ("Replicas", f"at most {node.max_replicas_per_model} of one model{by_hand}"),
        ("Labels", "\n".join(plain(f"{key}={value}") + origins.get(key, "") for key, value in node.labels.items())),
        ("Removed labels", plain(", ".join(node.removed_labels))),
        ("Own secret", "yes" if node.has_secret else "no: it uses the shared token"),
        ("NATS login", _nats_login(node)),
        ("Fingerprint", plain(node.fingerprint)),
        ("Invitation", plain(node.invitation or "")),
        ("Confinement", "" if node.confinement is None else "\n".join(map(plain, confinement_words(node.confinement)))),
        ("Registered", moment(node.created_at, now)),
        ("Changes", "\n".join(change_lines(change, now) for change in node.changes)),
    ]
    return facts([(name, value) for name, value in pairs if value])


def _nats_login(node: NodeDetail) -> str:
    if node.corral is None:
        return ""
    if Feature.NATS_USER not in node.corral.features:
        return "as its settings say: its Corral is older than NATS users of nodes; upgrade it"
    if node.nats_login is None:
        return "as its settings say: it registered before its frontend made users of NATS; restart it"
    return "its own" if node.nats_login == "own" else "shared: its settings name a user; remove nats_jwt and nats_seed"


def _marks(node: NodeDetail) -> str:
    """What the status does not show: a drain of an unhealthy node, and problems."""
    draining = " (draining)" if node.draining and node.status != "draining" else ""
    return draining + (" [yellow]![/]" if node.problems else "")


def _software(node: NodeDetail) -> str:
    return f"corral {node.corral.version}" if node.corral is not None else "localai"


def _by(actor: str, at: str | None, now: datetime) -> str:
    return f"by {plain(actor)}, {moment(at, now)}" if actor else moment(at, now)


def files_table(view: NodeFilesView) -> "RenderableType":
    """The models whose files a node has, for `corral nodes files`."""
    if not view.items:
        return (
            f"No frontend has brought files to {view.node}; its disk has {share(view.available_disk, view.total_disk)}."
        )
    now = datetime.now(UTC)
    columns: Sequence[Column[StagedModelView]] = (
        Column(title="MODEL", cell=lambda staged: plain(staged.model)),
        Column(title="SIZE", cell=lambda staged: size(staged.bytes), right=True),
        Column(title="FILES", cell=lambda staged: str(staged.files or "many"), right=True),
        Column(title="STAGED", cell=lambda staged: moment(staged.staged_at, now), least_width=90),
        Column(title="LAST USE", cell=lambda staged: moment(staged.used_at, now)),
        Column(title="STAYS", cell=lambda staged: plain(staged.needed or "may go"), least_width=70),
    )
    return table(columns, view.items)


_SIZES: Final = frozenset({"total_ram", "total_vram"})
_GPUS: Final = "gpus"


def change_lines(change: NodeChangeView, now: datetime) -> str:
    """`changed 2026-03-01 12:00:05 (2h 5m ago)` and a line for each fact that differs."""
    head = f"{plain(change.kind.removeprefix('node.'))} {moment(change.at, now)}"
    names = [name for name in change.after if change.before.get(name) != change.after[name]]
    lines = [
        f"  {plain(name)}: {_fact_text(name, change.before.get(name))} → {_fact_text(name, change.after[name])}"
        for name in names
    ]
    return "\n".join([head, *lines])


def _fact_text(name: str, value: object) -> str:
    if name in _SIZES and isinstance(value, int):
        return size(value)
    if isinstance(value, Mapping):
        entries = [f"{key} {_entry(name, each)}" for key, each in value.items()]
        return plain(", ".join(entries)) or "none"
    return plain(str(value)) if value not in (None, "") else "none"


def _entry(name: str, value: object) -> str:
    return size(value) if name == _GPUS and isinstance(value, int) else str(value)
