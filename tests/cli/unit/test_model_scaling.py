"""`corral models scale`, `pin`, `load`, `unload` and `rules`: what is sent, and what is said."""

from typing import Any

import pytest
from msgspec import structs

from corral.cli.models import scaling
from corral.wire.models import LoadJobView, ModelView
from corral.wire.plans import ActPlanView
from corral.wire.refusals import Acknowledged
from corral.wire.replicas import ReplicaView
from corral.wire.scheduling import SchedulingList, SchedulingView
from corral.wire.view import Loading

RULE, RULES = "/api/v1/scheduling/llama", "GET /api/v1/scheduling"
MODEL = "GET /api/v1/models/llama"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_LOOK_SECONDS", 0)


def a_rule(**fields: Any) -> SchedulingView:
    return SchedulingView(
        **{
            "model": "llama",
            "node_selector": {},
            "pinned_nodes": [],
            "min_replicas": 0,
            "max_replicas": 0,
            "spread_all": False,
            "idle_seconds": None,
            "route_policy": "",
            "balance_abs_threshold": 0,
            "balance_rel_threshold": 0.0,
            "min_prefix_match": 0.0,
            "source": "api",
            "created_at": "2026-03-01T12:00:00Z",
            "updated_at": "2026-03-01T12:00:00Z",
            "updated_by": "admin",
            **fields,
        }
    )


def a_model(state: str, *nodes: str, message: str = "") -> ModelView:
    replicas = [
        ReplicaView(
            id=node,
            node_id=f"id-{node}",
            node=node,
            index=0,
            state="loaded",
            revision="",
            address="",
            url="",
            created_at="",
            changed_at="",
        )
        for node in nodes
    ]
    job = LoadJobView(state=state, failures=1, message=message, retry_at="") if message else None
    return ModelView(
        name="llama", backend="b", model="m", revision="", source="", state=state, replicas=replicas, load_job=job
    )


COUNTS = {"min_replicas": 0, "max_replicas": 0, "spread_all": False}


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["2"], {**COUNTS, "min_replicas": 2, "max_replicas": 2}),
        (["--min", "1", "--max", "4"], {"min_replicas": 1, "max_replicas": 4, "spread_all": False}),
        (["--max", "4"], {"max_replicas": 4, "spread_all": False}),
        (["--spread"], {**COUNTS, "spread_all": True}),
        (["--spread", "--selector", "a=b"], {**COUNTS, "spread_all": True, "node_selector": {"a": "b"}}),
        (["--auto"], {**COUNTS, "idle_seconds": None}),
        (["--idle", "10m"], {"idle_seconds": 600}),
        (["--idle", "never"], {"idle_seconds": 0}),
        (["--idle", "default"], {"idle_seconds": None}),
        (["--anywhere"], {"node_selector": {}, "pinned_nodes": []}),
    ],
)
def test_scale_sends_what_was_meant(connected: Any, frontend: Any, arguments: list[str], body: object) -> None:
    frontend.tell(f"PATCH {RULE}", a_rule(min_replicas=1))
    outcome = connected("models", "scale", "llama", *arguments)
    assert outcome.code == 0, outcome.err
    assert frontend.calls[0].body == body


def test_scale_says_what_holds_now(connected: Any, frontend: Any) -> None:
    rule = a_rule(
        min_replicas=1,
        max_replicas=3,
        node_selector={"zone": "a"},
        pinned_nodes=["id"],
        pinned_names=["gpu-1"],
        idle_seconds=600,
        loaded=1,
        loading=2,
        problem="one more fits nowhere: w1 is full",
    )
    frontend.tell(f"PATCH {RULE}", rule)
    outcome = connected("models", "scale", "llama", "--min", "1", "--max", "3")
    assert outcome.out == ("llama: 1 to 3, on zone=a, gpu-1; unloaded when idle: 10m 0s.\n1 loaded, 2 being loaded.\n")
    assert outcome.err == "warning: one more fits nowhere: w1 is full\n"


def test_scale_without_arguments_shows_the_rule(connected: Any, frontend: Any) -> None:
    frontend.tell(f"GET {RULE}", a_rule(spread_all=True))
    assert connected("models", "scale", "llama").out == (
        "llama: one on every node, on any node.\n0 loaded, 0 being loaded.\n"
    )


