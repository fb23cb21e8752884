"""Files of models that LocalAI's frontends bring to nodes, as they broadcast it. Kept in memory, and shown beside
operations as those frontends do it with each other.
"""

from collections import OrderedDict
from datetime import timedelta
from typing import Final

from msgspec import UNSET

from corral.base.clock import Clock
from corral.bus.port import Handler
from corral.frontend.operations.peer_operations import understood
from corral.wire import subjects
from corral.wire.broadcasts import StagingProgress, StagingStatus

_STALE: Final = timedelta(seconds=60)
"""Without a word, after which LocalAI's frontends too take it for over."""
_MOST_KEPT: Final = 500


class PeerStaging:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[str, tuple[StagingStatus, float]] = OrderedDict()

    def handlers(self) -> dict[str, Handler]:
        """Which subject goes to which handler."""
        return {subjects.STAGINGS_PROGRESS: understood(StagingProgress, self.hear)}

    async def hear(self, told: StagingProgress) -> None:
        self._known.pop(told.model_id, None)
        if told.done or told.status is UNSET or not told.model_id:
            return
        self._known[told.model_id] = (told.status, self._clock.monotonic())
        while len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)

    def listed(self) -> dict[str, StagingStatus]:
        """What is on its way, by model."""
        heard_since = self._clock.monotonic() - _STALE.total_seconds()
        for model, (_, heard_at) in list(self._known.items()):
            if heard_at < heard_since:
                del self._known[model]
        return {model: status for model, (status, _) in self._known.items()}
