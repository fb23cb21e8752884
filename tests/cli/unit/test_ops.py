"""`corral ops`: which operation is meant, what is watched and until when, and what retry and cancel ask for."""

import time
from datetime import timedelta
from typing import Any

import click
import msgspec
import pytest
from rich.console import Console

from corral.base.errors import PeerUnavailable
from corral.base.retry import Backoff
from corral.cli.operations import watch as operation_watch
from corral.cli.operations.watch import views_of
from corral.cli.units import DurationParameter
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.wire.operation_views import Changed, OperationPage, OperationUpdate, OperationView, TargetView

PRESENT = because(ReasonCode.PROVEN, rung="present")

ID = "0123abcd-0000-4000-8000-000000000000"
ONE = f"GET /api/v1/operations/{ID}"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_watch, "PAUSES", Backoff(first=timedelta(0), cap=timedelta(0)))


class TestList:
    def test_is_a_table_of_the_newest(self, connected: Any, frontend: Any, make_operation: Any) -> None:
        frontend.tell("GET /api/v1/operations", OperationPage(items=[make_operation()]))
        outcome = connected("ops", "list", "--last", "7")
        assert outcome.code == 0
        assert outcome.out.splitlines()[1].startswith("0123abcd  Done   install echo")
        assert frontend.calls[0].path == "/api/v1/operations?limit=7"

    def test_pages_are_read_until_there_are_enough(self, connected: Any, frontend: Any, make_operation: Any) -> None:
        first = OperationPage(items=[make_operation()] * 100, next_cursor="c")
        frontend.tell("GET /api/v1/operations?limit=100", first)
        frontend.tell("GET /api/v1/operations?limit=50&cursor=c", OperationPage(items=[make_operation()] * 50))
        assert len(connected("ops", "list", "--last", "150", "--json").json()["items"]) == 150

    def test_which_ones_is_the_frontends_business(
        self, connected: Any, frontend: Any, make_operation: Any, make_node: Any
    ) -> None:
        node = make_node("w1", "11111111-0000-4000-8000-000000000000")
        frontend.tell_nodes(node)
        frontend.tell("GET /api/v1/operations", OperationPage(items=[make_operation()]))
        words = ("--state", "failed", "--state", "running", "--verb", "install", "--backend", "echo", "--node", "w1")
        found = connected("ops", "list", *words, "--by", "ann", "--text", "oci://", "--json").json()["items"]
        assert len(found) == 1
        assert frontend.calls[-1].path == (
            "/api/v1/operations?state=failed&state=running&verb=install&backend=echo&asked_by=ann&text=oci%3A%2F%2F"
            f"&node={node.id}&limit=20"
        )
        frontend.tell("GET /api/v1/operations", OperationPage(items=[]))
        assert connected("ops", "list", "--state", "running").out == "No operation fits.\n"
        assert connected("ops", "list", "--state", "odd").code == 64

    def test_of_nothing_says_how_to_begin(self, connected: Any, frontend: Any) -> None:
        frontend.tell("GET /api/v1/operations", OperationPage(items=[]))
        assert "corral backends install" in connected("ops", "list").out


class TestWhichIsMeant:
    def test_the_newest_if_nothing_is_said(self, connected: Any, frontend: Any, make_operation: Any) -> None:
        frontend.tell("GET /api/v1/operations", OperationPage(items=[make_operation()]))
        assert connected("ops", "show", "--json").json()["id"] == ID

    def test_a_whole_id_is_asked_for(self, connected: Any, frontend: Any, make_operation: Any) -> None:
        frontend.tell(ONE, make_operation())
        assert connected("ops", "show", ID).code == 0
        assert len(frontend.calls) == 1

    def test_the_beginning_of_an_id_is_enough_while_only_one_has_it(
        self, connected: Any, frontend: Any, make_operation: Any
    ) -> None:
        two = [make_operation(), make_operation(id="0123ffff-0000-4000-8000-000000000000")]
        frontend.tell("GET /api/v1/operations", OperationPage(items=two))
        assert connected("ops", "show", "0123A", "--json").json()["id"] == ID
        several = connected("ops", "show", "0123")
        assert (several.code, "give more of the id" in several.err) == (1, True)
        none = connected("ops", "show", "99")
        assert (none.code, "corral ops list" in none.err) == (1, True)

    def test_none_is_there_yet(self, connected: Any, frontend: Any) -> None:
        frontend.tell("GET /api/v1/operations", OperationPage(items=[]))
        assert connected("ops", "watch").code == 1