def test_scale_to_nothing_unloads_now_and_leaves_no_rule(connected: Any, frontend: Any) -> None:
    frontend.tell(f"PATCH {RULE}", a_rule())
    frontend.tell(f"DELETE {RULE}", b"", 204)
    frontend.tell("POST /api/v1/model-unloads", Acknowledged(message="model unloaded"))
    outcome = connected("models", "scale", "llama", "0")
    assert outcome.code == 0, outcome.err
    assert [(call.method, call.path) for call in frontend.calls] == [
        ("PATCH", RULE),
        ("DELETE", RULE),
        ("POST", "/api/v1/model-unloads"),
        ("GET", RULE),
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["2", "--min", "1"], "exclude each other"),
        (["--spread", "--auto"], "exclude each other"),
        (["--selector", "a"], "--selector: 'a' is no label; write KEY=VALUE"),
        (["--selector", "a=b", "--anywhere"], "exclude each other"),
        (["--idle", "soon"], "'soon' is not a duration"),
        (["--idle", "0s"], "is no time"),
        (["-1"], "-1"),
        (["many"], "many"),
    ],
)
def test_scale_refuses_contradictions(connected: Any, frontend: Any, arguments: list[str], complaint: str) -> None:
    outcome = connected("models", "scale", "llama", *arguments)
    assert outcome.code != 0
    assert complaint in outcome.err
    assert frontend.calls == []


def test_pin_names_nodes_by_their_ids_and_unpin_takes_them_away(connected: Any, frontend: Any, make_node: Any) -> None:
    node = make_node("gpu-1", "1" * 36)
    frontend.tell_nodes(node)
    frontend.tell(f"PATCH {RULE}", a_rule(pinned_nodes=[node.id], pinned_names=["gpu-1"]))
    assert "on gpu-1" in connected("models", "pin", "llama", "--node", "gpu-1").out
    assert frontend.calls[-1].body == {"pinned_nodes": [node.id]}
    frontend.tell(f"PATCH {RULE}", a_rule(min_replicas=1))
    assert connected("models", "unpin", "llama").code == 0
    assert frontend.calls[-1].body == {"pinned_nodes": []}


def test_pin_without_a_node_leads_to_keep(connected: Any) -> None:
    assert "`corral models keep`" in connected("models", "pin", "llama").err


def test_the_rules_are_a_table(connected: Any, frontend: Any) -> None:
    rules = [a_rule(min_replicas=2, max_replicas=2, loaded=1, problem="no room"), a_rule(model="z", spread_all=True)]
    frontend.tell(RULES, SchedulingList(items=rules))
    assert connected("models", "rules").out == (
        "MODEL  REPLICAS           LOADED  ON        IDLE  FROM          PROBLEM\n"
        "llama  exactly 2               1  any node  –     api by admin  no room\n"
        "z      one on every node       0  any node  –     api by admin  –\n"
    )
    frontend.tell(RULES, SchedulingList(items=[]))
    assert connected("models", "rules").out.startswith("No model has a rule")


