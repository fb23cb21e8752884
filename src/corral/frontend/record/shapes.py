"""Events in the form that the API answers with."""

from corral.frontend.record.decide import StoredEvent
from corral.wire.go_json import format_time
from corral.wire.nodes import EventView


def event_view(stored: StoredEvent) -> EventView:
    event = stored.event
    return EventView(
        sequence=stored.sequence,
        kind=event.kind.value,
        at=format_time(event.at),
        actor=event.actor,
        node_id=event.node_id,
        data=dict(event.data),
    )
