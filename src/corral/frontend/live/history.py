"""Writes the last hour down as gateways report and nodes beat. It asks nobody and runs no loop: while nothing is heard,
nothing is done. Each frontend knows what it has heard itself.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from corral.base.clock import Clock
from corral.frontend.live.decide.history import (
    POINTS,
    STEP_SECONDS,
    PlottedSeries,
    Rings,
    SeriesKey,
    SeriesName,
    step_of,
)
from corral.frontend.nodes.decide.node import Node
from corral.frontend.serving.gateways.reports import GatewayReports
from corral.wire.view import GatewayReport

_MOST_CARDS = 16
"""GPUs of one machine that have series of their own."""


class FleetHistory:
    def __init__(self, gateways: GatewayReports, clock: Clock) -> None:
        self._gateways = gateways
        self._clock = clock
        self._rings = Rings()

    def hear_report(self, report: GatewayReport) -> None:
        """Take a report of a gateway of this frontend: the requests that ended since its last one, and those under
        way."""
        step, rings = self._step(), self._rings
        rings.heard.add(step, 1)
        for finished in report.finished:
            model = finished.model
            rings.add(SeriesKey.of(SeriesName.TOKENS, model=model), step, finished.completion_tokens)
            rings.add(SeriesKey.of(SeriesName.PROMPT_TOKENS, model=model), step, finished.prompt_tokens)
            key = SeriesKey.of(SeriesName.REQUESTS, model=model, outcome=finished.outcome)
            rings.add(key, step, finished.requests)
        for name, counts in ((SeriesName.QUEUE, self._gateways.waiting()), (SeriesName.IN_FLIGHT, self._in_flight())):
            for model, count in counts.items():
                rings.raise_to(SeriesKey.of(name, model=model), step, count)

    def _in_flight(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for gateway in self._gateways.seen():
            if gateway.counts is not None and not gateway.is_silent:
                counts.update({name: model.in_flight for name, model in gateway.counts.models.items()})
        return +counts

    def hear_nodes(self, nodes: Iterable[Node]) -> None:
        """Heartbeats came to this frontend."""
        step = self._step()
        for node in nodes:
            capacity, node_labels = node.capacity, {"node_id": node.id, "node": node.name}
            if capacity.total_ram:
                used = capacity.total_ram - capacity.available_ram
                self._rings.raise_to(SeriesKey.of(SeriesName.MEMORY, kind="ram", **node_labels), step, max(used, 0))
            if capacity.total_vram:
                used = capacity.total_vram - capacity.available_vram
                self._rings.raise_to(SeriesKey.of(SeriesName.MEMORY, kind="vram", **node_labels), step, max(used, 0))
            for card in node.cards[:_MOST_CARDS]:
                key = SeriesKey.of(SeriesName.MEMORY, kind="vram", card=card.id, **node_labels)
                self._rings.raise_to(key, step, max(card.total - card.free, 0))

    def plotted(
        self, names: Iterable[SeriesName], *, points: int = POINTS, only: Mapping[str, frozenset[str]]
    ) -> tuple[datetime, list[PlottedSeries]]:
        """The time of the first point, and all series that have any."""
        now = self._step()
        begins = datetime.fromtimestamp((now - points) * STEP_SECONDS, UTC)
        return begins, self._rings.plotted(names, now=now, points=points, only=only)

    @property
    def left_out(self) -> int:
        """How many series found no room."""
        return len(self._rings.refused)

    def _step(self) -> int:
        return step_of(self._clock.now().timestamp())
