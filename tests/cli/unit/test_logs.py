"""`corral logs`: lines of a model or a node, each once, also across breaks."""

import itertools
import json
from typing import Any

import pytest

from corral.base.errors import PeerUnavailable
from corral.cli import logs as module
from corral.cli.logs import Following
from corral.wire.models import ModelView
from corral.wire.nodes import LogLine
from corral.wire.replicas import ReplicaView

FIRST, SECOND = "11111111-0000-0000-0000-000000000000", "22222222-0000-0000-0000-000000000000"


def line(second: int, text: str, stream: str = "stderr") -> LogLine:
    return LogLine(timestamp=f"2026-03-01T12:00:{second:02}Z", stream=stream, text=text)


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
    frontend.tell(f"GET /api/nodes/{FIRST}/backend-logs/chat%230", [line(1, "one"), line(3, "three")])
    frontend.tell(f"GET /api/nodes/{SECOND}/backend-logs/chat%230", [line(2, "two")])
    frontend.tell(f"GET /api/nodes/{FIRST}/backend-logs", ["chat"])
    frontend.tell(f"GET /api/nodes/{FIRST}/backend-logs/chat", [line(1, "one")])
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
    told = {"timestamp": "2026-03-01T12:00:01Z", "stream": "stderr", "text": "one"}
    assert json.loads(first) == {"node": "w1", "process": "chat#0", **told}


def test_a_name_that_nobody_has_is_told(connected: Any, fleet: Any) -> None:
    outcome = connected("logs", "w3")
    assert (outcome.code, outcome.out) == (1, "")
    assert "there is no model w3, and there is no node w3; `corral nodes list` shows all" in outcome.err


def test_a_name_of_a_model_and_of_a_node_is_refused_with_the_nodes_id(
    connected: Any, fleet: Any, make_node: Any
) -> None:
    fleet.tell_nodes(make_node("chat", FIRST))
    outcome = connected("logs", "chat")
    assert outcome.code != 0
    assert f"chat is a model and a node; name the node by its id, {FIRST}" in outcome.err


def test_a_worker_that_cannot_be_asked_is_named_and_the_others_are_shown(connected: Any, fleet: Any) -> None:
    fleet.tell("GET /api/v1/models/chat", model((SECOND, 0), (FIRST, 0)))
    fleet.tell(f"GET /api/nodes/{SECOND}/backend-logs/chat%230", {"error": {"message": "no route"}}, 502)
    outcome = connected("logs", "chat")
    assert outcome.out == "w1 chat#0 | one\nw1 chat#0 | three\n"
    assert "w2 cannot be asked" in outcome.err


@pytest.mark.parametrize("status", [404, 409])
def test_a_node_that_waits_for_approval_again_hides_no_lines_of_others(connected: Any, fleet: Any, status: int) -> None:
    fleet.tell("GET /api/v1/models/chat", model((SECOND, 0), (FIRST, 0)))
    refusal = {"error": {"message": "node w2 waits for approval"}}
    fleet.tell(f"GET /api/nodes/{SECOND}/backend-logs/chat%230", refusal, status)
    outcome = connected("logs", "chat")
    assert (outcome.code, outcome.out) == (0, "w1 chat#0 | one\nw1 chat#0 | three\n")
    assert "w2 cannot be asked: node w2 waits for approval" in outcome.err


def test_a_model_that_never_ran_says_so(connected: Any, fleet: Any) -> None:
    fleet.tell("GET /api/v1/models/chat", model())
    outcome = connected("logs", "chat")
    assert (outcome.code, outcome.out) == (0, "")
    assert "nothing was written by chat yet" in outcome.err


def test_a_line_cannot_take_over_the_terminal(connected: Any, fleet: Any) -> None:
    fleet.tell(f"GET /api/nodes/{FIRST}/backend-logs/chat%230", [line(1, "a\x1b[2J\tb")])
    assert connected("logs", "chat").out == "a\ufffd[2J   b\n"


class Looks:
    """What one process has written, look by look; a look may fail."""

    def __init__(self, *looks: list[LogLine] | Exception) -> None:
        self._looks = list(looks)

    def lines(self) -> list[LogLine]:
        look = self._looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return look


def test_following_tells_every_line_once_and_outlives_breaks_and_restarts(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    source = module.LogSource("n", "w1", "chat#0")
    a, b, c, d = line(1, "a"), line(2, "b"), line(2, "c"), line(9, "d")
    away = PeerUnavailable("no answer")
    looks = Looks([a, b], [a, b], [a, b, c], away, away, [b, c], [d])  # the last: its worker was restarted
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    monkeypatch.setattr(module, "sources_of", lambda client, name: [source])

    class Client:
        def get(self, path: str, kind: object) -> list[LogLine]:
            return looks.lines()

    following = Following(Client(), "chat")  # type: ignore[arg-type]
    assert [one.text for _, one in following.look()] == ["a", "b"]
    later = [[one.text for _, one in new] for new in itertools.islice(following.later(), 4)]
    assert later == [[], ["c"], [], ["d"]]
    assert len(pauses) == 6
    assert capsys.readouterr().err.count("no answer; trying again") == 1
