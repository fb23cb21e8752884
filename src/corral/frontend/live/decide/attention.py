"""What needs a person, in the order in which a tired one should read it. Each item says since when, why, and one act.

| kind              | when                                                                                     |
|-------------------|------------------------------------------------------------------------------------------|
| `brake`           | many nodes went silent together, or control could not hear: nothing is moved              |
| `control`         | control lacks something, or soon will: the database, NATS, room on its disk               |
| `node_silent`     | a node is unhealthy or offline, and nobody said good-bye; an alarm if it serves a model   |
| `targets_blocked` | an operation cannot succeed on some nodes, or failed there                                |
| `load_failing`    | a model cannot be loaded, or waits for a place for a while                                |
| `pending`         | a node waits for approval                                                                 |
| `impersonation`   | a node that waits may not be who it seems to be                                           |
| `disk_short`      | a node has less disk than what is to be loaded there needs, or hardly any                 |
| `drift`           | a backend is not as it was asked for                                                      |
| `upgrade`         | there is something newer than what nodes have                                             |
| `localai_limits`  | workers of LocalAI's are in the fleet, whose reports prove less                           |
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from corral.base.words import listed
from corral.frontend.live.decide.attention_finders import FINDERS
from corral.frontend.live.decide.attention_items import FLEET, AttentionKind, Severity
from corral.frontend.live.decide.picture import FleetPicture
from corral.wire.live import AttentionAct, AttentionItem

MOST_ALIKE: Final = 5
"""Items of one kind and severity that are shown one by one; more of them are one item with their number."""
_SEVERITIES: Final = tuple(Severity)


def attention(picture: FleetPicture) -> list[AttentionItem]:
    """All that needs somebody, the most urgent first. Those of a kind that are many become one."""
    items = [item for find in FINDERS for item in find(picture)]
    return sorted(_grouped(items), key=_order)


def _order(item: AttentionItem) -> tuple[int, int, str, str]:
    severity = _SEVERITIES.index(Severity(item.severity))
    return item.rank, severity, item.since or "", item.id


# Many that are alike.

_TOGETHER: Final[dict[AttentionKind, tuple[str, AttentionAct]]] = {
    AttentionKind.NODE_SILENT: (
        "nodes are unhealthy or offline",
        AttentionAct(
            label="Show them", href="/ui/fleet?status=unhealthy,offline", command="corral nodes list --status offline"
        ),
    ),
    AttentionKind.TARGETS_BLOCKED: (
        "operations are blocked or failed on some node",
        AttentionAct(label="Show them", href="/ui/activity?state=failed", command="corral ops list"),
    ),
    AttentionKind.LOAD_FAILING: (
        "models cannot be loaded",
        AttentionAct(label="Show them", href="/ui/models?state=failing", command="corral models list"),
    ),
    AttentionKind.PENDING: (
        "nodes wait for approval",
        AttentionAct(label="Approve", href="/ui/fleet?status=pending", command="corral nodes list --status pending"),
    ),
    AttentionKind.IMPERSONATION: (
        "nodes may not be who they seem to be",
        AttentionAct(label="Show them", href="/ui/fleet?status=pending", command="corral nodes list --status pending"),
    ),
    AttentionKind.DISK_SHORT: (
        "nodes have little disk left",
        AttentionAct(label="Show them", href="/ui/fleet?disk=short", command="corral nodes list"),
    ),
    AttentionKind.DRIFT: (
        "backends are not as they were asked for",
        AttentionAct(label="Show drift", href="/ui/backends/drift", command="corral backends list"),
    ),
    AttentionKind.UPGRADE: (
        "backends can be upgraded",
        AttentionAct(label="Show upgrades", href="/ui/backends/upgrades", command="corral backends outdated"),
    ),
}


def _grouped(items: Iterable[AttentionItem]) -> Iterator[AttentionItem]:
    groups: dict[tuple[str, str], list[AttentionItem]] = {}
    for item in items:
        groups.setdefault((item.kind, item.severity), []).append(item)
    for alike in groups.values():
        words = _TOGETHER.get(AttentionKind(alike[0].kind))
        if len(alike) <= MOST_ALIKE or words is None:
            yield from alike
        else:
            yield _together(alike, *words)


def _together(alike: Sequence[AttentionItem], words: str, act: AttentionAct) -> AttentionItem:
    first = alike[0]
    reasons = list(dict.fromkeys(item.why for item in alike))
    return AttentionItem(
        id=f"{first.kind}:{first.severity}",
        kind=first.kind,
        severity=first.severity,
        title=f"{len(alike)} {words}: {listed([item.subject.name for item in alike], most=3)}",
        why=listed(reasons, most=2),
        since=min((item.since for item in alike if item.since), default=None),
        subject=FLEET,
        act=act,
        count=len(alike),
        rank=first.rank,
    )
