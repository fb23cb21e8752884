"""`corral backends apply` and `corral backends rules`: what is read, sent and said, and what is refused by its line."""

import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import InvalidInput
from corral.base.retry import Backoff
from corral.cli.backends import rules as rule_commands
from corral.cli.backends.fleet_file import DeclaredFleet, FleetFile
from corral.cli.operations import watch as operation_watch
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.processes.exit_codes import ExitCode
from corral.wire.fleet_rules import (
    AppliedRules,
    PlannedActView,
    RuleAsk,
    RuleChanges,
    RuleSetView,
    RulesPlan,
    RuleView,
    UnmetView,
)
from corral.wire.operation_views import PlannedView
from corral.wire.scheduling import NamedScheduling, SchedulingChanges, SchedulingList, SchedulingView

FLEET = """\
rules:
  - backend: echo
  - name: mine-in-a
    backend: mine
    uri: oci://r/mine:1
    alias: m
    labels:
      zone: a
"""
MODELS = """\
models:
  - model: a
    min: 1
    max: 4
    labels: {z: x}
    idle: 10m
  - model: b
    spread: true
    idle: never
  - model: org/c
    nodes: [w1, w2]
"""
NOTHING_SAID: dict[str, Any] = {
    "node_selector": {},
    "pinned_nodes": [],
    "min_replicas": 0,
    "max_replicas": 0,
    "spread_all": False,
    "idle_seconds": None,
}
RULES = [
    RuleAsk(name="echo", backend="echo"),
    RuleAsk(name="mine-in-a", backend="mine", uri="oci://r/mine:1", alias="m", labels={"zone": "a"}),
]
GET, PUT, PLAN = (
    f"{method} /api/v1/fleet-rules{rest}" for method, rest in (("GET", ""), ("PUT", ""), ("POST", "/plan"))
)

PRESENT = because(ReasonCode.PROVEN, rung="present")
NO_CHANGES = RuleChanges(added=[], changed=[], removed=[])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_watch, "PAUSES", Backoff(first=timedelta(0), cap=timedelta(0)))
    monkeypatch.setattr(rule_commands, "_PAUSE_SECONDS", 0)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET, encoding="utf-8")
    return str(path)


def a_rule(name: str, **changes: Any) -> RuleView:
    fields: dict[str, Any] = {
        "name": name,
        "backend": "echo",
        "labels": {},
        "uri": "",
        "alias": "",
        "made_by": "admin",
        "made_at": "2026-03-01T12:00:00Z",
        "counts": {"success": 2},
        "unmet": {},
    }
    return RuleView(**{**fields, **changes})


