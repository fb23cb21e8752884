"""`corral events`: the past as a list, the present as a stream without gaps."""

import itertools
from typing import Any

import msgspec
import pytest

from corral.base.errors import PeerUnavailable
from corral.cli import events as module
from corral.cli.events import event_line, follow_events
from corral.wire.nodes import EventView


def event(sequence: int, **changes: Any) -> EventView:
    facts: dict[str, Any] = {
        "kind": "node.status",
        "at": "2026-03-01T12:00:00Z",
        "actor": "control",
        "node_id": "11111111-0000",
        "data": {"before": None, "after": "healthy"},
        **changes,
    }
    return EventView(sequence=sequence, **facts)


def test_past_events_are_lines(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/events", [event(1), event(2, node_id=None, data={}, kind="key.created", actor="[b]x")])
    lines = connected("events", "--last", "5").out.splitlines()
    assert lines[0].endswith("node.status 11111111 by control  before=null  after=healthy")
    assert lines[1].endswith("key.created by [b]x")
    assert frontend.calls[0].path == "/api/v1/events?limit=5"
    assert [found["sequence"] for found in connected("events", "--json").json()["items"]] == [1, 2]


def test_only_one_nodes_events(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/events", [event(1), event(2, node_id="22"), event(3, node_id=None)])
    assert [found["sequence"] for found in connected("events", "--json", "--node", "2").json()["items"]] == [2]


def test_a_line_does_not_let_strangers_write_markup() -> None:
    assert "\\[red]" in event_line(event(1, data={"name": "[red]x"}))


class Breaking:
    """Streams that break, one after the other."""

    def __init__(self, *streams: list[int | Exception]) -> None:
        self._streams = list(streams)
        self.resumed_after: list[str] = []

    def stream(self, path: str, *, last_event: str = "") -> Any:
        self.resumed_after.append(last_event)
        for item in self._streams.pop(0):
            if isinstance(item, Exception):
                raise item
            yield str(item), msgspec.json.encode(event(item)).decode()


def test_following_goes_on_where_the_stream_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    gone = PeerUnavailable("gone")
    client = Breaking([5, 6, gone], [gone], [7], [8])
    followed = follow_events(client, after=4)  # type: ignore[arg-type]
    assert [found.sequence for found in itertools.islice(followed, 4)] == [5, 6, 7, 8]
    assert client.resumed_after == ["4", "6", "6", "7"]
    assert len(pauses) == 3
