"""`corral run` with a fleet, and what it says without one. Starting a fleet is tested in tests/e2e."""

import io
import json
from typing import Any

import click
import pytest

from corral.cli.operations import watch as operation_watch
from corral.processes import background
from corral.processes.background import BackgroundFleet
from corral.processes.up_file import UpFile, UpKeys, UpPids, write_up_file
from corral.wire.model_files import PullPlanView
from corral.wire.models import ModelList, ModelOriginView, ModelView

CHAT = "POST /v1/chat/completions"


def model(name: str, **changes: Any) -> ModelView:
    return ModelView(name=name, backend="llama-cpp", model="w.gguf", revision="1", source="", state="cold", **changes)


def answer(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\ndata: [DONE]\n\n"


@pytest.fixture
def fleet(frontend: Any) -> Any:
    """With one model, which answers."""
    frontend.tell("GET /api/v1/models", ModelList(items=[model("small")]))
    frontend.tell(CHAT, answer("Paris."))
    return frontend


def asked(frontend: Any) -> list[Any]:
    return [call.body for call in frontend.calls if call.method == "POST"]


def test_a_prompt_gets_one_answer_and_standard_output_nothing_else(connected: Any, fleet: Any) -> None:
    outcome = connected("run", "small", "capital of France?", "--system", "Be brief.")
    assert (outcome.code, outcome.out, outcome.err) == (0, "Paris.\n", "")
    [body] = asked(fleet)
    assert (body["model"], [message["content"] for message in body["messages"]]) == (
        "small",
        ["Be brief.", "capital of France?"],
    )


def test_a_pipe_is_one_question(connected: Any, fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Summarise:\n\nA long text.\n"))
    assert connected("run", "small").out == "Paris.\n"
    assert [body["messages"] for body in asked(fleet)] == [
        [{"role": "user", "content": "Summarise:\n\nA long text.\n"}]
    ]


def test_an_empty_pipe_asks_nothing_and_says_so(connected: Any, fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    outcome = connected("run", "small")
    assert (outcome.code, outcome.out, asked(fleet)) == (0, "", [])
    assert "small is there. It was asked nothing, because standard input is empty." in outcome.err


def test_a_disabled_model_is_not_asked(connected: Any, fleet: Any) -> None:
    fleet.tell("GET /api/v1/models", ModelList(items=[model("my small", is_disabled=True)]))
    outcome = connected("run", "my small", "hi")
    assert (outcome.code, asked(fleet)) == (1, [])
    assert outcome.err == "error: the model my small is disabled; to use it: corral models enable 'my small'\n"


def test_an_empty_prompt_is_refused_before_anything_is_done(connected: Any, fleet: Any) -> None:
    assert connected("run", "small", " ").code == 64
    assert fleet.calls == []


class TestPulls:
    """What is not there is downloaded first; all about that goes to standard error."""

    REFERENCE = "hf://org/repo"
    PLAN = PullPlanView(
        name="repo", config="name: repo\n", files=[], bytes=0, needed_bytes=0, free_bytes=0, store="", licence="mit"
    )

    @pytest.fixture
    def pulls(self, fleet: Any, make_operation: Any, make_target: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        done = make_operation(make_target("here:/models", "success"), verb="pull", backend="repo")
        fleet.tell_in_turn("POST /api/v1/pulls", self.PLAN, done)
        fleet.tell_operation(done)
        monkeypatch.setattr(operation_watch, "_PAUSE_SECONDS", 0)
        return fleet

    def test_a_reference_is_pulled_and_asked(self, connected: Any, pulls: Any) -> None:
        outcome = connected("run", self.REFERENCE, "hi", "--build", "Q8_0")
        assert (outcome.code, outcome.out) == (0, "Paris.\n")
        assert "repo: downloaded into here:/models.\n" in outcome.err
        assert "mit" in outcome.err
        plan, start, question = asked(pulls)
        assert plan == {"reference": self.REFERENCE, "name": "", "build": "Q8_0", "dry_run": True}
        assert start == {"reference": self.REFERENCE, "name": "repo", "build": "Q8_0"}
        assert question["model"] == "repo"

    def test_what_came_from_there_is_not_pulled_again(self, connected: Any, pulls: Any) -> None:
        there = model("mine", origin=ModelOriginView(reference=self.REFERENCE))
        pulls.tell("GET /api/v1/models", ModelList(items=[there]))
        assert connected("run", self.REFERENCE, "hi").code == 0
        assert [body["model"] for body in asked(pulls)] == ["mine"]

    def test_a_pull_that_fails_asks_nothing(
        self, connected: Any, pulls: Any, make_operation: Any, make_target: Any
    ) -> None:
        target = make_target("here", "blocked", message="wrong digest", attempts=1)
        failed = make_operation(target, verb="pull", backend="repo")
        pulls.tell_in_turn("POST /api/v1/pulls", self.PLAN, failed)
        pulls.tell_operation(failed)
        outcome = connected("run", self.REFERENCE, "hi")
        assert (outcome.code, outcome.out) == (1, "")
        assert "wrong digest" in outcome.err
        assert len(asked(pulls)) == 2

    def test_an_unknown_name_is_told_with_near_models_of_the_fleet(self, connected: Any, fleet: Any) -> None:
        fleet.tell("POST /api/v1/pulls", {"error": {"message": "no gallery has a model 'smal'"}}, 404)
        outcome = connected("run", "smal", "hi")
        assert (outcome.code, outcome.err) == (1, "error: no gallery has a model 'smal'; the fleet has small\n")


def test_without_a_fleet_and_a_terminal_it_says_what_to_type(corral: Any) -> None:
    outcome = corral("run", "small", "hi")
    assert (outcome.code, outcome.out) == (69, "")
    assert "no frontend is known" in outcome.err
    assert "`corral run --up` starts it in the background" in outcome.err


@pytest.mark.parametrize("agrees", [True, False])
def test_on_a_terminal_it_asks_whether_to_start_one(
    corral: Any, fleet: Any, home: Any, monkeypatch: pytest.MonkeyPatch, agrees: bool
) -> None:
    data = home / ".local/share/corral"
    started: list[Any] = []

    def start(sources: Any, folder: Any, *, on_wait: Any) -> BackgroundFleet:
        started.append(folder)
        on_wait()
        pids = UpPids(up=1, frontend=1, control=1, nats=1)
        content = UpFile(url=fleet.url, nats_url="", keys=UpKeys(admin="k", registration="r"), pids=pids)
        data.mkdir(parents=True, mode=0o700)
        write_up_file(data, content)
        return BackgroundFleet(content=content, is_new=True, output=data)

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda *_, **__: agrees)
    monkeypatch.setattr(background, "start_fleet", start)
    outcome = corral("run", "small", "hi")
    assert (outcome.code, outcome.out, started) == ((0, "Paris.\n", [data]) if agrees else (69, "", []))
    assert ("To stop it: " in outcome.err) == agrees


def test_a_fleet_elsewhere_is_never_started_here(corral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_URL", "http://127.0.0.1:9")
    outcome = corral("run", "small", "hi", "--up")
    assert outcome.code == 69
    assert "no answer from http://127.0.0.1:9" in outcome.err


def test_down_without_a_fleet_is_an_error(corral: Any) -> None:
    outcome = corral("down")
    assert outcome.code == 1
    assert "no `corral up` runs in" in outcome.err