class TestTheFile:
    def test_is_read_as_it_is_written(self) -> None:
        assert FleetFile("f", FLEET).declared() == DeclaredFleet(rules=RULES)
        assert FleetFile("f", "rules: []").declared() == DeclaredFleet(rules=[])
        [rule] = FleetFile("f", "rules: [{backend: g@echo}]").declared().rules or []
        assert rule.name == "echo"

    def test_may_speak_of_models_too(self) -> None:
        assert FleetFile("f", "models: []").declared() == DeclaredFleet(models=[])
        assert FleetFile("f", MODELS).declared().models == [
            NamedScheduling(**{**NOTHING_SAID, **fields})
            for fields in (
                {"model": "a", "min_replicas": 1, "max_replicas": 4, "node_selector": {"z": "x"}, "idle_seconds": 600},
                {"model": "b", "spread_all": True, "idle_seconds": 0},
                {"model": "org/c", "pinned_nodes": ["w1", "w2"]},
            )
        ]

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("models: {}", "f, line 1: models: is a mapping, not a list"),
            ("models:\n- min: 1", "f, line 2: models[0].model: is missing"),
            ("models:\n- model: a\n  min: one", "f, line 3: models[0].min: is 'one', not a whole number"),
            ("models:\n- model: a\n  min: -1", "f, line 3: models[0].min: is '-1', not a whole number"),
            ("models:\n- model: a\n  max: 1.5", "f, line 3: models[0].max: is '1.5', not a whole number"),
            ("models:\n- model: a\n  max: 99999999999999999999", "f, line 3: models[0].max: must be <= 10000"),
            ("models:\n- model: a\n  spread: 1", "f, line 3: models[0].spread: is '1'; write true or false"),
            ("models:\n- model: a\n  min: 1\n  spread: true", "f, line 4: models[0].spread: and min_replicas/max_re"),
            ("models:\n- model: a\n  min: 2\n  max: 1", "f, line 3: models[0].min: must be <= max_replicas"),
            ("models:\n- model: a\n  idle: soon", "f, line 3: models[0].idle: is 'soon'; write for example 10m, or"),
            ("models:\n- model: a\n  idle: [1]", "f, line 3: models[0].idle: is a list; write for example 10m"),
            ("models:\n- model: a\n  nodes: w1", "f, line 3: models[0].nodes: is 'w1', not a list"),
            ("models:\n- model: a\n  labels: {n: 2}", "f, line 3: models[0].labels.n: is 2, which YAML takes for no"),
            ("models:\n- model: a\n- model: a", "f, line 3: models[1].model: 'a' is there twice"),
            ("models:\n- model: a\n  replicas: 2", "f, line 3: models[0]: has no field 'replicas'; it may have model,"),
        ],
    )
    def test_models_that_are_wrong_are_refused_by_line_and_field(self, text: str, complaint: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            FleetFile("f", text).declared()
        assert refused.value.message.startswith(complaint)

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("", "f: is empty; write `rules: []` if the fleet shall have none"),
            ("rules: [", "f: is not YAML: did not find expected node content in line 2"),
            ("- backend: echo", "f, line 1: the document: is a list, not a mapping"),
            ("rule: []", "f, line 1: the document: has no field 'rule'; it may have rules, models"),
            ("{}", "f, line 1: rules: is missing, and so is models; one of them is needed"),
            ("rules:", "f, line 1: rules: is empty, not a list"),
            ("rules: echo", "f, line 1: rules: is 'echo', not a list"),
            ("rules:\n- echo", "f, line 2: rules[0]: is 'echo', not a mapping"),
            ("rules:\n- name: x", "f, line 2: rules[0].backend: is missing"),
            ("rules:\n- backend:", "f, line 2: rules[0].backend: is empty, not a text"),
            ("rules:\n- backend: ''", "f, line 2: rules[0].backend: is empty"),
            ("rules:\n- backend: [a]", "f, line 2: rules[0].backend: is a list, not a text"),
            ("rules:\n- backend: a\n  version: '2'", "f, line 3: rules[0]: has no field 'version'"),
            ("rules:\n- backend: a\n  backend: b", "f, line 3: rules[0]: has 'backend' twice"),
            ("rules:\n- backend: 12", 'f, line 2: rules[0].backend: is 12, which YAML takes for no text; write "12"'),
            ("rules:\n- backend: a\n  labels: {on: a}", "f, line 3: a key of rules[0].labels: is on, which YAML takes"),
            (
                "rules:\n- backend: a\n  labels:\n    n: 2",
                'f, line 4: rules[0].labels.n: is 2, which YAML takes for no text; write "2"',
            ),
            ("rules:\n- backend: a\n  labels: [a=b]", "f, line 3: rules[0].labels: is a list, not a mapping"),
            ("rules:\n- backend: a\n  name: a b", "f, line 3: rules[0].name: 'a b' is no name"),
            ("rules:\n- backend: a\n  alias: b", "f, line 3: rules[0].alias: is for uris"),
            (
                "rules:\n- backend: a\n- backend: g@a",
                "f, line 3: rules[1].name: 'a' is the name of the rule in line 2 already",
            ),
            (
                "rules:\n- {name: x, backend: a, uri: 'oci://1'}\n- {name: y, backend: a, uri: 'oci://2'}",
                "f: x and y want a from different places",
            ),
            ("rules: []\n---\nrules: []", "f: holds more than one document"),
        ],
    )
    def test_that_is_wrong_is_refused_by_line_and_field(self, text: str, complaint: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            FleetFile("f", text).declared()
        assert refused.value.message.startswith(complaint)

    def test_that_is_not_there_or_no_text_is_told(self, corral: Any, tmp_path: Path) -> None:
        missing = corral("backends", "apply", "-f", str(tmp_path / "no.yaml"))
        assert (missing.code, "no.yaml: cannot be read: No such file" in missing.err) == (ExitCode.USAGE, True)
        (tmp_path / "bad.yaml").write_bytes(b"\xff")
        assert "is not UTF-8 text" in corral("backends", "apply", "-f", str(tmp_path / "bad.yaml")).err
        (tmp_path / "large.yaml").write_bytes(b"#" * (1024 * 1024 + 1))
        assert "is larger than 1024 KiB" in corral("backends", "apply", "-f", str(tmp_path / "large.yaml")).err
        assert "cannot be read: Is a directory" in corral("backends", "apply", "-f", str(tmp_path)).err


class TestApply:
    def test_adds_to_what_is_there_and_watches_what_follows(
        self, connected: Any, frontend: Any, file: str, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[a_rule("old", labels={"x": "y"}), a_rule("echo")]))
        changes = RuleChanges(added=["mine-in-a"], changed=["echo"], removed=[])
        operation = make_operation(make_target("w1"))
        frontend.tell(PUT, AppliedRules(revision="r2", changes=changes, operations=[operation]))
        frontend.tell_operation(make_operation(make_target("w1", "success", PRESENT)))
        outcome = connected("backends", "apply", "-f", file)
        assert outcome.code == 0
        assert outcome.out.splitlines()[:3] == [
            "+ mine-in-a: mine on zone=a",
            "~ echo: echo on every node",
            "Not in the file, and kept: old. --prune removes them.",
        ]
        assert outcome.out.splitlines()[-1] == "echo: installed on w1."
        sent = frontend.calls[1]
        assert sent.headers["If-Match"] == '"r1"'
        assert [one["name"] for one in sent.body["rules"]] == ["echo", "mine-in-a", "old"]
        assert (sent.body["prune"], sent.body["rules"][2]["labels"]) == ("", {"x": "y"})

    @pytest.mark.parametrize(("flag", "told"), [("--prune", "demanded"), ("--prune=all", "all")])
    def test_with_prune_is_the_whole_set(self, connected: Any, frontend: Any, file: str, flag: str, told: str) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[a_rule("old")]))
        changes = RuleChanges(added=["echo"], changed=[], removed=["old"])
        frontend.tell(PUT, AppliedRules(revision="r2", changes=changes, operations=[]))
        outcome = connected("backends", "apply", flag, "-f", file)
        assert outcome.out.splitlines() == ["+ echo: echo on every node", "- old", "Nothing is left to do."]
        assert [one["name"] for one in frontend.calls[1].body["rules"]] == ["echo", "mine-in-a"]
        assert frontend.calls[1].body["prune"] == told

    def test_again_says_that_nothing_changed(self, connected: Any, frontend: Any, file: str) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        frontend.tell(PUT, AppliedRules(revision="r1", changes=NO_CHANGES, operations=[]))
        outcome = connected("backends", "apply", "-f", file)
        assert outcome.out.splitlines() == ["The rules are as they were.", "Nothing is left to do."]

    def test_does_not_call_it_done_when_nobody_knows_a_backend(self, connected: Any, frontend: Any, file: str) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        changes = RuleChanges(added=["echo"], changed=[], removed=[])
        doubts = {"echo": "no gallery has a backend 'ecko'; did you mean echo?"}
        frontend.tell(PUT, AppliedRules(revision="r2", changes=changes, operations=[], doubts=doubts))
        outcome = connected("backends", "apply", "-f", file)
        assert (outcome.code, outcome.out.splitlines()) == (2, ["+ echo: echo on every node"])
        assert outcome.err == "warning: echo: no gallery has a backend 'ecko'; did you mean echo?\n"
        assert connected("backends", "apply", "-f", file, "--json").json()["doubts"] == doubts

    def test_looks_again_when_somebody_else_was_faster(self, connected: Any, frontend: Any, file: str) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        refusal = {"error": {"code": "precondition_failed", "message": "the fleet rules have the revision r9 by now"}}
        frontend.tell(PUT, refusal, 412)
        outcome = connected("backends", "apply", "-f", file)
        assert outcome.code == ExitCode.FAILED
        assert "the revision r9 by now" in outcome.err
        assert [one.method for one in frontend.calls] == ["GET", "PUT"] * 5

    def test_asks_again_when_the_answer_was_lost(self, connected: Any, frontend: Any, file: str) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        frontend.tell(PUT, {"error": {"message": "the database did not answer"}}, 503)
        assert connected("backends", "apply", "-f", file).code == ExitCode.UNAVAILABLE
        assert [one.method for one in frontend.calls] == ["GET", "PUT"] * 5

    def test_ends_as_what_follows_ends(
        self, connected: Any, frontend: Any, file: str, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        blocked = make_operation(make_target("w1", "blocked", message="disk full"), make_target("w2", "success"))
        frontend.tell(PUT, AppliedRules(revision="r1", changes=NO_CHANGES, operations=[blocked]))
        frontend.tell_operation(blocked)
        failed = connected("backends", "apply", "-f", file)
        assert (failed.code, "w1: blocked, disk full" in failed.out) == (ExitCode.FAILED, True)
        running = make_operation(make_target("w1"))
        frontend.tell(PUT, AppliedRules(revision="r1", changes=NO_CHANGES, operations=[running]))
        frontend.tell_operation(running)
        assert connected("backends", "apply", "-f", file, "--within", "0s").code == ExitCode.STILL_RUNNING
        assert connected("backends", "apply", "-f", file, "--no-wait").code == ExitCode.OK

    def test_for_machines_is_one_document(
        self, connected: Any, frontend: Any, file: str, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        frontend.tell(
            PUT, AppliedRules(revision="r2", changes=NO_CHANGES, operations=[make_operation(make_target("w1"))])
        )
        frontend.tell_operation(make_operation(make_target("w1", "success")))
        told = connected("backends", "apply", "-f", file, "--json").json()
        assert (told["revision"], [one["state"] for one in told["operations"]]) == ("r2", ["done"])

    def test_reads_standard_input(self, connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(FLEET.encode())))
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        frontend.tell(PUT, AppliedRules(revision="r1", changes=NO_CHANGES, operations=[]))
        assert connected("backends", "apply", "-f", "-").code == 0
        assert [one["name"] for one in frontend.calls[1].body["rules"]] == ["echo", "mine-in-a"]


class TestDryRun:
    PLAN = RulesPlan(
        changes=RuleChanges(added=["echo"], changed=[], removed=["old"]),
        acts=[
            PlannedActView(
                verb="install",
                backend="echo",
                rule="echo",
                nodes=[
                    PlannedView(node_id="1", node_name="w1", node_status="healthy", backend="cpu-echo"),
                    PlannedView(node_id="2", node_name="w2", node_status="healthy", backend="echo", blocked="no build"),
                ],
            ),
            PlannedActView(
                verb="delete",
                backend="gone",
                rule="",
                nodes=[PlannedView(node_id="1", node_name="w1", node_status="offline", backend="gone")],
            ),
        ],
        unmet=[UnmetView(rule="echo", node_name="w3", status="error", operation="0123abcd-1", message="disk full")],
    )

    def test_shows_nodes_and_what_is_blocked_and_changes_nothing(
        self, connected: Any, frontend: Any, file: str
    ) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[a_rule("old")]))
        frontend.tell(PLAN, self.PLAN)
        outcome = connected("backends", "apply", "-f", file, "--dry-run", "--prune")
        words = (" ".join(line.split()) for line in outcome.out.splitlines() if line)
        lines = [line.replace(" – ", " ") for line in words if not line.startswith("NODE")]
        assert (outcome.code, lines) == (
            0,
            [
                "+ echo: echo on every node",
                "- old",
                "install echo because of echo:",
                "w1 Healthy cpu-echo install",
                "w2 Healthy echo blocked: no build",
                "delete gone:",
                "w1 Offline gone delete when it comes back",
                "under way already:",
                "w3: failed because of echo, operation 0123abcd: disk full",
                "Nothing was changed.",
            ],
        )
        assert [one.method for one in frontend.calls] == ["GET", "POST"]

    def test_for_machines_is_the_plan(self, connected: Any, frontend: Any, file: str) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        frontend.tell(PLAN, self.PLAN)
        told = connected("backends", "apply", "-f", file, "--dry-run", "--json").json()
        assert [one["verb"] for one in told["acts"]] == ["install", "delete"]

    def test_of_what_is_so_already_says_so(self, connected: Any, frontend: Any, file: str) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        frontend.tell(PLAN, RulesPlan(changes=NO_CHANGES, acts=[], unmet=[]))
        assert connected("backends", "apply", "-f", file, "--dry-run").out == "Nothing would change.\n"


