"""`corral models pull`: what is shown before, what is asked, and what is said at the end."""

import time
from datetime import timedelta
from typing import Any

import click
import msgspec
import pytest

from corral.base.retry import Backoff
from corral.cli.models.pull import whole_path
from corral.cli.operations import watch as operation_watch
from corral.wire.model_files import BuildChoiceView, PruneView, PullFileView, PullPlanView, UnneededFileView
from corral.wire.models import ModelView
from corral.wire.operation_views import FileShareView

GIB = 1024**3
ROUTE = "POST /api/v1/pulls"
PLAN = PullPlanView(
    name="repo",
    config="# made by Corral\nname: repo\n",
    files=[PullFileView(path="repo-Q4.gguf", url="", size=2 * GIB), PullFileView(path="mmproj.gguf", url="")],
    reference="hf://org/repo",
    resolved="hf://org/repo@0123",
    licence="apache-2.0",
    choices=[
        BuildChoiceView(name="Q8_0", bytes=4 * GIB, needed_bytes=5 * GIB, fits=False),
        BuildChoiceView(name="Q4_K_M", bytes=2 * GIB, needed_bytes=3 * GIB, fits=True, is_chosen=True),
    ],
    notes=["its adapter was not taken"],
    bytes=2 * GIB,
    needed_bytes=GIB,
    free_bytes=50 * GIB,
    store="here:/models",
    memory_bytes=3 * GIB,
)


def tell(frontend: Any, plan: PullPlanView, operation: Any) -> None:
    frontend.tell_in_turn(ROUTE, plan, operation)
    frontend.tell_operation(operation)


