"""`corral backends confine`: one decision at a time, with a reason where rights are given."""

from typing import Any

import pytest

from corral.cli.backends.confinement import confinement_words
from corral.wire.confinement import ConfinementReport, PolicyView

from .conftest import Call, StubFrontend


def policy(**changes: Any) -> PolicyView:
    facts: dict[str, Any] = {"backend": "a/b", "network": "none", "is_confined": True, "reason": ""}
    return PolicyView(**{**facts, "changed_at": "2020-01-01T00:00:00Z", "changed_by": "admin", **changes})


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["--network", "none"], {"network": "none", "is_confined": True, "reason": ""}),
        (["--off", "--reason", "perf"], {"network": "", "is_confined": False, "reason": "perf"}),
    ],
)
def test_a_decision_is_sent(connected: Any, frontend: StubFrontend, words: list[str], body: dict[str, Any]) -> None:
    frontend.tell("PUT /api/v1/backend-policies/a%2Fb", policy(is_confined=body["is_confined"]))
    outcome = connected("backends", "confine", "a/b", *words)
    assert outcome.code == 0
    [call] = frontend.calls
    assert isinstance(call, Call)
    assert call.body == body


@pytest.mark.parametrize("words", [[], ["--network", "any", "--off"], ["--off", "--reset"]])
def test_exactly_one_thing_is_decided(connected: Any, frontend: StubFrontend, words: list[str]) -> None:
    outcome = connected("backends", "confine", "a", *words)
    assert (outcome.code, frontend.calls) == (64, [])
    assert "--network, --off and --reset" in outcome.err


def test_decisions_are_listed(connected: Any, frontend: StubFrontend) -> None:
    frontend.tell("GET /api/v1/backend-policies", [policy(is_confined=False, network="", reason="needs perf")])
    outcome = connected("backends", "confined")
    assert "needs perf" in outcome.out


def test_words_for_a_machine_say_what_it_has_and_lacks() -> None:
    assert confinement_words(ConfinementReport(missing=["no Landlock"])) == ["none", "- no Landlock"]
    report = ConfinementReport(is_on=True, landlock=7, own_users=True, cgroup="v2", limits=["memory"], loopback="port")
    assert confinement_words(report) == ["Landlock 7, own users, cgroup v2, limits of memory, loopback by port"]


def test_a_node_shows_each_thing_that_its_machine_lacks_in_a_line_of_its_own(
    connected: Any, frontend: StubFrontend, make_node: Any
) -> None:
    report = ConfinementReport(is_on=True, landlock=7, missing=["/root is closed", "no cgroups"])
    node = make_node("w1", "n1", confinement=report)
    frontend.tell_nodes(node)
    frontend.tell("GET /api/v1/nodes/n1", node)
    lines = [" ".join(line.split()) for line in connected("nodes", "show", "w1").out.splitlines()]
    first = lines.index("Confinement Landlock 7")
    assert lines[first + 1 : first + 3] == ["- /root is closed", "- no cgroups"]
