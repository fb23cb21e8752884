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

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from corral.base.words import counted, format_size, listed
from corral.frontend.live.decide.picture import BRAKE, FleetPicture, node_kind, status_reason, status_since
from corral.frontend.nodes.decide.node import SUSPICIONS, NodeStatus, SeenNode
from corral.frontend.operations.decide.operation import Operation, Target, TargetStatus, waits
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.serving.decide.load_job import LoadJob, LoadState
from corral.wire.go_json import format_time
from corral.wire.live import AttentionAct, AttentionItem, AttentionSubject
from corral.wire.models import LoadReason


class AttentionKind(StrEnum):
    """In the order in which they are shown."""

    BRAKE = "brake"
    CONTROL = "control"
    NODE_SILENT = "node_silent"
    TARGETS_BLOCKED = "targets_blocked"
    LOAD_FAILING = "load_failing"
    PENDING = "pending"
    IMPERSONATION = "impersonation"
    DISK_SHORT = "disk_short"
    DRIFT = "drift"
    UPGRADE = "upgrade"
    LOCALAI_LIMITS = "localai_limits"


class Severity(StrEnum):
    ALARM = "alarm"
    WARNING = "warning"
    NOTICE = "notice"


FLEET: Final = AttentionSubject(type="fleet")
_RANKS: Final = {kind: rank for rank, kind in enumerate(AttentionKind)}


def attention_item(  # noqa: PLR0913 - each is a field of the item
    kind: AttentionKind,
    severity: Severity,
    subject: AttentionSubject,
    *,
    title: str,
    why: str,
    since: datetime | None,
    act: AttentionAct | None,
    count: int = 1,
) -> AttentionItem:
    return AttentionItem(
        id=f"{kind}:{subject.id}" if subject.id else kind.value,
        kind=kind.value,
        severity=severity.value,
        title=title,
        why=why,
        since=None if since is None else format_time(since),
        subject=subject,
        act=act,
        count=count,
        rank=_RANKS[kind],
    )


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


LEAST_DISK: Final = 1024**3
_PATIENCE: Final = timedelta(seconds=30)
"""How long a load may wait for a place before it becomes an item of attention."""
_SHORT_ID: Final = 8
_BAD: Final = (TargetStatus.BLOCKED, TargetStatus.ERROR)


# Control.


def _brake(picture: FleetPicture) -> Iterator[AttentionItem]:
    control = picture.control
    if control.brake:
        yield attention_item(
            AttentionKind.BRAKE,
            Severity.ALARM,
            FLEET,
            title="The brake holds: nothing is evicted or rescheduled",
            why=control.brake,
            since=control.since.get(BRAKE),
            act=AttentionAct(
                label="Show silent nodes", href="/ui/fleet?status=unhealthy,offline", command="corral doctor"
            ),
        )


def _control(picture: FleetPicture) -> Iterator[AttentionItem]:
    control = picture.control
    act = AttentionAct(label="Ask the doctor", href="/ui/fleet?doctor=open", command="corral doctor")
    if control.problems:
        yield attention_item(
            AttentionKind.CONTROL,
            Severity.ALARM,
            FLEET,
            title="Control is impaired; models keep serving",
            why="; ".join(control.problems),
            since=min((control.since[text] for text in control.problems if text in control.since), default=None),
            act=act,
        )
    for number, text in enumerate(control.warnings):
        yield attention_item(
            AttentionKind.CONTROL,
            Severity.WARNING,
            AttentionSubject(type="fleet", id=f"warning-{number}"),
            title=text[:1].upper() + text[1:],
            why="control cannot write any more when it is full",
            since=control.since.get(text),
            act=act,
        )


# Nodes.


def _node_subject(seen: SeenNode) -> AttentionSubject:
    return AttentionSubject(type="node", id=seen.node.id, name=seen.node.name)


def _node_act(seen: SeenNode, label: str, command: str) -> AttentionAct:
    return AttentionAct(
        label=label, href=f"/ui/nodes/{quote(seen.node.id)}", command=f"{command} {shlex.quote(seen.node.name)}"
    )