@pytest.fixture
def done(frontend: Any, make_operation: Any, make_target: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pull that succeeds, of a chat model."""
    monkeypatch.setattr(operation_watch, "PAUSES", Backoff(first=timedelta(0), cap=timedelta(0)))
    operation = make_operation(make_target("here:/models", "success"), verb="pull", backend="repo")
    tell(frontend, PLAN, operation)
    chat = ModelView(name="repo", backend="llama-cpp", model="repo-Q4.gguf", revision="", source="", state="cold")
    frontend.tell("GET /api/v1/models/repo", chat)
    return operation


def lines(outcome: Any) -> list[str]:
    return [" ".join(line.split()) for line in outcome.out.splitlines()]


def test_choices_licence_bytes_and_notes_are_shown_first(connected: Any, frontend: Any, done: Any) -> None:
    outcome = connected("models", "pull", "hf://org/repo")
    assert outcome.code == 0
    assert lines(outcome) == [
        "BUILD SIZE MEMORY FITS",
        "Q8_0 4.0 GiB 5.0 GiB no",
        "→ Q4_K_M 2.0 GiB 3.0 GiB yes",
        "The build with the arrow is taken; --build NAME takes another.",
        "Model repo",
        "From hf://org/repo@0123",
        "Licence apache-2.0",
        "File repo-Q4.gguf (2.0 GiB)",
        "File mmproj.gguf (unknown size)",
        "Download 2.0 GiB and 1 file of unknown size, of which 1.0 GiB are there already; "
        "50.0 GiB are free in here:/models",
        "Memory about 3.0 GiB",
        "Note: its adapter was not taken",
        "Operation 0123abcd: pull repo into here:/models.",
        "here:/models: done",
        "repo: downloaded into here:/models.",
        'Ask it with: corral chat repo "Hi"',
    ]
    assert frontend.calls[1].headers["Idempotency-Key"]


def test_a_dry_run_shows_the_yaml_and_starts_nothing(connected: Any, frontend: Any, done: Any) -> None:
    outcome = connected("models", "pull", "hf://org/repo", "--dry-run", "--name", "mine")
    assert outcome.out.endswith("Its YAML:\n# made by Corral\nname: repo\n")
    assert [call.body for call in frontend.calls] == [
        {"reference": "hf://org/repo", "name": "mine", "build": "", "dry_run": True}
    ]
    tell(frontend, PLAN, done)
    assert connected("models", "pull", "x", "--dry-run", "--json").json()["name"] == "repo"


def test_the_yaml_of_strangers_does_not_take_over_the_terminal(connected: Any, frontend: Any, done: Any) -> None:
    tell(frontend, msgspec.structs.replace(PLAN, config="name: a\n# \x1b[2J\x9b1m\u202eb\ttab\n"), done)
    outcome = connected("models", "pull", "x", "--dry-run")
    assert outcome.out.endswith("Its YAML:\nname: a\n# \ufffd[2J\ufffd1m\ufffdb\ufffdtab\n")


def test_json_is_the_operation_and_nothing_else(connected: Any, frontend: Any, done: Any) -> None:
    assert connected("models", "pull", "hf://org/repo", "--json").json()["verb"] == "pull"


def test_without_waiting_it_ends_when_accepted(
    connected: Any, frontend: Any, make_operation: Any, make_target: Any
) -> None:
    tell(frontend, PLAN, make_operation(make_target("here", "downloading"), verb="pull", backend="repo"))
    outcome = connected("models", "pull", "hf://org/repo", "--no-wait")
    assert outcome.code == 0
    assert "Ask it with" not in outcome.out
    assert "corral ops watch 0123abcd; stop it with: corral ops cancel 0123abcd" in outcome.err


def test_ctrl_c_leaves_the_pull_alone(
    connected: Any, frontend: Any, make_operation: Any, make_target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    tell(frontend, PLAN, make_operation(make_target("here", "downloading"), verb="pull", backend="repo"))
    monkeypatch.setattr(time, "sleep", interrupted)
    outcome = connected("models", "pull", "hf://org/repo")
    assert outcome.code == 2
    assert "It goes on without this command." in outcome.err
    assert "stop it with: corral ops cancel 0123abcd" in outcome.err
    assert {call.method for call in frontend.calls} == {"POST", "GET"}


def test_without_a_terminal_files_are_told_in_lines(
    connected: Any, frontend: Any, make_operation: Any, make_target: Any, done: Any
) -> None:
    def at(current: int, state: str) -> Any:
        file = FileShareView(name="repo-Q4.gguf", state=state, current_bytes=current, total_bytes=1000)
        return make_operation(make_target("here", "downloading", files=[file]), verb="pull", backend="repo")

    frontend.tell_in_turn(ROUTE, PLAN, at(0, "waiting"))
    frontend.tell_operation(at(0, "waiting"), at(10, "fetching"), at(20, "fetching"), at(500, "fetching"), done)
    said = [line for line in lines(connected("models", "pull", "x")) if line.startswith("repo-Q4.gguf")]
    assert said == [
        "repo-Q4.gguf: waiting, 0 B of 1000 B",
        "repo-Q4.gguf: downloading, 10 B of 1000 B",
        "repo-Q4.gguf: downloading, 500 B of 1000 B",
    ]


@pytest.mark.parametrize(("answer", "code", "calls"), [(True, 0, 2), (False, 1, 1)])
def test_what_fits_nowhere_is_asked_about(
    connected: Any, frontend: Any, done: Any, monkeypatch: pytest.MonkeyPatch, answer: bool, code: int, calls: int
) -> None:
    questions: list[str] = []

    def confirm(question: str, **_: Any) -> bool:
        questions.append(question)
        return answer

    large = [msgspec.structs.replace(PLAN.choices[0], is_chosen=True)]
    tell(frontend, msgspec.structs.replace(PLAN, choices=large), done)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", confirm)
    assert connected("models", "pull", "hf://org/repo").code == code
    assert questions == ["No machine of the fleet has the memory for repo. Go on?"]
    assert [call.method for call in frontend.calls].count("POST") == calls


@pytest.mark.parametrize(
    ("config", "words"), [({"embeddings": True}, "/v1/embeddings"), ({"reranking": True}, "/v1/rerank")]
)
def test_models_that_do_not_chat_are_not_to_be_chatted_with(
    connected: Any, frontend: Any, done: Any, config: dict[str, bool], words: str
) -> None:
    view = ModelView(name="repo", backend="x", model="", revision="", source="", state="cold", config=config)
    frontend.tell("GET /api/v1/models/repo", view)
    last = connected("models", "pull", "hf://org/repo").out.splitlines()[-1]
    assert words in last
    assert "chat" not in last


def test_what_a_hub_refuses_is_told(connected: Any, frontend: Any) -> None:
    frontend.tell(ROUTE, {"error": {"message": "hf://o/r does not exist; did you mean hf://o/rr?"}}, 404)
    outcome = connected("models", "pull", "hf://o/r")
    assert (outcome.code, outcome.err) == (1, "error: hf://o/r does not exist; did you mean hf://o/rr?\n")


def test_relative_paths_are_those_of_this_shell(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert whole_path("./a.gguf") == f"{tmp_path}/a.gguf"
    assert whole_path("~/a.gguf") == "/home/me/a.gguf"
    assert [whole_path(text) for text in ("a.gguf", "/a", "hf://o/r")] == ["a.gguf", "/a", "hf://o/r"]


class TestPrune:
    ROUTE = "POST /api/v1/model-storage/prune"
    VIEW = PruneView(
        dry_run=True,
        freed_bytes=3 * GIB,
        deleted=[UnneededFileView(path="small", bytes=GIB // 2), UnneededFileView(path="large", bytes=2 * GIB)],
        kept=[UnneededFileView(path="mine.bin", bytes=1, kept="it did not come by a pull")],
        partial_bytes=GIB // 2,
    )

    def test_says_what_goes_and_what_stays_and_why(self, connected: Any, frontend: Any) -> None:
        frontend.tell(self.ROUTE, self.VIEW)
        outcome = connected("models", "prune", "--dry-run")
        assert (outcome.code, outcome.out.splitlines()) == (
            0,
            [
                "Nobody needs large (2.0 GiB).",
                "Nobody needs small (512 MiB).",
                "Downloads that nobody goes on with have 512 MiB.",
                "Kept: mine.bin (1 B): it did not come by a pull.",
                "Would free 3.0 GiB.",
            ],
        )
        assert [call.body for call in frontend.calls] == [{"dry_run": True}]

    def test_asks_first(self, connected: Any, frontend: Any) -> None:
        frontend.tell(self.ROUTE, self.VIEW)
        assert connected("models", "prune").code == 64
        done = connected("models", "prune", "--yes")
        assert done.out.splitlines()[-1] == "Freed 3.0 GiB."
        assert [call.body["dry_run"] for call in frontend.calls] == [True, True, False]

    def test_nothing_to_delete_asks_nothing(self, connected: Any, frontend: Any) -> None:
        frontend.tell(self.ROUTE, PruneView(dry_run=True, freed_bytes=0, deleted=[], kept=[]))
        assert connected("models", "prune").out == "There is nothing to delete.\n"
