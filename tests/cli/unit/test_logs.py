"""`corral logs`: lines of a model or a node, each once, also across breaks."""

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from corral.base.errors import AccessDenied, PeerUnavailable
from corral.base.retry import Backoff
from corral.cli.fleet import logs as module
from corral.cli.fleet.logs import LogFollower, LogSource
from corral.wire.logs import LogGap, LogLineView, LogPage
from corral.wire.models import ModelView
from corral.wire.replicas import ReplicaView

FIRST, SECOND = "11111111-0000-0000-0000-000000000000", "22222222-0000-0000-0000-000000000000"


def line(second: int, text: str, stream: str = "stderr") -> LogLineView:
    at = f"2026-03-01T12:00:{second:02}Z"
    return LogLineView(id=f"{at}/{text}", at=at, stream=stream, text=text, length=len(text))


def model(*places: tuple[str, int]) -> ModelView:
    replicas = [
        ReplicaView(
            id=f"r{number}",
            node_id=node_id,
            node="",
            index=index,
            state="loaded",
            revision="",
            address="",
            url="",
            created_at="",
            changed_at="",
        )
        for number, (node_id, index) in enumerate(places)
    ]
    return ModelView(name="chat", backend="b", model="m", revision="", source="", state="loaded", replicas=replicas)


@pytest.fixture
def fleet(frontend: Any, make_node: Any) -> Any:
    frontend.tell_nodes(make_node("w1", FIRST), make_node("w2", SECOND))
    frontend.tell("GET /api/v1/models/chat", model((FIRST, 0)))
    frontend.tell(f"GET /api/v1/nodes/{FIRST}/logs/chat%230", LogPage(items=[line(1, "one"), line(3, "three")]))
    frontend.tell(f"GET /api/v1/nodes/{SECOND}/logs/chat%230", LogPage(items=[line(2, "two")]))
    frontend.tell(f"GET /api/v1/nodes/{FIRST}/logs", ["chat"])
    frontend.tell(f"GET /api/v1/nodes/{FIRST}/logs/chat", LogPage(items=[line(1, "one")]))
    return frontend


def test_lines_of_one_process_are_as_it_wrote_them(connected: Any, fleet: Any) -> None:
    assert connected("logs", "chat").out == "one\nthree\n"
    assert connected("logs", "chat", "--last", "1").out == "three\n"


def test_lines_of_several_replicas_are_in_the_order_of_time_and_say_whose_they_are(connected: Any, fleet: Any) -> None:
    fleet.tell("GET /api/v1/models/chat", model((SECOND, 0), (FIRST, 0), (FIRST, 0)))
    assert connected("logs", "chat").out == "w1 chat#0 | one\nw2 chat#0 | two\nw1 chat#0 | three\n"


def test_a_node_has_the_lines_of_all_its_models(connected: Any, fleet: Any) -> None:
    assert connected("logs", "w1").out == "one\n"


def test_json_is_an_object_per_line(connected: Any, fleet: Any) -> None:
    first, _ = connected("logs", "chat", "--json").out.splitlines()
    told = {"timestamp": "2026-03-01T12:00:01Z", "stream": "stderr", "text": "one", "truncated": False, "length": 3}
    assert json.loads(first) == {"node": "w1", "process": "chat#0", **told}


def test_a_name_that_nobody_has_is_told(connected: Any, fleet: Any) -> None:
    missing = {"error": {"message": "the model 'w3' does not exist; did you mean w2?"}}
    fleet.tell("GET /api/v1/models/w3", missing, status=404)
    outcome = connected("logs", "w3")
    assert (outcome.code, outcome.out) == (1, "")
    hint = "there is no node w3; `corral nodes list` shows all"
    assert outcome.err == f"error: the model 'w3' does not exist; did you mean w2? {hint.capitalize()}\n"


def test_a_name_of_a_model_and_of_a_node_is_refused_with_the_nodes_id(
    connected: Any, fleet: Any, make_node: Any
) -> None:
    fleet.tell_nodes(make_node("chat", FIRST))
    outcome = connected("logs", "chat")
    assert outcome.code != 0
    assert f"chat is a model and a node; name the node by its id, {FIRST}" in outcome.err


def test_a_worker_that_cannot_be_asked_is_named_and_the_others_are_shown(connected: Any, fleet: Any) -> None:
    fleet.tell("GET /api/v1/models/chat", model((SECOND, 0), (FIRST, 0)))
    fleet.tell(f"GET /api/v1/nodes/{SECOND}/logs/chat%230", {"error": {"message": "no route"}}, 502)
    outcome = connected("logs", "chat")
    assert outcome.out == "w1 chat#0 | one\nw1 chat#0 | three\n"
    assert "w2 cannot be asked" in outcome.err


@pytest.mark.parametrize("status", [404, 409])
def test_a_node_that_waits_for_approval_again_hides_no_lines_of_others(connected: Any, fleet: Any, status: int) -> None:
    fleet.tell("GET /api/v1/models/chat", model((SECOND, 0), (FIRST, 0)))
    refusal = {"error": {"message": "node w2 waits for approval"}}
    fleet.tell(f"GET /api/v1/nodes/{SECOND}/logs/chat%230", refusal, status)
    outcome = connected("logs", "chat")
    assert (outcome.code, outcome.out) == (0, "w1 chat#0 | one\nw1 chat#0 | three\n")
    assert "w2 cannot be asked: node w2 waits for approval" in outcome.err


def test_a_model_that_never_ran_says_so(connected: Any, fleet: Any) -> None:
    fleet.tell("GET /api/v1/models/chat", model())
    outcome = connected("logs", "chat")
    assert (outcome.code, outcome.out) == (0, "")
    assert "nothing was written by chat yet" in outcome.err


