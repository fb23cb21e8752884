"""The plan of an act that concerns replicas: what becomes of what, as values, with a hash and in words. Pure.

The hash is of what would be done and of what that was decided on. Where a replica would go, why, and how many requests
are under way changes with every heartbeat and is not part of it.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from corral.base.ids import NodeId
from corral.base.words import printable
from corral.frontend.serving.decide.replica import SERVING, Replica
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.wire.plans import plan_hash
from corral.wire.state_words import Subject, state_word


class EffectKind(StrEnum):
    """What becomes of the subject of an effect. `wire/state_words.py` has the words for people."""

    LOSES_SERVICE = "loses_service"
    ENDS = "ends"
    NOT_ADDED = "not_added"
    DELETED = "deleted"
    CANCELLED = "cancelled"
    STAYS = "stays"
    MOVES = "moves"
    ADDED = "added"
    KEPT = "kept"


class EffectAbout(StrEnum):
    """What the subject of an effect is."""

    MODEL = "model"
    OPERATION = "operation"
    NODE = "node"
    FILE = "file"
    RULE = "rule"


class ActEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One consequence of an act."""

    kind: EffectKind
    subject: str
    about: EffectAbout = EffectAbout.MODEL
    node_id: NodeId | None = None
    """The node where the effect happens."""
    node: str = ""
    to_id: NodeId | None = None
    to: str = ""
    """Where it would go, as things are now."""
    detail: str = ""

    @property
    def identity(self) -> list[str]:
        return [self.kind.value, self.about.value, self.subject, self.node_id or ""]

    @property
    def line(self) -> str:
        """All of it in one line for people."""
        label = state_word(Subject.CONSEQUENCE, self.kind.value).label
        node = f" on {self.node}" if self.node else ""
        to = f", to {self.to}" if self.to else ""
        return printable(f"{label}: {self.subject}{node}{to}{f'; {self.detail}' if self.detail else ''}")


class ActPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an act would do."""

    title: str
    """The act, such as `Drain gpu-1`."""
    act: tuple[str, ...]
    """The act for the hash: what it is, and on what."""
    effects: tuple[ActEffect, ...] = ()
    in_flight: int | None = 0
    """Requests under way at replicas that would end; None while nobody knows."""
    mark: str = ""
    """What the act is decided on. The act is carried out only if that is unchanged."""

    @property
    def hash(self) -> str:
        return plan_hash([self.act, self.mark, sorted(effect.identity for effect in self.effects)])

    @property
    def text(self) -> str:
        """The plan as the command line prints it: the worst comes first."""
        return "\n".join([printable(f"{self.title}: {_summary(self)}."), *(effect.line for effect in self.ordered)])

    @property
    def ordered(self) -> list[ActEffect]:
        order = list(EffectKind)
        return sorted(self.effects, key=lambda effect: order.index(effect.kind))


def _summary(plan: ActPlan) -> str:
    counts = Counter(effect.kind for effect in plan.effects)
    words = [
        f"{counts[kind]} {state_word(Subject.CONSEQUENCE, kind).label.lower()}" for kind in EffectKind if counts[kind]
    ]
    requests = "an unknown number of requests" if plan.in_flight is None else f"{plan.in_flight} requests"
    under_way = f"; {requests} under way" if plan.in_flight != 0 else ""
    return (", ".join(words) or "nothing else changes") + under_way


def requests_at(replicas: Iterable[Replica], snapshot: FleetSnapshot) -> int | None:
    """Requests under way at these replicas; None while a gateway is silent about one that serves."""
    at_place = list(replicas)
    if not snapshot.is_load_known and any(replica.state in SERVING for replica in at_place):
        return None
    return sum(snapshot.in_flight.get(replica.id, 0) for replica in at_place)


def name_of(snapshot: FleetSnapshot, id: NodeId | None) -> str:
    """The name of a node; its id when it is gone, and nothing for none."""
    if id is None:
        return ""
    seen = snapshot.nodes_by_id.get(id)
    return id if seen is None else seen.node.name
