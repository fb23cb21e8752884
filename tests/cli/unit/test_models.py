"""`corral models`: what there is, where it is loaded, and what was passed over."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from corral.base.retry import Backoff
from corral.cli.operations import watch as operation_watch
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.wire.models import (
    LoadJobView,
    ModelEngineView,
    ModelFileView,
    ModelList,
    ModelMemoryView,
    ModelOriginView,
    ModelProblemView,
    ModelView,
)
from corral.wire.plans import ActPlanView, PlanError, StaleActPlan
from corral.wire.replicas import ReplicaView

TOLD = because(ReasonCode.PROVEN, rung="told")


def replica(node: str = "w1", **changes: Any) -> ReplicaView:
    made = ReplicaView(
        id="r1",
        node_id="n1",
        node=node,
        model="small",
        index=0,
        state="loaded",
        revision="abc",
        address="10.0.0.1:50052",
        url="http://10.0.0.1:50053",
        in_flight=3,
        created_at="2026-03-01T12:00:00Z",
        changed_at="2026-03-01T12:00:00Z",
    )
    return msgspec.structs.replace(made, **changes)


def model(name: str = "small", **changes: Any) -> ModelView:
    made = ModelView(
        name=name,
        backend="llama-cpp",
        model="small.gguf",
        revision="0123456789abcdef",
        source="small.yaml",
        state="loaded",
        replicas=[replica()],
    )
    return msgspec.structs.replace(made, **changes)


BROKEN = ModelProblemView(source="bad.yaml", name="bad", problem="is not YAML: odd in line 3")


def test_a_model_that_no_request_reaches_is_not_shown_as_loaded(connected: Any, frontend: Any) -> None:
    barred = model(state="not_reachable", reason="the adapter ended")
    frontend.tell("GET /api/v1/models", ModelList(items=[barred]))
    frontend.tell("GET /api/v1/models/small", barred)

    listed, shown = connected("models", "list").out, connected("models", "show", "small").out

    assert "small  Not reachable  llama-cpp" in listed
    assert listed.splitlines()[-1] == "Not reachable: small: the adapter ended"
    assert [line.split(maxsplit=1) for line in shown.splitlines()[1:3]] == [
        ["State", "Not reachable"],
        ["Why", "the adapter ended"],
    ]


def test_list_shows_a_table_and_the_files_that_were_passed_over(connected: Any, frontend: Any) -> None:
    alias = model("short", backend="", model="", alias_of="small", state="cold", replicas=[])
    two = model(replicas=[replica(), replica("w2")], bytes=3 * 1024**3)
    frontend.tell("GET /api/v1/models", ModelList(items=[two, alias], problems=[BROKEN]))
    outcome = connected("models", "list")

    assert outcome.code == 0
    assert [line.split() for line in outcome.out.splitlines()[:3]] == [
        ["NAME", "STATE", "BACKEND", "SIZE", "NODES", "WARNINGS", "SOURCE"],
        ["small", "Loaded", "llama-cpp", "3.0", "GiB", "w1,", "w2", "–", "small.yaml"],
        ["short", "Cold", "→", "small", "–", "-", "–", "small.yaml"],
    ]
    assert outcome.out.splitlines()[3] == "Passed over: bad.yaml (bad): is not YAML: odd in line 3"


def test_odd_keys_are_warned_about_by_list_and_show(connected: Any, frontend: Any) -> None:
    odd = model(warnings=["line 3: unknown key 'contxt_size'"])
    frontend.tell("GET /api/v1/models", ModelList(items=[odd]))
    frontend.tell("GET /api/v1/models/small", odd)
    told = "Warning: small.yaml (small): line 3: unknown key 'contxt_size'"
    assert connected("models", "list").out.splitlines()[-1] == told
    shown = [" ".join(line.split()) for line in connected("models", "show", "small").out.splitlines()]
    assert "Warning line 3: unknown key 'contxt_size'" in shown


def test_a_model_of_engines_elsewhere_is_listed_and_shown(connected: Any, frontend: Any) -> None:
    engines = [ModelEngineView(name="desk", state="up"), ModelEngineView(name="cloud", state="down")]
    far = ModelView(name="far", backend="", model="", revision="", source="", state="elsewhere", engines=engines)
    frontend.tell("GET /api/v1/models", ModelList(items=[far]))
    frontend.tell("GET /api/v1/models/far", far)
    out = connected("models", "list").out
    assert "elsewhere" in out
    assert "desk (elsewhere), cloud (elsewhere)" in out
    shown = connected("models", "show", "far").out
    assert "desk, elsewhere: up" in shown
    assert "cloud, elsewhere: down" in shown


def test_list_without_models_says_how_to_get_one(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/models", ModelList(items=[]))
    assert connected("models", "list").out == (
        "There is no model yet; `corral models search` finds one, `corral models pull` gets it.\n"
    )


def test_weights_that_no_model_uses_are_offered(connected: Any, frontend: Any) -> None:
    lone = ModelFileView(path="my model.gguf", size=1024**2)
    frontend.tell("GET /api/v1/models", ModelList(items=[model()], offered=[lone]))
    assert connected("models", "list").out.splitlines()[-1] == (
        "Offered: my model.gguf (1.0 MiB) is no model yet; to use it: corral models pull 'my model.gguf'"
    )


def test_show_tells_where_a_model_came_from_and_who_changed_it(connected: Any, frontend: Any) -> None:
    origin = ModelOriginView(reference="hf://o/r", resolved="hf://o/r@0123", licence="mit")
    pulled = model(source="", kind="pull", origin=origin, number=4, changed_by="eve", bytes=5, is_disabled=True)
    frontend.tell("GET /api/v1/models/small", msgspec.structs.replace(pulled, changed_at="2026-03-01T12:00:00Z"))
    lines = [" ".join(line.split()) for line in connected("models", "show", "small").out.splitlines()]
    assert {"State Disabled", "Size 5 B", "From hf://o/r@0123", "Licence mit"} <= set(lines)
    [changed] = [line for line in lines if line.startswith("Changed")]
    assert changed.startswith("Changed 2026-03-01 12:00:00 (")
    assert changed.endswith("by eve, change 4")


def test_json_is_all_that_the_frontend_said(connected: Any, frontend: Any) -> None:
    found = ModelList(items=[model()], problems=[BROKEN])
    frontend.tell("GET /api/v1/models", found)
    frontend.tell("GET /api/v1/models/small", model())
    assert connected("models", "list", "--json").json() == msgspec.to_builtins(found)
    assert connected("models", "show", "small", "--json").json() == msgspec.to_builtins(model())


def test_show_tells_what_is_known_and_leaves_out_the_rest(connected: Any, frontend: Any) -> None:
    job = LoadJobView(state="failed", failures=2, message="no room", retry_at="2026-03-01T12:00:00Z")
    lost = replica("w2", state="lost", reason="its node is offline")
    removed = replica("", state="lost", reason="the node was removed")
    frontend.tell("GET /api/v1/models/small", model(replicas=[replica(), lost, removed], load_job=job))
    outcome = connected("models", "show", "small")

    assert [" ".join(line.split()) for line in outcome.out.splitlines()] == [
        "Name small",
        "State Loaded",
        "Backend llama-cpp",
        "Weights small.gguf",
        "File small.yaml",
        "Revision 0123456789ab",
        "Load failed: no room",
        "Replica w1 #0 loaded, 3 requests under way",
        "Replica w2 #0 lost (its node is offline)",
        "Replica #0 lost (the node was removed)",
    ]
    assert "\nReplica   #0 lost" in outcome.out, "one blank too many for a name that is gone"


def test_show_tells_how_far_a_load_is(connected: Any, frontend: Any) -> None:
    job = LoadJobView(
        state="loading",
        failures=0,
        retry_at="2026-03-01T12:00:00Z",
        node="w1",
        step="stage",
        step_seconds={"stage": 2.0},
    )
    frontend.tell("GET /api/v1/models/small", model(replicas=[], load_job=msgspec.structs.replace(job, why="asked")))

    assert (
        "Load      loading on w1, wanted: asked, –; stage 2 s" in connected("models", "show", "small").out.splitlines()
    )


def test_what_a_load_tells_of_a_node_is_not_told_twice(connected: Any, frontend: Any) -> None:
    job = LoadJobView(state="failed", failures=1, message="w1: no GPU", retry_at="2026-03-01T12:00:00Z")
    failed = [replica(state="failed", reason="no GPU"), replica("w2", state="lost", reason="its node is offline")]
    frontend.tell("GET /api/v1/models/small", model(state="failed", replicas=failed, load_job=job))
    told = [" ".join(line.split()) for line in connected("models", "show", "small").out.splitlines()[-3:]]
    assert told == ["Load failed: w1: no GPU", "Replica w1 #0 failed", "Replica w2 #0 lost (its node is offline)"]


def test_requests_that_nobody_knows_of_are_not_shown_as_none(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/models/small", model(replicas=[replica(in_flight=None)]))
    assert "w1 #0 loaded, an unknown number of requests under way" in connected("models", "show", "small").out


def test_a_broken_file_is_shown_with_its_reason(connected: Any, frontend: Any) -> None:
    broken = model("bad", backend="", model="", revision="", source="bad.yaml", state="unusable", replicas=[])
    frontend.tell("GET /api/v1/models/bad", msgspec.structs.replace(broken, problems=[BROKEN]))
    outcome = connected("models", "show", "bad")

    assert outcome.code == 0
    assert [" ".join(line.split()) for line in outcome.out.splitlines()] == [
        "Name bad",
        "State Unusable",
        "File bad.yaml",
        "Passed over bad.yaml: is not YAML: odd in line 3",
    ]


def test_an_unknown_model_is_an_error_with_the_frontend_s_suggestion(connected: Any, frontend: Any) -> None:
    said = "the model 'smal' does not exist; did you mean small?"
    frontend.tell("GET /api/v1/models/smal", {"error": {"code": "not_found", "message": said}}, 404)
    outcome = connected("models", "show", "smal")
    assert (outcome.code, outcome.out) == (1, "")
    assert said in outcome.err


@pytest.mark.parametrize("name", ["org/model", "a b?c", "ü"])
def test_odd_names_arrive_whole(connected: Any, frontend: Any, name: str) -> None:
    connected("models", "show", name)
    [call] = frontend.calls
    assert call.path.startswith("/api/v1/models/")
    assert "/" not in call.path.removeprefix("/api/v1/models/")
    assert " " not in call.path


def test_names_of_strangers_cannot_colour_the_terminal(connected: Any, frontend: Any) -> None:
    evil = model("a[red]b\x1b[31m", replicas=[])
    frontend.tell("GET /api/v1/models", ModelList(items=[evil], problems=[]))
    out = connected("models", "list").out
    assert "a[red]b\ufffd[31m" in out
    assert "\x1b" not in out


def test_no_frontend_is_code_69(corral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("CORRAL_KEY", "k")
    assert corral("models", "list").code == 69


def test_a_wrong_key_is_code_77(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/models", {"error": {"message": "no"}}, 401)
    assert connected("models", "list").code == 77


class TestRemove:
    PATH = "DELETE /api/v1/models/small"
    PLAN = "POST /api/v1/model-removals/plan"

    @pytest.fixture(autouse=True)
    def one_model(self, frontend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operation_watch, "PAUSES", Backoff(first=timedelta(0), cap=timedelta(0)))
        frontend.tell("GET /api/v1/models/small", model())
        frontend.tell("GET /api/v1/models", ModelList(items=[model()]))

    def test_watches_until_every_node_is_done(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        begun = make_operation(make_target("w1", status="downloading"), verb="remove", backend="small")
        done = make_operation(make_target("w1", "success", TOLD), verb="remove", backend="small")
        frontend.tell(self.PATH, begun, 202)
        frontend.tell_operation(done)
        outcome = connected("models", "remove", "small", "--yes")
        assert outcome.code == 0
        assert outcome.out.splitlines() == [
            "Operation 0123abcd: remove small on w1.",
            "w1: removing, the node was asked to remove it",
            "w1: done, the node says so",
            "small: removed on w1.",
        ]
        [removal] = [call for call in frontend.calls if call.method == "DELETE"]
        assert removal.headers["Idempotency-Key"]

    def test_says_what_is_deleted_and_what_is_kept_and_why(
        self, connected: Any, frontend: Any, make_operation: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frontend.tell("GET /api/v1/models/small", model())
        lines = ["Remove the model small: 1 deleted, 1 kept.", "Deleted: own.gguf", "Kept: shared.gguf\x1b"]
        frontend.tell(self.PLAN, ActPlanView(hash="h1", text="\n".join(lines)))
        note = "shared.gguf stays: big needs it"
        frontend.tell(f"{self.PATH}?plan_hash=h1", make_operation(verb="remove", backend="small", notes=[note]), 202)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("click.confirm", lambda *_, **__: True)
        outcome = connected("models", "remove", "small")
        assert outcome.err.splitlines() == [*lines[:2], "Kept: shared.gguf�"]
        assert f"Note: {note}" in outcome.out.splitlines()

    def test_a_plan_alone_changes_nothing(self, connected: Any, frontend: Any) -> None:
        frontend.tell(self.PLAN, ActPlanView(hash="h1", text="Remove the model small: 1 ends.\nEnds: small on w1"))
        outcome = connected("models", "remove", "small", "--plan")
        assert (outcome.code, outcome.out) == (0, "Remove the model small: 1 ends.\nEnds: small on w1\n")
        assert connected("models", "remove", "small", "--plan", "--json").json()["hash"] == "h1"
        assert {call.method for call in frontend.calls} == {"POST"}

    def test_a_plan_that_is_old_by_the_time_of_the_answer_is_shown_anew(
        self, connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frontend.tell("GET /api/v1/models/small", model())
        frontend.tell(self.PLAN, ActPlanView(hash="h1", text="Remove the model small: nothing."))
        new = StaleActPlan(error=PlanError(message="it changed"), plan=ActPlanView(hash="h2", text="New: 1\nEnds: x"))
        frontend.tell(f"{self.PATH}?plan_hash=h1", new, 409)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("click.confirm", lambda *_, **__: True)
        outcome = connected("models", "remove", "small")
        assert outcome.code == 1
        assert outcome.err.splitlines()[-3:] == ["error: it changed:", "New: 1", "Ends: x"]

    @pytest.mark.parametrize(("status", "code"), [("error", 1), ("queued", 2)])
    def test_ends_with_the_code_of_the_operation(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any, status: str, code: int
    ) -> None:
        operation = make_operation(make_target("w1", status=status, attempts=1), verb="remove", backend="small")
        frontend.tell(self.PATH, operation, 202)
        frontend.tell_operation(operation)
        outcome = connected("models", "remove", "small", "--yes", "--within", "1ms", "--json")
        assert (outcome.code, outcome.json()["verb"]) == (code, "remove")

    def test_without_nodes_there_is_nothing_to_watch(self, connected: Any, frontend: Any, make_operation: Any) -> None:
        frontend.tell(self.PATH, make_operation(verb="remove", backend="small"), 202)
        outcome = connected("models", "remove", "small", "--yes")
        assert (outcome.code, outcome.out.splitlines()) == (
            0,
            ["Operation 0123abcd: remove small on no node.", "small: removed; no node had to do anything."],
        )

    def test_asks_first_and_not_where_nobody_could_answer(self, connected: Any, frontend: Any) -> None:
        outcome = connected("models", "remove", "small")
        assert outcome.err == "error: --yes: is needed here, because there is no terminal to ask on\n"
        assert frontend.calls == []

    def test_what_the_frontend_says_no_to_is_told(self, connected: Any, frontend: Any) -> None:
        said = {"error": {"code": "conflict", "message": "both.yaml also holds two"}}
        frontend.tell(self.PATH, said, 409)
        outcome = connected("models", "remove", "small", "--yes")
        assert (outcome.code != 0, outcome.err) == (True, "error: both.yaml also holds two\n")


def test_show_tells_how_much_memory_a_replica_takes(connected: Any, frontend: Any) -> None:
    gib = 1024**3
    memory = ModelMemoryView(ram=3 * gib, vram=2 * gib, ram_beside_gpu=gib, source="GGUF metadata")
    for view, line in (
        (memory, "Memory about 3.0 GiB; with a GPU 2.0 GiB on it and 1.0 GiB beside (by GGUF metadata)"),
        (ModelMemoryView(ram=gib, ram_beside_gpu=gib, source="file size"), "Memory about 1.0 GiB (by file size)"),
    ):
        frontend.tell("GET /api/v1/models/small", model(memory=view))
        assert line in [" ".join(text.split()) for text in connected("models", "show", "small").out.splitlines()]
    for unknown in (None, ModelMemoryView(source="not known")):
        frontend.tell("GET /api/v1/models/small", model(memory=unknown))
        assert "Memory" not in connected("models", "show", "small").out