class TestRules:
    def test_are_listed_with_how_far_they_are(self, connected: Any, frontend: Any) -> None:
        bad = a_rule("b", labels={"zone": "a"}, counts={"blocked": 1, "success": 3}, unmet={"w4": "disk full"})
        frontend.tell(GET, RuleSetView(revision="r1", items=[a_rule("a", counts={}), bad]))
        header, first, second, problem = connected("backends", "rules", "list").out.splitlines()
        assert header.split() == ["NAME", "BACKEND", "ON", "NODES", "MADE", "FROM"]
        assert first.startswith("a     echo     every node  none")
        assert second.startswith("b     echo     zone=a      1 blocked, 3 done")
        assert problem == "b: w4: disk full"
        frontend.tell(GET, RuleSetView(revision="r1", items=[a_rule("a", doubt="no gallery has it")]))
        assert connected("backends", "rules", "list").out.splitlines()[-1] == "a: no gallery has it"
        frontend.tell(GET, RuleSetView(revision="r1", items=[a_rule("a", counts={}), bad]))
        assert connected("backends", "rules", "list", "--json").json()["revision"] == "r1"

    def test_of_which_there_are_none(self, connected: Any, frontend: Any) -> None:
        frontend.tell(GET, RuleSetView(revision="r1", items=[]))
        assert connected("backends", "rules", "list").out.startswith("There are no fleet rules")

    def test_are_deleted_one_by_one(self, connected: Any, frontend: Any) -> None:
        frontend.tell("DELETE /api/v1/fleet-rules/a.b", b"", 204)
        assert connected("backends", "rules", "delete", "a.b").out.startswith("The fleet rule a.b is deleted.")
        missing = {"error": {"code": "not_found", "message": "there is no fleet rule x"}}
        frontend.tell("DELETE /api/v1/fleet-rules/x", missing, 404)
        refused = connected("backends", "rules", "delete", "x")
        assert (refused.code, "there is no fleet rule x" in refused.err) == (ExitCode.FAILED, True)


