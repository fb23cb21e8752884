"""Builds the live room: the hub that people watch the fleet through, and the last hour."""

from datetime import timedelta
from typing import Self

import msgspec

from corral.base.ids import new_hub_id
from corral.frontend.live.event_log import EventLog
from corral.frontend.live.history import FleetHistory
from corral.frontend.live.hub import IDLE_PERIOD, Hub
from corral.frontend.live.pictures import Pictures, PictureSources
from corral.frontend.live.topic_rows import TopicRows
from corral.frontend.record.room import Foundation, Loop, RecordRoom


class LiveRoom(msgspec.Struct, frozen=True, kw_only=True):
    hub: Hub
    history: FleetHistory

    @classmethod
    def build(
        cls, foundation: Foundation, record: RecordRoom, sources: PictureSources, *, drain_within: timedelta
    ) -> Self:
        clock = foundation.clock
        pictures = Pictures(sources, clock)
        rows = TopicRows(pictures, sources.serving, clock, drain_within=drain_within)
        hub = Hub(
            pictures,
            rows,
            EventLog(record.events, record.feed),
            record.feed,
            sources.operations.progress,
            clock,
            id=new_hub_id(),
            frontend=foundation.frontend_id,
        )
        history = FleetHistory(sources.serving.gateways, clock)
        sources.serving.gateways.on_news.append(history.hear_report)
        sources.nodes.heartbeats.on_stored.append(history.hear_nodes)
        return cls(hub=hub, history=history)

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        return {"live": record.every(IDLE_PERIOD, self.hub.poke, self.hub.look, "live")}
