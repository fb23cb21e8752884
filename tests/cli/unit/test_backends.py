"""`corral backends`: what is listed, what is asked for, and what is refused before any call."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec
import pytest

from corral.base.errors import InvalidInput, PeerUnavailable
from corral.base.retry import Backoff
from corral.cli.backends import commands
from corral.cli.backends.commands import external, start
from corral.cli.backends.tables import rows
from corral.cli.names import read_labels
from corral.cli.operations import watch as operation_watch
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.wire.fleet_rules import DriftFixView, DriftList, DriftView
from corral.wire.galleries import (
    BackendUpgradeView,
    FleetBackends,
    FleetBackendView,
    NodeBackendView,
    NodeUpgradeView,
    UpgradesView,
)
from corral.wire.operation_views import OperationAsk, Plan, PlanCounts, PlannedView
from corral.wire.plans import EndingReplicaView

ABSENT = because(ReasonCode.PROVEN, rung="absent")
PRESENT = because(ReasonCode.PROVEN, rung="present")
RENEWED = because(ReasonCode.PROVEN, rung="renewed")

ID = "0123abcd-0000-4000-8000-000000000000"
START = "POST /api/v1/operations"
ONE = f"GET /api/v1/operations/{ID}"
SHORT_A, SHORT_B = (["sha256:" + letter * 12] for letter in "ab")
ONE_NODE = "11111111-0000-4000-8000-000000000000"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_watch, "PAUSES", Backoff(first=timedelta(0), cap=timedelta(0)))
    monkeypatch.setattr(operation_watch, "_PAUSE_SECONDS", 0)


def on(name: str, **changes: Any) -> NodeBackendView:
    made = NodeBackendView(
        node_id=f"id-of-{name}",
        node_name=name,
        node_status="healthy",
        is_system=False,
        installed_at="2026-03-01T12:00:00Z",
        version="1.0",
        uri="oci://r/echo",
        digest="sha256:" + "a" * 64,
        seen_at="2026-03-01T12:00:00Z",
    )
    return msgspec.structs.replace(made, **changes)


def backend(name: str, *nodes: NodeBackendView, is_meta: bool = False) -> FleetBackendView:
    return FleetBackendView(name=name, is_meta=is_meta, nodes=list(nodes))


class TestList:
    def test_nodes_with_the_same_build_share_a_row(self, connected: Any, frontend: Any) -> None:
        old = on("w3", version="0.9", node_status="offline")
        found = FleetBackends(items=[backend("echo", old, on("w1"), on("w2"))], unheard=["w4"])
        frontend.tell("GET /api/v1/backends", found)
        outcome = connected("backends", "list")
        assert outcome.code == 0
        header, first, second, unheard = outcome.out.splitlines()
        assert header.split() == ["NAME", "VERSION", "NODES", "INSTALLED", "TOLD", "DIGEST", "FROM"]
        assert first.startswith("echo  1.0      w1, w2 ")
        assert second.startswith("echo  0.9      w3 (offline) (differs)")
        assert unheard == "Not heard yet what they have: w4. With --refresh they are asked now."

    def test_of_equally_many_the_newest_is_right(self) -> None:
        newer = on("w2", version="2.0", installed_at="2026-03-02T12:00:00Z")
        assert [row.differs for row in rows(FleetBackends(items=[backend("a", on("w1"), newer)]))] == [False, True]

    def test_a_node_that_tells_no_digest_has_a_row_of_its_own_and_does_not_differ(self) -> None:
        silent = on("w3", digest="")
        found = rows(FleetBackends(items=[backend("a", on("w1"), on("w2"), silent)]))
        assert [([node.node_name for node in row.nodes], row.differs) for row in found] == [
            (["w1", "w2"], False),
            (["w3"], False),
        ]

    def test_may_ask_now_and_be_of_some_nodes(self, connected: Any, frontend: Any, make_node: Any) -> None:
        frontend.tell_nodes(make_node("w1", "id-of-w1"))
        frontend.tell("GET /api/v1/backends?refresh=1", FleetBackends(items=[backend("a", on("w1"), on("w2"))]))
        found = connected("backends", "list", "--node", "w1", "--refresh", "--json").json()
        assert [[node["node_name"] for node in one["nodes"]] for one in found["items"]] == [["w1"]]

    def test_of_nothing_says_what_to_do(self, connected: Any, frontend: Any) -> None:
        frontend.tell("GET /api/v1/backends", FleetBackends(items=[]))
        assert connected("backends", "list").out.startswith("No backend is installed")

    def test_of_nodes_that_said_nothing_yet_does_not_pretend_to_know(self, connected: Any, frontend: Any) -> None:
        frontend.tell("GET /api/v1/backends", FleetBackends(items=[], unheard=["w1", "w2"]))
        assert connected("backends", "list").out.startswith("Not heard yet what they have: w1, w2.")

    def test_names_of_strangers_cannot_colour_the_terminal(self, connected: Any, frontend: Any) -> None:
        frontend.tell("GET /api/v1/backends", FleetBackends(items=[backend("[red]\x1b[31mx", on("[b]w"))]))
        out = connected("backends", "list").out
        assert "\x1b" not in out
        assert "[red]\ufffd[31mx" in out
        assert "[b]w" in out


def upgrade_of(name: str, *nodes: NodeUpgradeView, **changes: Any) -> BackendUpgradeView:
    made = BackendUpgradeView(
        name=name,
        needs_upgrade=any(node.freshness == "outdated" or node.differs for node in nodes),
        installed_version="1.0",
        installed_digest="sha256:" + "a" * 64,
        available_version="2.0",
        available_digest="sha256:" + "b" * 64,
        nodes=list(nodes),
    )
    return msgspec.structs.replace(made, **changes)


def standing(
    name: str, freshness: str, *, version: str = "1.0", differs: bool = False, reason: str = ""
) -> NodeUpgradeView:
    return NodeUpgradeView(
        node_id=f"id-of-{name}",
        node_name=name,
        node_status="healthy",
        version=version,
        digest="sha256:" + "a" * 64,
        freshness=freshness,
        reason=reason,
        differs=differs,
    )


class TestOutdated:
    CHECKED = "2026-03-01T12:00:00Z"

    def test_are_told_with_what_is_to_be_had(self, connected: Any, frontend: Any) -> None:
        mixed = upgrade_of(
            "a",
            standing("w1", "outdated"),
            standing("w2", "outdated"),
            standing("w3", "current", version="2.0"),
            standing("w4", "unknown", version="0.9", differs=True, reason="the node reports no digest"),
        )
        items = [mixed, upgrade_of("b", standing("w1", "current"))]
        frontend.tell("GET /api/v1/backends/upgrades", UpgradesView(checked_at=self.CHECKED, items=items))
        outcome = connected("backends", "outdated")
        assert outcome.code == 0
        header, first, second, unknown, hint, asked = outcome.out.splitlines()
        assert header.split() == ["NAME", "STATE", "INSTALLED", "AVAILABLE", "NODES", "FROM"]
        assert first.split() == ["a", "Outdated", "1.0", *SHORT_A, "2.0", *SHORT_B, "w1,", "w2", "–"]
        assert second.split() == ["a", "Differs", "0.9", *SHORT_A, "2.0", *SHORT_B, "w4", "–"]
        assert unknown == "Nobody can tell whether a on w4 is outdated: the node reports no digest."
        assert hint == "`corral backends upgrade NAME` fetches what is offered now."
        assert asked.startswith("Galleries and registries were asked ")
        assert connected("backends", "outdated", "--json").json()["checked_at"] == self.CHECKED

    def test_of_which_nobody_can_tell_are_named_with_their_nodes_beside_others_that_are_known(
        self, connected: Any, frontend: Any
    ) -> None:
        silent = [standing(name, "unknown", reason="the node reports no digest") for name in ("l1", "l2")]
        own = upgrade_of("d", standing("w1", "unknown", reason="nobody offers it"), available_digest="")
        items = [upgrade_of("c", standing("w1", "current"), *silent), own]
        frontend.tell("GET /api/v1/backends/upgrades", UpgradesView(checked_at=self.CHECKED, items=items))
        assert connected("backends", "outdated").out.splitlines()[:4] == [
            "Nothing is known to be outdated.",
            "Nobody can tell whether c on l1, l2 is outdated: the node reports no digest.",
            "Nobody can tell whether d on w1 is outdated: nobody offers it.",
            "`corral backends upgrade NAME` fetches what is offered now.",
        ]
        nodes = connected("backends", "outdated", "--json").json()["items"][0]["nodes"]
        assert [(one["freshness"], one["reason"]) for one in nodes] == [
            ("current", ""),
            *[("unknown", "the node reports no digest")] * 2,
        ]

    def test_are_none_where_all_is_new(self, connected: Any, frontend: Any) -> None:
        items = [upgrade_of("a", standing("w1", "current"))]
        frontend.tell("GET /api/v1/backends/upgrades", UpgradesView(checked_at=self.CHECKED, items=items))
        assert connected("backends", "outdated").out.startswith("Nothing is outdated.\n")

    def test_are_not_known_before_somebody_asked(self, connected: Any, frontend: Any) -> None:
        frontend.tell("GET /api/v1/backends/upgrades", UpgradesView(checked_at=None, items=[]))
        outcome = connected("backends", "outdated")
        assert outcome.code == 69
        assert "were never asked yet" in outcome.out

    def test_may_be_looked_for_now(self, connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commands, "_PAUSE_SECONDS", 0)
        old, new = (UpgradesView(checked_at=at, items=[]) for at in (None, self.CHECKED))
        frontend.tell("POST /api/v1/backends/upgrades/check", old, 202)
        frontend.tell_in_turn("GET /api/v1/backends/upgrades", old, old, new)
        assert connected("backends", "outdated", "--refresh", "--json").json()["checked_at"] == self.CHECKED

    def test_that_could_not_be_asked_now_are_not_up_to_date(
        self, connected: Any, frontend: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(commands, "_PATIENCE_SECONDS", 0)
        seen = UpgradesView(checked_at=self.CHECKED, problem="the galleries could not be read", items=[])
        frontend.tell("POST /api/v1/backends/upgrades/check", seen, 202)
        outcome = connected("backends", "outdated", "--refresh")
        assert outcome.code == 69
        assert "Not up to date: the galleries could not be read." in outcome.out


class TestInstall:
    def test_asks_for_all_nodes_and_waits(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(START, make_operation(make_target("w1")), 202)
        frontend.tell_operation(make_operation(make_target("w1", "success", PRESENT)))
        outcome = connected("backends", "install", "echo")
        assert (outcome.code, outcome.out.splitlines()[-1]) == (0, "echo: installed on w1.")
        posted = frontend.calls[0]
        assert (posted.body["verb"], posted.body["backend"], posted.body["nodes"]) == ("install", "echo", [])
        assert len(posted.headers["Idempotency-Key"]) == 36

    def test_without_waiting_it_ends_when_accepted(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(START, make_operation(make_target("w1")), 202)
        outcome = connected("backends", "install", "echo", "--no-wait")
        assert (outcome.code, outcome.out) == (0, "Operation 0123abcd: install echo on w1.\n")
        assert "corral ops watch 0123abcd" in outcome.err
        assert connected("backends", "install", "echo", "--no-wait", "--json").json()["id"] == ID

    def test_what_is_blocked_everywhere_is_a_failure_also_without_waiting(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(START, make_operation(make_target("w1", "blocked", message="no build for arm64")), 202)
        assert connected("backends", "install", "echo", "--no-wait").code == 1

    def test_from_a_uri_on_chosen_nodes(
        self, connected: Any, frontend: Any, make_node: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell_nodes(make_node("w1", ONE_NODE), make_node("w2", "2222"))
        frontend.tell(START, make_operation(make_target("w1", "success")), 202)
        given = [
            "--uri",
            "oci://r/mine:1",
            "--name",
            "mine",
            "--alias",
            "m",
            "--node",
            "w1",
            "--node",
            "1111",
            "--force",
        ]
        assert connected("backends", "install", *given).code == 0
        assert frontend.calls[-1].body == {
            "verb": "install",
            "backend": "",
            "uri": "oci://r/mine:1",
            "name": "mine",
            "alias": "m",
            "galleries": "",
            "force": True,
            "nodes": [ONE_NODE],
            "labels": {},
        }

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ([], "Name the backend to install"),
            (["echo", "--name", "x"], "is for uris"),
            (["echo", "--alias", "x"], "is for uris"),
            (["--uri", "oci://r/x"], "is needed with a uri"),
            (["oci://r/x"], "is needed with a uri"),
            (["echo", "--label", "zone"], "write KEY=VALUE"),
            (["echo", "--label", "=a"], "write KEY=VALUE"),
            (["echo", "--label", "a=1", "--label", "a=2"], "at once"),
            (["echo", "--label", "a=1", "--node", "w1"], "cannot be combined with --node"),
            (["echo", "--within", "soon"], "is not a duration"),
        ],
    )
    def test_what_makes_no_sense_is_refused_before_any_call(
        self, connected: Any, frontend: Any, arguments: list[str], complaint: str
    ) -> None:
        outcome = connected("backends", "install", *arguments)
        assert outcome.code == 64
        assert complaint in outcome.err
        assert frontend.calls == []

    def test_a_selector_that_matches_nothing_is_an_error(self, connected: Any, frontend: Any) -> None:
        frontend.tell(START, {"error": {"code": "conflict", "message": "no node has the labels a=1"}}, 409)
        outcome = connected("backends", "install", "echo", "--label", "a=1")
        assert (outcome.code, outcome.err) == (1, "error: no node has the labels a=1\n")
        assert frontend.calls[0].body["labels"] == {"a": "1"}

    def test_a_lost_answer_is_asked_for_again_as_the_same_call(self, make_operation: Any) -> None:
        keys: list[str] = []

        class Flaky:
            def post(self, path: str, answer: object, body: object, *, headers: dict[str, str]) -> Any:
                keys.append(headers["Idempotency-Key"])
                if len(keys) == 1:
                    raise PeerUnavailable("the line was cut")
                return make_operation()

        client: Any = Flaky()
        assert start(client, OperationAsk(verb="install", backend="echo")).id == ID
        assert len(keys) == 2
        assert len(set(keys)) == 1


class TestUpgrade:
    def test_each_backend_is_an_operation_and_the_worst_counts(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        done = make_operation(make_target("w1", "success", RENEWED), verb="upgrade")
        frontend.tell(START, done, 202)
        outcome = connected("backends", "upgrade", "echo", "other", "echo", "--json")
        assert (outcome.code, len(outcome.json()["items"])) == (0, 2)
        assert [call.body["backend"] for call in frontend.calls] == ["echo", "other"]

    def test_all_means_what_can_be_upgraded(
        self, connected: Any, frontend: Any, make_node: Any, make_operation: Any, make_target: Any
    ) -> None:
        system = on("w1", is_system=True)
        items = [
            backend("a", on("w1")),
            backend("m", on("w1"), is_meta=True),
            backend("s", system),
            backend("z", on("w2")),
        ]
        frontend.tell("GET /api/v1/backends", FleetBackends(items=items))
        frontend.tell(START, make_operation(make_target("w1", "success")), 202)
        frontend.tell_nodes(make_node("w1", "id-of-w1"))
        assert connected("backends", "upgrade", "--all", "--label", "zone=a").code == 0
        assert [call.body["backend"] for call in frontend.calls if call.method == "POST"] == ["a"]

    def test_one_refusal_does_not_hinder_the_others(
        self, connected: Any, frontend: Any, make_operation: Any, make_target: Any
    ) -> None:
        frontend.tell(START, {"error": {"code": "conflict", "message": "not installed on any node"}}, 409)
        outcome = connected("backends", "upgrade", "a", "b")
        assert outcome.code == 1
        assert outcome.err.splitlines() == [
            "error: a: not installed on any node",
            "error: b: not installed on any node",
        ]

    def test_all_of_nothing_is_said(self, connected: Any, frontend: Any) -> None:
        frontend.tell("GET /api/v1/backends", FleetBackends(items=[]))
        outcome = connected("backends", "upgrade", "--all")
        assert (outcome.code, outcome.out) == (0, "No backend is installed that could be upgraded.\n")
        assert connected("backends", "upgrade", "--all", "--json").json() == {"items": []}

    def test_names_and_all_exclude_each_other(self, connected: Any) -> None:
        assert connected("backends", "upgrade", "echo", "--all").code == 64
        assert connected("backends", "upgrade").code == 64


INSTALLED = FleetBackends(items=[backend("echo")])


def test_a_delete_is_an_operation_too(connected: Any, frontend: Any, make_operation: Any, make_target: Any) -> None:
    gone = make_operation(make_target("w1", "success", ABSENT), verb="delete")
    frontend.tell(START, gone, 202)
    frontend.tell("GET /api/v1/backends", INSTALLED)
    outcome = connected("backends", "delete", "echo")
    assert (outcome.code, outcome.out.splitlines()[-1], outcome.err) == (0, "echo: deleted on w1.", "")
    assert frontend.calls[1].body["verb"] == "delete"


@pytest.mark.parametrize(
    ("flags", "ends", "agrees", "is_asked", "code"),
    [
        ([], True, True, True, 0),
        ([], True, False, True, 1),
        ([], False, False, False, 0),
        (["--yes"], True, False, False, 0),
    ],
)
def test_a_delete_asks_on_a_terminal_where_replicas_end(
    connected: Any,
    frontend: Any,
    make_operation: Any,
    make_target: Any,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    ends: bool,
    agrees: bool,
    is_asked: bool,
    code: int,
) -> None:
    ending = EndingReplicaView(node_id="1", node="w1", model="small", in_flight=2)
    item = PlannedView(node_id="1", node_name="w1", node_status="healthy", backend="echo", download_bytes=0)
    frontend.tell("GET /api/v1/backends", INSTALLED)
    plan = Plan(items=[item], counts=PlanCounts(fits=1), replicas_end=[ending] if ends else [])
    frontend.tell("POST /api/v1/operations/plan", plan)
    frontend.tell(START, make_operation(make_target("w1", "success", ABSENT), verb="delete"), 202)
    questions: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda question, **_: questions.append(question) or agrees)

    outcome = connected("backends", "delete", "echo", *flags)

    assert (outcome.code, questions) == (code, ["Delete echo?"] if is_asked else [])
    assert ("Ends: small on w1, 2 requests under way." in outcome.err) is is_asked
    assert any(call.path == "/api/v1/operations" for call in frontend.calls) is (code == 0)


@pytest.mark.parametrize(
    ("name", "hint"), [("ehco", "did you mean echo?"), ("vllm", "`corral backends list` shows what there is")]
)
def test_a_delete_of_what_no_node_has_says_so(
    connected: Any, frontend: Any, make_operation: Any, make_target: Any, name: str, hint: str
) -> None:
    frontend.tell(START, make_operation(make_target("w1", "success", ABSENT), verb="delete"), 202)
    frontend.tell("GET /api/v1/backends", INSTALLED)
    outcome = connected("backends", "delete", name)
    assert (outcome.code, outcome.err) == (0, f"warning: no node is known to have {name}; {hint}\n")


def test_a_plan_says_what_would_happen_where(connected: Any, frontend: Any) -> None:
    items = [
        PlannedView(node_id="1", node_name="w1", node_status="healthy", backend="echo", download_bytes=3 * 1024**2),
        PlannedView(node_id="2", node_name="w2", node_status="offline", backend="echo"),
        PlannedView(node_id="3", node_name="w3", node_status="healthy", backend="echo", blocked="no build for arm64"),
        PlannedView(node_id="4", node_name="w4", node_status="healthy", backend="echo", unknown="nobody knows"),
        PlannedView(node_id="5", node_name="w5", node_status="healthy", backend="echo", reached=True, download_bytes=0),
    ]
    frontend.tell("POST /api/v1/operations/plan", Plan(items=items))
    outcome = connected("backends", "plan", "install", "echo")
    assert outcome.code == 0
    header, *lines, whole = outcome.out.splitlines()
    assert whole == "5 nodes: 2 would install, 1 blocked, 1 unknown, 1 already as wanted; 3.0 MiB to fetch."
    assert header.split(None, 4) == ["NODE", "STATUS", "BACKEND", "BYTES", "WHAT WOULD HAPPEN"]
    assert [line.partition("echo")[2].strip() for line in lines] == [
        "3.0 MiB  install",
        "–        install when it comes back",
        "–        blocked: no build for arm64",
        "–        install; unknown: nobody knows",
        "0 B      nothing: it is there",
    ]
    assert connected("backends", "plan", "dance", "echo").code == 64


def test_a_delete_shows_its_plan_and_what_is_in_the_way(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/backends", INSTALLED)
    ending = EndingReplicaView(node_id="1", node="w1", model="small", in_flight=None)
    item = PlannedView(node_id="1", node_name="w1", node_status="draining", backend="echo", download_bytes=0)
    plan = Plan(items=[item], counts=PlanCounts(fits=1), replicas_end=[ending], rules=["a rule demands echo"])
    frontend.tell("POST /api/v1/operations/plan", plan)
    outcome = connected("backends", "delete", "echo", "--plan")
    assert (outcome.code, outcome.out.splitlines()[1:]) == (
        1,
        [
            "w1    Draining  echo     0 B    delete",
            "1 node: 1 would delete.",
            "Ends: small on w1, an unknown number of requests under way.",
            "In the way: a rule demands echo.",
        ],
    )
    assert [call.method for call in frontend.calls] == ["GET", "POST"]


def test_what_looks_like_a_uri_is_one() -> None:
    assert external("echo", uri="", name="", alias="") == {"backend": "echo"}
    named = {"backend": "", "uri": "oci://r/x", "name": "x", "alias": ""}
    assert external("oci://r/x", uri="", name="x", alias="") == named
    assert external("x", uri="oci://r/x", name="", alias="") == named
    with pytest.raises(InvalidInput, match="give one of them"):
        external("x", uri="oci://r/x", name="y", alias="")


def test_labels_may_have_empty_values() -> None:
    assert read_labels(["a=", "b=c=d", "a="]) == {"a": "", "b": "c=d"}


class TestCompletion:
    @pytest.fixture
    def complete(self, connected: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
        def run(*words: str) -> list[str]:
            monkeypatch.setenv("_CORRAL_COMPLETE", "bash_complete")
            monkeypatch.setenv("COMP_WORDS", " ".join(("corral", *words)))
            monkeypatch.setenv("COMP_CWORD", str(len(words)))
            outcome = connected()
            assert outcome.err == ""
            return [line.partition(",")[2] for line in outcome.out.splitlines() if line]

        return run

    def test_offers_what_is_installed(self, complete: Any, frontend: Any) -> None:
        frontend.tell("GET /api/v1/backends", FleetBackends(items=[backend("echo", on("w1")), backend("other")]))
        assert complete("backends", "delete", "e") == ["echo"]

    def test_offers_operations(self, complete: Any, frontend: Any, make_operation: Any) -> None:
        frontend.tell("GET /api/v1/operations", {"items": [make_operation()]})
        assert complete("ops", "watch", "01") == [ID]
        assert complete("ops", "show", "9") == []

    def test_is_silent_without_a_frontend(self, complete: Any) -> None:
        assert complete("ops", "watch", "0") == []
        assert complete("backends", "upgrade", "e") == []


def test_ages_are_told_of_the_oldest_word(connected: Any, frontend: Any) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    told = FleetBackends(items=[backend("a", on("w1", seen_at=now), on("w2", seen_at="2020-01-01T00:00:00Z"))])
    frontend.tell("GET /api/v1/backends", told)
    assert "d " in connected("backends", "list").out.splitlines()[1].split("ago")[1]


class TestDrift:
    GET = "GET /api/v1/drift"

    def test_says_when_all_is_well(self, connected: Any, frontend: Any) -> None:
        frontend.tell(self.GET, DriftList(items=[]))
        outcome = connected("backends", "drift")
        assert (outcome.code, outcome.out) == (0, "All is as it was asked for.\n")

    def test_lists_what_is_wanted_and_there_and_how_to_mend_it(self, connected: Any, frontend: Any) -> None:
        ask = OperationAsk(verb="install", backend="mine", uri="oci://r/x", name="mine", force=True, nodes=["1"])
        changed = DriftView(
            node_id="1",
            node_name="w 1",
            backend="mine",
            kind="changed",
            wanted="version 1",
            has="version 2",
            why="it has another digest",
            fix=DriftFixView(label="Install mine on w 1", operation=ask),
        )
        blocked = DriftView(
            node_id="2",
            node_name="w2",
            backend="echo",
            kind="blocked",
            wanted="installed",
            has="not installed",
            since="2020-01-01T00:00:00Z",
            why="[b]disk full\x1b",
            rule="all",
            operation_id="0123abcd-9",
        )
        frontend.tell(self.GET, DriftList(items=[changed, blocked]))
        outcome = connected("backends", "drift")
        assert outcome.code == 1
        header, first, second, mend, again = outcome.out.splitlines()
        assert header.split() == ["NODE", "BACKEND", "STATE", "WANTED", "HAS", "SINCE", "RULE", "WHY"]
        assert " ".join(first.split()) == "w 1 mine Changed version 1 version 2 – – it has another digest"
        assert second.startswith("w2    echo     Blocked  installed  not installed")
        assert second.endswith("all   [b]disk full�")
        assert mend == "Mend it: corral backends install --uri oci://r/x --name mine --force --node 'w 1'"
        assert again == "Try again: corral ops retry 0123abcd"
        assert len(connected("backends", "drift", "--json").json()["items"]) == 2
