"""`corral events`: the past as a list, the present as a stream without gaps."""

import itertools
from typing import Any

import msgspec
import pytest

from corral.base.errors import PeerUnavailable
from corral.cli.fleet import events as module
from corral.cli.fleet.events import event_line, follow_events
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


def test_a_line_has_the_beginning_of_a_digest_and_no_empty_details() -> None:
    digest = "0123456789ab" + 52 * "c"
    data = {"node": "", "revision": digest, "wanted": f"sha256:{digest}", "why": digest + "c"}
    line = event_line(event(1, data=data))
    assert line.endswith(f"  revision=0123456789ab  wanted=sha256:0123456789ab  why={digest}c")


def test_which_events_is_the_frontends_business(connected: Any, frontend: Any, make_node: Any) -> None:
    id = "22222222-0000-4000-8000-000000000000"
    frontend.tell_nodes(make_node("w1", id))
    frontend.tell("GET /api/v1/events", [event(2, node_id=id)])
    words = ("--node", "w1", "--kind", "node", "--kind", "key.created", "--actor", "ann", "--subject", "a b")
    outcome = connected("events", "--json", *words, "--text", "x&y", "--before", "9", "--last", "3")
    assert [found["sequence"] for found in outcome.json()["items"]] == [2]
    assert frontend.calls[-1].path == (
        f"/api/v1/events?kind=node&kind=key.created&node={id}&actor=ann&subject=a+b&text=x%26y&limit=3&before=9"
    )


def test_a_node_that_is_gone_is_meant_by_its_id(connected: Any, frontend: Any, make_node: Any) -> None:
    frontend.tell_nodes(make_node("w1", "11111111-0000-4000-8000-000000000000"))
    frontend.tell("GET /api/v1/events", [event(2)])
    assert connected("events", "--node", "ABCD0123").code == 0
    assert frontend.calls[-1].path == "/api/v1/events?node=abcd0123&limit=20"
    unknown = connected("events", "--node", "nobody")
    assert (unknown.code, "nobody" in unknown.err) == (1, True)


def test_the_past_is_not_followed(connected: Any) -> None:
    assert connected("events", "--follow", "--before", "5").code == 64


def test_a_stream_has_the_same_filters(connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("corral.cli.client.ApiClient.stream", stop)
    frontend.tell("GET /api/v1/events", [event(2)])
    assert connected("events", "--follow", "--kind", "node").code == 0
    streams = Breaking([1], [2])
    follow = follow_events(streams, [("kind", "node"), ("text", "a b")], after=None)  # type: ignore[arg-type]
    next(follow)
    assert streams.path == "/api/v1/events?kind=node&text=a+b"


def test_a_line_does_not_let_strangers_write_markup() -> None:
    assert "\\[red]" in event_line(event(1, data={"name": "[red]x"}))


class Breaking:
    """Streams that break, one after the other."""

    def __init__(self, *streams: list[int | Exception]) -> None:
        self._streams = list(streams)
        self.resumed_after: list[str] = []
        self.path = ""

    def stream(self, path: str, *, last_event: str = "") -> Any:
        self.path = path
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