def test_a_line_cannot_take_over_the_terminal(connected: Any, fleet: Any) -> None:
    fleet.tell(f"GET /api/v1/nodes/{FIRST}/logs/chat%230", LogPage(items=[line(1, "a\x1b[2J\tb")]))
    assert connected("logs", "chat").out == "a\ufffd[2J   b\n"


def test_a_line_that_was_cut_has_a_mark(connected: Any, fleet: Any) -> None:
    cut = LogLineView(id="x/1", at="2026-03-01T12:00:01Z", stream="stdout", text="long", truncated=True, length=9000)
    fleet.tell(f"GET /api/v1/nodes/{FIRST}/logs/chat%230", LogPage(items=[cut]))
    assert connected("logs", "chat").out == "long … (9000 bytes)\n"


def test_which_lines_is_the_frontends_business(connected: Any, fleet: Any) -> None:
    connected("logs", "chat", "--since", "10m", "--search", "a b")
    assert fleet.calls[-1].path == f"/api/v1/nodes/{FIRST}/logs/chat%230?lines=1000&since=10m&search=a+b"


@pytest.mark.parametrize("since", ["yesterday", "1x"])
def test_a_time_that_is_none_is_refused_before_anybody_is_asked(connected: Any, fleet: Any, since: str) -> None:
    outcome = connected("logs", "chat", "--since", since)
    assert (outcome.code, outcome.out, fleet.calls) == (64, "", [])
    assert outcome.err == (
        f"error: --since: {since!r} is no time; write one such as 2030-01-31T12:00:00Z, or a duration such as 10m\n"
    )


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--search", "xyzzy"), "no line of chat has the text 'xyzzy'"),
        (("--since", "10m"), "chat has written nothing since 10m ago"),
        (("--since", "2030-01-31T12:00:00Z"), "chat has written nothing since 2030-01-31T12:00:00Z"),
        (("--since", "10m", "--search", "xyzzy"), "no line of chat since 10m ago has the text 'xyzzy'"),
    ],
)
def test_no_line_that_was_asked_for_is_not_called_silence(
    connected: Any, fleet: Any, flags: tuple[str, ...], told: str
) -> None:
    fleet.tell(f"GET /api/v1/nodes/{FIRST}/logs/chat%230", LogPage(items=[]))
    outcome = connected("logs", "chat", *flags)
    assert (outcome.code, outcome.err) == (0, f"warning: {told}\n")


def test_a_process_that_cannot_be_asked_is_not_called_silent(connected: Any, fleet: Any) -> None:
    fleet.tell(f"GET /api/v1/nodes/{FIRST}/logs/chat%230", {"error": {"message": "no route"}}, 502)
    outcome = connected("logs", "chat")
    assert "w1 cannot be asked" in outcome.err
    assert "nothing was written" not in outcome.err


def event(one: LogLineView) -> tuple[str, str]:
    return one.id, msgspec.json.encode(one).decode()


class StreamingClient:
    """Streams what it is told, connection by connection; after all of them it cannot be reached."""

    def __init__(self, *connections: list[tuple[str, str]] | Exception) -> None:
        self._connections = list(connections)
        self.asked: list[tuple[str, str]] = []

    def stream(self, path: str, *, last_event: str) -> Iterator[tuple[str, str]]:
        self.asked.append((path, last_event))
        connection = self._connections.pop(0) if self._connections else PeerUnavailable("away for good")
        if isinstance(connection, Exception):
            raise connection
        yield from connection


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RECONNECT", Backoff(first=timedelta(milliseconds=1), cap=timedelta(milliseconds=1)))


def test_following_goes_on_after_breaks_with_the_last_line_that_was_seen(capfd: Any) -> None:
    source = LogSource("n", "w1", "chat#0")
    a, b, c = line(1, "a"), line(2, "b"), line(2, "c")
    gap = ("", msgspec.json.encode(LogGap(gap="the worker ended the stream; trying again")).decode())
    away = PeerUnavailable("no answer")
    client = StreamingClient([("", ""), event(a), gap], away, away, [event(b), event(c)])
    follower = LogFollower(client, [("lines", "5")])  # type: ignore[arg-type]
    with closing(follower.follow(lambda: [source], {source: "seen"})) as told:
        assert [one.text for _, one in itertools.islice(told, 3)] == ["a", "b", "c"]
    path = "/api/v1/nodes/n/logs/chat%230?follow=true&lines=5"
    assert client.asked[:4] == [(path, "seen"), (path, a.id), (path, a.id), (path, a.id)]
    errors = capfd.readouterr().err
    assert errors.count("w1 cannot be asked: no answer; trying again") == 1
    assert "w1 chat#0: the worker ended the stream; trying again" in errors


def test_following_ends_when_the_key_is_refused() -> None:
    source = LogSource("n", "w1", "chat#0")
    client = StreamingClient([event(line(1, "a"))], AccessDenied("the key is revoked"))
    told = LogFollower(client, []).follow(lambda: [source], {})  # type: ignore[arg-type]
    assert next(told)[1].text == "a"
    with pytest.raises(AccessDenied, match="revoked"):
        next(told)


def test_following_takes_up_processes_that_start_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SOURCES_EVERY", 0.001)
    first, second = LogSource("n", "w1", "chat#0"), LogSource("m", "w2", "chat#0")

    class Client:
        def stream(self, path: str, *, last_event: str) -> Iterator[tuple[str, str]]:
            yield from [] if last_event else [event(line(1, path.split("/")[4]))]

    looks = iter([[first]])
    follower = LogFollower(Client(), [])  # type: ignore[arg-type]
    with closing(follower.follow(lambda: next(looks, [second]), {})) as told:
        assert [(source, one.text) for source, one in itertools.islice(told, 2)] == [(first, "n"), (second, "m")]
