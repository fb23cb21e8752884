"""`corral status`: the fleet in a few lines, what needs somebody, and the same again as it changes."""

import itertools
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from corral.base.errors import PeerUnavailable
from corral.cli.fleet import status as module
from corral.cli.fleet.status import followed
from corral.wire.live import (
    AttentionAct,
    AttentionItem,
    AttentionSubject,
    FirstSteps,
    FleetSummary,
    FleetSummaryAnswer,
    MemoryUse,
)

SUMMARY = FleetSummary(
    nodes={"pending": 2, "healthy": 38, "unhealthy": 1, "offline": 0, "draining": 0},
    models=12,
    loaded_models=3,
    replicas=31,
    in_flight=84,
    waiting=2,
    vram=MemoryUse(total=240 * 1024**3, used=120 * 1024**3, reserved=150 * 1024**3),
    ram=MemoryUse(),
    operations={"running": 1, "waiting": 0, "failed": 0},
    attention={"alarm": 1, "warning": 0, "notice": 0},
    brake="",
    control="up",
    problems=[],
    frontends=2,
    started=FirstSteps(),
)
ITEM = AttentionItem(
    id="node_silent:n1",
    kind="node_silent",
    severity="alarm",
    title="[b]gpu-1 is unhealthy and serves small",
    why="missed more than 3 heartbeats",
    since="2026-03-01T12:00:00Z",
    subject=AttentionSubject(type="node", id="n1", name="gpu-1"),
    act=AttentionAct(label="Open node", href="/ui/nodes/n1", command="corral nodes show gpu-1"),
    rank=2,
)


def answer(summary: FleetSummary = SUMMARY, *items: AttentionItem) -> FleetSummaryAnswer:
    return FleetSummaryAnswer(summary=summary, attention=list(items), at="", frontend="f1")


def test_a_fleet_is_told_in_words_and_glyphs(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/fleet/summary", answer(SUMMARY, ITEM))
    lines = connected("status").out.splitlines()
    assert lines[0].split(maxsplit=1) == ["Nodes", "◔ 2 pending, ● 38 healthy, ✕ 1 unhealthy"]
    assert lines[1].split(maxsplit=1) == ["Models", "12 models, 3 loaded, 31 replicas, 84 in flight, 2 waiting"]
    assert lines[2].endswith("VRAM 120 GiB of 240 GiB used, 150 GiB reserved; RAM unknown")
    assert lines[3].endswith("◐ 1 running")
    assert lines[4].endswith("● up, 2 frontends")
    assert lines[7].startswith("✕ Alarm")
    assert "[b]gpu-1 is unhealthy and serves small" in lines[7]
    assert lines[7].endswith("corral nodes show gpu-1")


def test_nothing_to_do_is_said(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/fleet/summary", answer())
    assert connected("status").out.endswith("Nothing needs attention.\n")


def test_an_impaired_control_and_the_brake_are_said(connected: Any, frontend: Any) -> None:
    worse = replace(SUMMARY, problems=["NATS is not connected"], control="impaired", brake="3 of 4 went silent")
    frontend.tell("GET /api/v1/fleet/summary", answer(replace(worse, in_flight=None)))
    out = connected("status").out
    assert "✕ impaired: NATS is not connected; 2 frontends; models keep serving" in out
    assert "✕ holds: 3 of 4 went silent" in out
    assert "unknown in flight" in out


def test_an_empty_fleet_is_told_how_to_begin(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/fleet/summary", answer(replace(SUMMARY, nodes={}, models=0)))
    out = connected("status").out
    assert "corral nodes invite" in out
    assert "corral models pull" in out


def test_machines_get_the_answer_as_it_is(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/fleet/summary", answer(SUMMARY, ITEM))
    assert connected("status", "--json").json() == msgspec.to_builtins(answer(SUMMARY, ITEM))


def test_a_key_that_may_not_see_the_fleet_is_told_so(connected: Any, frontend: Any) -> None:
    refusal = {"error": {"code": 403, "message": "it needs the permission fleet.read"}}
    frontend.tell("GET /api/v1/fleet/summary", refusal, 403)
    outcome = connected("status")
    assert outcome.code != 0
    assert "fleet.read" in outcome.err


class Frames:
    """Streams of frames that break, one after the other."""

    def __init__(self, *streams: list[tuple[str, object] | Exception]) -> None:
        self._streams = list(streams)
        self.resumed_after: list[str] = []

    def stream(self, path: str, *, last_event: str = "") -> Any:
        self.resumed_after.append(last_event)
        for item in self._streams.pop(0):
            if isinstance(item, Exception):
                raise item
            id, data = item
            yield id, msgspec.json.encode(data).decode() if data else ""


def snapshot(topic: str, **items: object) -> dict[str, object]:
    return {"topic": topic, "items": items, "first": True, "whole": True}


def test_watching_follows_the_stream_and_resumes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    less = msgspec.to_builtins(replace(ITEM, id="x", rank=1, severity="notice"))
    client = Frames(
        [
            ("", snapshot("summary", fleet=SUMMARY)),
            ("", snapshot("attention", n1=ITEM)),
            ("h.1", {"at": "", "frontend": "f1", "topics": []}),
            ("", None),
            PeerUnavailable("gone"),
        ],
        [
            ("", {"topic": "attention", "items": {"x": less}}),
            ("h.2", {"topic": "summary", "items": {"fleet": replace(SUMMARY, models=13)}}),
            ("h.3", {"topic": "attention", "items": {}, "gone": ["n1", "x"]}),
        ],
        [PeerUnavailable("gone")],
    )
    answers = list(itertools.islice(followed(client), 3))  # type: ignore[arg-type]
    assert [each.summary.models for each in answers] == [12, 13, 13]
    assert [[item.id for item in each.attention] for each in answers] == [
        ["node_silent:n1"],
        ["x", "node_silent:n1"],
        [],
    ]
    assert client.resumed_after == ["", "h.1"]


def test_a_narrow_terminal_still_has_what_and_next() -> None:
    shown = module.attention_table([ITEM], datetime(2026, 3, 1, 12, 5, tzinfo=UTC), width=50)
    assert [column.header for column in shown.columns] == ["ATTENTION", "WHAT", "NEXT"]  # type: ignore[union-attr]