class TestWatch:
    def test_in_a_pipe_each_change_is_a_line(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        half = make_target("w2", "downloading", phase="downloading", current_bytes=1, total_bytes=4)
        more = make_target("w2", "downloading", phase="downloading", current_bytes=2, total_bytes=4)
        done = make_target("w1", "success", PRESENT)
        frontend.tell_operation(
            make_operation(make_target("w1"), make_target("w2")),
            make_operation(done, half),
            make_operation(done, more),
            make_operation(done, make_target("w2", "error", message="disk full", attempts=1)),
        )
        outcome = connected("ops", "watch", ID)
        assert outcome.out.splitlines() == [
            "Operation 0123abcd: install echo on w1, w2.",
            "w1: queued, about to be sent",
            "w2: queued, about to be sent",
            "w1: done, its report shows it",
            "w2: downloading, downloading 1 B of 4 B",
            "w2: failed, disk full (tried once)",
            "echo: installed on w1; failed on w2.",
        ]
        assert outcome.err == "See what to do about it: corral ops show 0123abcd\n"
        assert outcome.code == 1

    def test_absent_nodes_are_not_watched_for_and_are_told(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        away = make_target("w2", "queued", waits_for_node=True)
        frontend.tell(ONE, make_operation(make_target("w1", "success", PRESENT), away))
        outcome = connected("ops", "watch", ID)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.endswith("installed on w1; waiting for w2 to come back, which is no failure.\n")

    def test_the_time_may_be_over_first(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(ONE, make_operation(make_target("w1", "downloading")))
        outcome = connected("ops", "watch", ID, "--within", "0s")
        assert outcome.code == 2
        assert outcome.out.endswith("echo: under way on w1.\n")
        assert outcome.err.endswith("corral ops watch 0123abcd\n")

    def test_as_json_only_the_end_is_printed(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell_operation(make_operation(make_target("w1")), make_operation(make_target("w1", "success")))
        outcome = connected("ops", "watch", ID, "--json")
        assert (outcome.code, outcome.json()["state"], outcome.err) == (0, "done", "")

    def test_ctrl_c_ends_only_the_watching(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(_: float) -> None:
            raise KeyboardInterrupt

        frontend.tell_operation(make_operation(make_target("w1", "downloading")))
        monkeypatch.setattr(time, "sleep", interrupted)
        outcome = connected("ops", "watch", ID)
        assert outcome.code == 2
        assert outcome.err.endswith("It goes on without this command. Watch it again with: corral ops watch 0123abcd\n")
        assert [call.method for call in frontend.calls] == ["GET", "GET"]

    def test_on_a_terminal_there_are_bars_and_whole_errors(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(operation_watch, "console", lambda: Console(force_terminal=True, width=60, height=20))
        reason = "a reason that is longer than the terminal is wide, and told all the same"
        frontend.tell_operation(
            make_operation(make_target("w1")), make_operation(make_target("w1", "blocked", message=reason))
        )
        outcome = connected("ops", "watch", ID)
        assert outcome.code == 1
        assert "━" in outcome.out
        assert f"w1: {reason}\n" in outcome.out

    def test_a_stream_that_breaks_is_taken_up_where_it_ended_and_only_what_changed_is_told(
        self, make_operation: Any, make_target: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first, second = make_target("w1"), make_target("w2")
        done = [make_target(name, "success") for name in ("w1", "w2")]
        client: Any = Streaming(
            [("f:7:0", update(make_operation(done[0], second))), PeerUnavailable("gone")],
            [PeerUnavailable("gone")],
            [("", ""), ("f:8:0", update(make_operation(*done), only=[done[1]]))],
        )
        seen = list(views_of(client, make_operation(first, second), until=None))
        assert [one.state for one in seen] == ["running", "running", "done"]
        assert [one.node_name for one in seen[-1].targets] == ["w1", "w2"]
        assert client.asked_for == ["", "f:7:0", "f:7:0"]
        assert capsys.readouterr().err.count("gone; trying again") == 1

    def test_a_frontend_is_not_waited_for_for_ever(
        self, make_operation: Any, make_target: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client: Any = Streaming([PeerUnavailable("gone")])
        monkeypatch.setattr(operation_watch, "PATIENCE", timedelta(0))
        with pytest.raises(PeerUnavailable):
            list(views_of(client, make_operation(make_target("w")), until=None))

    def test_a_silent_stream_is_left_when_the_time_is_over(
        self, make_operation: Any, make_target: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "monotonic", iter([0.0, 1.0, 9.0, 9.0]).__next__)
        client: Any = Streaming([PeerUnavailable("silent")])
        assert len(list(views_of(client, make_operation(make_target("w")), until=5.0))) == 1
        assert client.waited == [timedelta(seconds=4)]


class Streaming:
    """A client whose streams tell these, one after the other."""

    def __init__(self, *streams: list[Any]) -> None:
        self._streams = list(streams)
        self.asked_for: list[str] = []
        self.waited: list[timedelta | None] = []

    def stream(self, path: str, *, last_event: str = "", at_most: timedelta | None = None) -> Any:
        assert path == f"/api/v1/operations/{ID}/stream"
        self.asked_for.append(last_event)
        self.waited.append(at_most)
        for item in self._streams.pop(0):
            if isinstance(item, Exception):
                raise item
            yield item


def update(operation: OperationView, only: list[TargetView] | None = None) -> str:
    shown = operation if only is None else msgspec.structs.replace(operation, targets=only)
    return msgspec.json.encode(OperationUpdate(is_whole=only is None, operation=shown)).decode()


class TestChanges:
    def test_a_retry_names_nodes_and_is_watched(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell_operation(
            make_operation(make_target("w1", "error"), make_target("w2", "error")),
            make_operation(make_target("w1", "success"), make_target("w2", "success")),
        )
        again = make_operation(make_target("w1"), make_target("w2"))
        frontend.tell(f"POST /api/v1/operations/{ID}/retry", Changed(operation=again, nodes=["w1", "w2"]))
        assert connected("ops", "retry", ID, "--node", "w1", "--node", "id-of-w2").code == 0
        (posted,) = [call for call in frontend.calls if call.method == "POST"]
        assert posted.body == {"nodes": ["id-of-w1", "id-of-w2"]}

    def test_a_retry_of_nothing_is_told(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        done = make_operation(make_target("w1", "success"))
        frontend.tell(ONE, done)
        frontend.tell(f"POST /api/v1/operations/{ID}/retry", Changed(operation=done, nodes=[]))
        outcome = connected("ops", "retry", ID)
        assert (outcome.code, outcome.out.startswith("Nothing to retry")) == (1, True)

    def test_a_cancel_is_honest_about_what_was_sent(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(ONE, make_operation(make_target("w1", "downloading"), make_target("w2")))
        gone = make_operation(make_target("w1", "cancelled"), make_target("w2", "cancelled"))
        answer = Changed(operation=gone, nodes=["w1", "w2"], already_sent=["w1"])
        frontend.tell(f"POST /api/v1/operations/{ID}/cancel", answer)
        outcome = connected("ops", "cancel", ID)
        assert outcome.code == 0
        assert outcome.out.splitlines() == [
            "Cancelled on w1, w2.",
            "May still finish, since it had been sent already: w1.",
        ]
        assert connected("ops", "cancel", ID, "--json").json()["already_sent"] == ["w1"]

    def test_nodes_must_be_of_the_operation(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(ONE, make_operation(make_target("w1"), make_target("w2")))
        unknown = connected("ops", "cancel", ID, "--node", "w9")
        assert (unknown.code, "w9 is no node of this operation" in unknown.err) == (1, True)
        several = connected("ops", "cancel", ID, "--node", "id-of")
        assert (several.code, "name one by its id" in several.err) == (1, True)
        assert all(call.method == "GET" for call in frontend.calls)

    def test_they_need_an_operation(self, connected: Any) -> None:
        assert connected("ops", "cancel").code == 64
        assert connected("ops", "retry").code == 64


def test_durations_are_read_as_everywhere() -> None:
    assert DurationParameter().convert("1m30s", None, None) == timedelta(seconds=90)
    for nonsense in ("soon", "-3s", "", "9" * 40 + "d"):
        with pytest.raises(click.BadParameter):
            DurationParameter().convert(nonsense, None, None)
