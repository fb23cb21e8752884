"""Which nodes have the very models directory of this frontend: there, no model takes room on the disk any more."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.ids import NodeId
from corral.base.tasks import task_group
from corral.frontend.models.catalogue import Models
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.serving.decide.placement import disk_needed

PERIOD: Final = timedelta(seconds=10)
_REMEMBERED_SECONDS: Final = 60.0
"""A node is not asked again for so long."""
_MOST_ASKED: Final = 16
"""At a time."""
_REACHABLE: Final = frozenset({NodeStatus.HEALTHY, NodeStatus.DRAINING})


class SharedDirectories:
    """Asks nodes, and remembers their answers. A node that cannot be asked counts as one that does not share."""

    def __init__(self, asked: Callable[[NodeId], Awaitable[bool]], fleet: Fleet, models: Models, clock: Clock) -> None:
        """`asked` asks one node; it may take long, and says no when the node does not answer."""
        self._asked = asked
        self._fleet = fleet
        self._models = models
        self._clock = clock
        self._asked_at: dict[NodeId, float] = {}
        self._sharing: set[NodeId] = set()

    @property
    def nodes(self) -> frozenset[NodeId]:
        """The nodes that said, when last asked, that they share the models directory."""
        return frozenset(self._sharing)

    async def look(self, nodes: Iterable[NodeId]) -> None:
        """Ask those of the nodes that were not asked lately, a few at a time. One that is being asked is not waited
        for."""
        now = self._clock.monotonic()
        due = [id for id in nodes if now - self._asked_at.get(id, -_REMEMBERED_SECONDS) >= _REMEMBERED_SECONDS]
        self._asked_at.update(dict.fromkeys(due, now))
        left, silent = iter(due), set(due)

        async def lane() -> None:
            for id in left:
                shares = await self._asked(id)
                (self._sharing.add if shares else self._sharing.discard)(id)
                silent.discard(id)

        try:
            async with task_group() as group:
                for number in range(min(_MOST_ASKED, len(due))):
                    group.create_task(lane(), name=f"shared directories {number}")
        finally:
            for id in silent:  # whoever waited was cancelled: they may be asked again at once
                self._asked_at.pop(id, None)

    async def sweep(self) -> bool:
        """Look at the nodes that have too little room for some model, and at those that shared the directory. Whether
        there are any."""
        specs = self._models.catalogue.models.values()
        most = max((disk_needed(self._models.needs_of(spec)) for spec in specs if not spec.alias_of), default=0)
        if not most and not self._sharing:
            return False
        seen = await self._fleet.all()
        node_ids = {each.node.id for each in seen}
        self._sharing &= node_ids
        self._asked_at = {id: at for id, at in self._asked_at.items() if id in node_ids}
        reachable = [each.node for each in seen if each.status in _REACHABLE]
        full = {node.id for node in reachable if node.capacity.total_disk and node.capacity.available_disk < most}
        asked = [node.id for node in reachable if node.id in full or node.id in self._sharing]
        await self.look(asked)
        return bool(asked)
