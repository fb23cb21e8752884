"""Items of the attention list: their kinds, how bad they are, and how one is made."""

from datetime import datetime
from enum import StrEnum
from typing import Final

from corral.wire.go_json import format_time
from corral.wire.live import AttentionAct, AttentionItem, AttentionSubject


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