class TestLoad:
    @pytest.fixture(autouse=True)
    def accepted(self, frontend: Any) -> None:
        frontend.tell("POST /api/v1/model-loads", Loading(model="llama", state="pending"), 202)

    def test_waits_until_it_is_loaded(self, connected: Any, frontend: Any) -> None:
        frontend.tell_in_turn(MODEL, a_model("loading"), a_model("loading"), a_model("loaded", "w1"))
        outcome = connected("models", "load", "llama")
        assert (outcome.code, outcome.out) == (0, "llama is loaded on w1.\n")

    def test_waits_for_the_node_that_was_named(self, connected: Any, frontend: Any, make_node: Any) -> None:
        node = make_node("w2", "2" * 36)
        frontend.tell_nodes(node)
        there = a_model("loaded", "w1", "w2")
        there.replicas[1].node_id = node.id
        frontend.tell_in_turn(MODEL, a_model("loaded", "w1"), there)
        assert connected("models", "load", "llama", "--node", "w2").out == "llama is loaded on w1, w2.\n"
        assert frontend.calls[1].body == {"name": "llama", "node": node.id}

    def test_a_failure_is_told_with_its_reason(self, connected: Any, frontend: Any) -> None:
        frontend.tell(MODEL, a_model("failed", message="w1: no such file"))
        outcome = connected("models", "load", "llama")
        assert (outcome.code, outcome.err) == (1, "error: llama could not be loaded: w1: no such file\n")

    def test_a_load_that_went_elsewhere_is_not_waited_for(self, connected: Any, frontend: Any, make_node: Any) -> None:
        frontend.tell_nodes(make_node("w2", "2" * 36))
        open_job = LoadJobView(state="loading", failures=0, retry_at="")
        under_way = structs.replace(a_model("loaded", "w1"), load_job=open_job)
        frontend.tell_in_turn(MODEL, under_way, under_way, under_way, a_model("loaded", "w1"))
        outcome = connected("models", "load", "llama", "--node", "w2")
        assert (outcome.code, outcome.err) == (1, "error: llama was not loaded on w2: it is loaded on w1\n")
        frontend.tell_in_turn(MODEL, a_model("cold"))
        outcome = connected("models", "load", "llama", "--node", "w2")
        assert (outcome.code, outcome.err) == (1, "error: llama was not loaded on w2: nothing loads it any more\n")
        assert connected("models", "load", "llama", "--node", "w2", "--json").code == 1

    def test_a_load_that_failed_beside_others_is_told_with_its_reason(
        self, connected: Any, frontend: Any, make_node: Any
    ) -> None:
        frontend.tell_nodes(make_node("w2", "2" * 36))
        failed = LoadJobView(state="failed", failures=1, retry_at="", message="w2: no such file")
        frontend.tell(MODEL, structs.replace(a_model("loaded", "w1"), load_job=failed))
        outcome = connected("models", "load", "llama", "--node", "w2")
        assert (outcome.code, outcome.err) == (1, "error: llama could not be loaded: w2: no such file\n")

    def test_need_not_be_waited_for(self, connected: Any, frontend: Any) -> None:
        frontend.tell(MODEL, a_model("loading"))
        outcome = connected("models", "load", "llama", "--no-wait")
        assert (outcome.code, outcome.out) == (2, "llama is being loaded (pending).\n")


def test_unload_says_where(connected: Any, frontend: Any, make_node: Any) -> None:
    frontend.tell_nodes(make_node("w1", "1" * 36))
    frontend.tell("POST /api/v1/model-unloads", Acknowledged(message="model unloaded"))
    assert connected("models", "unload", "llama").out == "llama is unloaded.\n"
    assert connected("models", "unload", "llama", "--node", "w1").out == "llama is unloaded on w1.\n"
    assert connected("models", "unload", "llama", "--json").out == '{\n  "message": "model unloaded"\n}\n'


@pytest.mark.parametrize(
    ("words", "rules", "remove", "unload"),
    [
        (("2",), [{"min_replicas": 2, "max_replicas": 2, "pinned_nodes": ["n1"]}], [], []),
        (("--anywhere", "--auto"), [], ["llama"], []),
        (("0", "--anywhere"), [], ["llama"], ["llama"]),
        (("--anywhere", "--idle", "10m"), [{"idle_seconds": 600, "pinned_nodes": []}], [], []),
    ],
)
def test_a_plan_is_of_the_whole_rule_and_changes_nothing(
    connected: Any, frontend: Any, words: tuple[str, ...], rules: list[Any], remove: list[str], unload: list[str]
) -> None:
    frontend.tell(f"GET {RULE}", a_rule(pinned_nodes=["n1"]))
    frontend.tell("POST /api/v1/scheduling/plan", ActPlanView(hash="h", text="llama exactly 2: 1 added.\nAdded: llama"))
    outcome = connected("models", "scale", "llama", *words, "--plan")
    assert (outcome.code, outcome.out) == (0, "llama exactly 2: 1 added.\nAdded: llama\n")
    [_, asked] = frontend.calls
    assert (asked.body["remove"], asked.body["unload"]) == (remove, unload)
    assert [{**rule, **stated} for rule, stated in zip(asked.body["rules"], rules, strict=True)] == asked.body["rules"]


def test_a_plan_for_a_model_without_a_rule_has_only_what_was_said(connected: Any, frontend: Any) -> None:
    frontend.tell(f"GET {RULE}", {"error": {"code": "not_found", "message": "no rule"}}, 404)
    frontend.tell("POST /api/v1/scheduling/plan", ActPlanView(hash="h", text="x"))
    assert connected("models", "scale", "llama", "--spread", "--plan", "--json").json()["hash"] == "h"
    asked = frontend.calls[-1].body["rules"]
    assert asked == [{"model": "llama", "min_replicas": 0, "max_replicas": 0, "spread_all": True}]