def _silent_nodes(picture: FleetPicture) -> Iterator[AttentionItem]:
    models: dict[str, list[str]] = {}
    for replica in picture.replicas:
        models.setdefault(replica.node_id, []).append(replica.model)
    for seen in picture.nodes:
        if seen.status not in (NodeStatus.UNHEALTHY, NodeStatus.OFFLINE):
            continue
        serves = sorted(set(models.get(seen.node.id, ())))
        if seen.node.facts.deregistered_at is not None and not serves:
            continue  # somebody stopped its worker in good order
        why = status_reason(seen, picture.policy)
        yield attention_item(
            AttentionKind.NODE_SILENT,
            Severity.ALARM if serves else Severity.WARNING,
            _node_subject(seen),
            title=f"{seen.node.name} is {seen.status}" + (f" and serves {listed(serves)}" if serves else ""),
            why=why,
            since=status_since(seen, picture.policy),
            act=_node_act(seen, "Open node", "corral nodes show"),
        )


def _pending_nodes(picture: FleetPicture) -> Iterator[AttentionItem]:
    for seen in picture.nodes:
        suspicion = seen.node.facts.suspicion
        if seen.status is not NodeStatus.PENDING:
            continue
        if suspicion is None:
            yield attention_item(
                AttentionKind.PENDING,
                Severity.WARNING,
                _node_subject(seen),
                title=f"{seen.node.name} waits for approval",
                why=f"it registered from {seen.node.registered_from or seen.node.address or 'an unknown address'}",
                since=status_since(seen, picture.policy),
                act=_node_act(seen, "Look and approve", "corral nodes approve"),
            )
        else:
            yield attention_item(
                AttentionKind.IMPERSONATION,
                Severity.ALARM,
                _node_subject(seen),
                title=f"{seen.node.name} may not be who it seems to be",
                why=SUSPICIONS[suspicion],
                since=status_since(seen, picture.policy),
                act=_node_act(seen, "Compare and decide", "corral nodes show"),
            )


def _short_disks(picture: FleetPicture) -> Iterator[AttentionItem]:
    largest_load: dict[str, str] = {}
    for job in picture.jobs:
        place = job.node_id or job.preferred_node_id
        if place is not None and _need(job.model, picture) > _need(largest_load.get(place, ""), picture):
            largest_load[place] = job.model
    for seen in picture.nodes:
        capacity, model = seen.node.capacity, largest_load.get(seen.node.id, "")
        need = max(_need(model, picture), LEAST_DISK)
        if seen.status is not NodeStatus.HEALTHY or not capacity.total_disk or capacity.available_disk >= need:
            continue
        shortage = f"{model} needs {format_size(need)}" if need > LEAST_DISK else "hardly anything fits there"
        yield attention_item(
            AttentionKind.DISK_SHORT,
            Severity.WARNING,
            _node_subject(seen),
            title=f"{seen.node.name} has {format_size(capacity.available_disk)} of disk left",
            why=f"{shortage}; the disk has {format_size(capacity.total_disk)}",
            since=None,
            act=_node_act(seen, "Open node", "corral nodes show"),
        )


def _need(model: str, picture: FleetPicture) -> int:
    return picture.disk_needs.get(model, 0)


def _localai_workers(picture: FleetPicture) -> Iterator[AttentionItem]:
    names = [
        seen.node.name
        for seen in picture.nodes
        if node_kind(seen) == "localai" and seen.status is not NodeStatus.PENDING
    ]
    if names:
        yield attention_item(
            AttentionKind.LOCALAI_LIMITS,
            Severity.NOTICE,
            FLEET,
            title=f"{counted(len(names), 'worker')} of LocalAI's: {listed(names)}",
            why="they report no digests, so that an install is proven by presence only",
            since=None,
            act=AttentionAct(label="Show them", href="/ui/fleet?kind=localai", command="corral nodes list"),
            count=len(names),
        )


# Operations and loads.