class TestModelsInTheFile:
    SCHEDULING = "/api/v1/scheduling"

    def a_rule(self, model: str, **fields: Any) -> SchedulingView:
        usual = {
            **NOTHING_SAID,
            "route_policy": "",
            "balance_abs_threshold": 0,
            "balance_rel_threshold": 0.0,
            "min_prefix_match": 0.0,
            "source": "fleet file",
            "created_at": "",
            "updated_at": "",
            "updated_by": "",
        }
        return SchedulingView(**{"model": model, **usual, **fields})

    @pytest.fixture
    def models_file(self, tmp_path: Path) -> str:
        path = tmp_path / "models.yaml"
        path.write_text("models: [{model: a, min: 1}, {model: b, spread: true, labels: {z: x}}]", encoding="utf-8")
        return str(path)

    def test_are_declared_in_one_call(self, connected: Any, frontend: Any, models_file: str) -> None:
        changes = SchedulingChanges(added=["a"], changed=["b"], removed=["c"])
        frontend.tell(f"PUT {self.SCHEDULING}", changes)
        outcome = connected("apply", "-f", models_file, "--prune")
        assert (outcome.code, outcome.out) == (
            0,
            "+ model a: 1 or more on any node\n~ model b: one on every node on z=x\n- model c\n",
        )
        [call] = frontend.calls
        assert call.body == {
            "rules": [
                {**NOTHING_SAID, "model": "a", "min_replicas": 1},
                {**NOTHING_SAID, "model": "b", "spread_all": True, "node_selector": {"z": "x"}},
            ],
            "prune": "demanded",
        }
        assert connected("apply", "-f", models_file, "--json").out.startswith('{\n  "models": {\n    "added": [')

    def test_that_are_as_they_were_are_said_to_be(self, connected: Any, frontend: Any, models_file: str) -> None:
        frontend.tell(f"PUT {self.SCHEDULING}", SchedulingChanges(added=[], changed=[], removed=[]))
        assert connected("apply", "-f", models_file).out == "The rules of the models are as they were.\n"

    def test_a_dry_run_compares_and_changes_nothing(self, connected: Any, frontend: Any, models_file: str) -> None:
        rules = [
            self.a_rule("b", spread_all=True, node_selector={"z": "x"}),
            self.a_rule("c"),
            self.a_rule("d", source="api"),
        ]
        frontend.tell(f"GET {self.SCHEDULING}", SchedulingList(items=rules))
        outcome = connected("apply", "-f", models_file, "--dry-run", "--prune")
        assert outcome.out == "+ model a: 1 or more on any node\n- model c\nNothing was changed.\n"
        every = connected("apply", "-f", models_file, "--dry-run", "--prune=all")
        assert "- model c\n- model d\n" in every.out
        assert {call.method for call in frontend.calls} == {"GET"}

    def test_stand_beside_rules_for_backends(self, connected: Any, frontend: Any, tmp_path: Path) -> None:
        path = tmp_path / "both.yaml"
        path.write_text("rules: []\nmodels: [{model: a}]", encoding="utf-8")
        frontend.tell(f"PUT {self.SCHEDULING}", SchedulingChanges(added=["a"], changed=[], removed=[]))
        frontend.tell(GET, RuleSetView(revision="r", items=[]))
        frontend.tell(PUT, AppliedRules(revision="r", changes=NO_CHANGES, operations=[]))
        outcome = connected("backends", "apply", "-f", str(path))
        assert outcome.out == (
            "+ model a: when asked on any node\nThe rules are as they were.\nNothing is left to do.\n"
        )
        assert '"models": {' in connected("backends", "apply", "-f", str(path), "--json").out
