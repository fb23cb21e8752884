"""The statuses of many nodes, judged again only when they may be others: a node changed, its silence has lasted long
enough to mean something, or control hears otherwise than before.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.liveness import Hearing, LivenessPolicy, next_look, status_of
from corral.frontend.nodes.decide.node import Node, SeenNode


@dataclass(frozen=True, slots=True)
class _Judgement:
    seen: SeenNode
    until: datetime | None
    """From then on silence alone may change it; None: never."""


class SeenNodes:
    def __init__(self, policy: LivenessPolicy) -> None:
        self._policy = policy
        self._known: dict[NodeId, _Judgement] = {}
        self._mark: Hashable = None

    def of(self, nodes: Iterable[Node], now: datetime, hearing: Hearing) -> tuple[SeenNode, ...]:
        """These nodes as they are now, in the same order, and without what grows with every second of silence."""
        mark = self._mark_of(now, hearing)
        known = self._known if mark == self._mark else {}
        judged = [self._judge(node, known.get(node.id), now, hearing) for node in nodes]
        self._known = {judgement.seen.node.id: judgement for judgement in judged}
        self._mark = mark
        return tuple([judgement.seen for judgement in judged])

    def _judge(self, node: Node, known: _Judgement | None, now: datetime, hearing: Hearing) -> _Judgement:
        if known is not None and known.seen.node is node and (known.until is None or now < known.until):
            return known
        status = status_of(node.facts, now, self._policy, hearing)
        seen = SeenNode(node=node, status=status, silent_seconds=0.0, heard_seconds_ago=0.0)
        return _Judgement(seen, next_look(node.facts, now, self._policy, hearing))

    def _mark_of(self, now: datetime, hearing: Hearing) -> Hashable:
        """Differs when silence is to be counted otherwise than before, and when the clock was set back."""
        can_hear = now - hearing.until <= self._policy.tolerated_deafness
        return hearing.since, None if can_hear else hearing.until