def _blocked_targets(picture: FleetPicture) -> Iterator[AttentionItem]:
    for operation in picture.operations:
        bad = [target for target in operation.targets if target.status in _BAD and not waits(target)]
        if not bad or operation.dismissed_at is not None:
            continue
        blocked = [target for target in bad if target.status is TargetStatus.BLOCKED]
        word = "is blocked" if blocked else "failed"
        yield attention_item(
            AttentionKind.TARGETS_BLOCKED,
            Severity.WARNING,
            AttentionSubject(type="operation", id=operation.id, name=_operation_name(operation)),
            title=f"{_operation_name(operation).capitalize()} {word} on {listed([target.node_name for target in bad])}",
            why=_why_targets(bad),
            since=min(target.changed_at for target in bad),
            act=AttentionAct(
                label="Open operation",
                href=f"/ui/activity/{quote(operation.id)}",
                command=f"corral ops show {operation.id[:_SHORT_ID]}",
            ),
            count=len(bad),
        )


def _operation_name(operation: Operation) -> str:
    return f"{operation.verb} {operation.subject}"


def _why_targets(bad: Sequence[Target]) -> str:
    reasons = list(dict.fromkeys(sentence(target.reason) for target in bad if target.reason is not None))
    return listed(reasons, most=2) or "no reason was told"


def _failing_loads(picture: FleetPicture) -> Iterator[AttentionItem]:
    by_model: dict[str, list[LoadJob]] = {}
    for job in picture.jobs:
        if _is_failing(job, picture.at):
            by_model.setdefault(job.model, []).append(job)
    for model, jobs in sorted(by_model.items()):
        job = min(jobs, key=lambda each: (each.state is not LoadState.FAILED, each.ordinal))
        has_failed = job.state is LoadState.FAILED
        again = "" if job.is_permanent or not has_failed else "; it is tried again when somebody asks for it"
        yield attention_item(
            AttentionKind.LOAD_FAILING,
            Severity.ALARM if job.is_permanent else Severity.WARNING,
            AttentionSubject(type="model", id=model, name=model),
            title=f"{model} {'cannot be loaded' if has_failed else 'finds no place'}",
            why=(job.message or str(job.reason or "no reason was told")) + again,
            since=job.changed_at if has_failed else job.created_at,
            act=AttentionAct(
                label="See why",
                href=f"/ui/models/{quote(model, safe='')}/why",
                command=f"corral why {shlex.quote(model)}",
            ),
            count=len(jobs),
        )


def _is_failing(job: LoadJob, now: datetime) -> bool:
    waits_long = job.state is LoadState.PENDING and job.reason is LoadReason.NO_PLACE
    return job.state is LoadState.FAILED or (waits_long and now - job.created_at >= _PATIENCE)


# Backends.


def _drift(picture: FleetPicture) -> Iterator[AttentionItem]:
    for drift in picture.slow.drift:
        node = drift.seen.node
        yield attention_item(
            AttentionKind.DRIFT,
            Severity.WARNING,
            AttentionSubject(type="backend", id=f"{node.id}/{drift.backend}", name=drift.backend),
            title=f"{drift.backend} on {node.name} is not as it was asked for",
            why=drift.why,
            since=drift.since,
            act=AttentionAct(
                label="Show drift",
                href=f"/ui/backends/drift?node={quote(node.id)}",
                command=f"corral backends list --node {shlex.quote(node.name)}",
            ),
        )


def _upgrades(picture: FleetPicture) -> Iterator[AttentionItem]:
    for outdated in picture.slow.upgrades:
        offered = f"{outdated.offered} is offered" if outdated.offered else "something newer is offered"
        yield attention_item(
            AttentionKind.UPGRADE,
            Severity.NOTICE,
            AttentionSubject(type="backend", id=outdated.backend, name=outdated.backend),
            title=f"{outdated.backend} can be upgraded on {counted(len(outdated.nodes), 'node')}",
            why=f"{offered}; older: {listed(outdated.nodes)}",
            since=outdated.since,
            act=AttentionAct(
                label="Plan upgrade",
                href=f"/ui/backends/upgrades?backend={quote(outdated.backend, safe='')}",
                command=f"corral backends upgrade {shlex.quote(outdated.backend)}",
            ),
            count=len(outdated.nodes),
        )


FINDERS: Final[tuple[Callable[[FleetPicture], Iterator[AttentionItem]], ...]] = (
    _brake,
    _control,
    _silent_nodes,
    _blocked_targets,
    _failing_loads,
    _pending_nodes,
    _short_disks,
    _drift,
    _upgrades,
    _localai_workers,
)
