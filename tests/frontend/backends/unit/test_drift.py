"""What counts as drift, and what would mend it."""

from typing import Any

import pytest

from corral.base.ids import NodeId, OperationId
from corral.frontend.backends.decide.backend import Artefact, BackendEntry, Inventory, payload_of
from corral.frontend.backends.decide.drift import Drift, drift_of, missing_drift
from corral.frontend.nodes.decide.node import NodeStatus, SeenNode
from corral.frontend.operations.decide.intent import Before, Intent, IntentState, Outstanding, Verb
from corral.frontend.operations.decide.reasons import ReasonCode, because
from tests.kit.samples import a_node, after

NODE = SeenNode(node=a_node(name="w1"), status=NodeStatus.HEALTHY, silent_seconds=0, heard_seconds_ago=1)
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def an_intent(verb: Verb = Verb.INSTALL, state: IntentState = IntentState.SATISFIED, **fields: Any) -> Intent:
    artefact = fields.pop("artefact", Artefact(backend="echo"))
    values = {
        "node_id": NodeId("n1"),
        "verb": verb,
        "subject": "echo",
        "payload": payload_of(artefact),
        "operation_id": OperationId("op1"),
        "state": state,
        "accepted_at": after(0),
        "changed_at": after(10),
        "next_try": after(10),
    }
    return Intent(**{**values, **fields})


def a_report(*entries: BackendEntry, at: int = 20) -> Inventory:
    return Inventory(entries=entries, seen_at=after(at))


HAS = BackendEntry(name="echo", version="1", digest=DIGEST)


def told(drift: Drift | None) -> tuple[str, str, str] | None:
    return None if drift is None else (drift.kind.value, drift.wanted, drift.has)


@pytest.mark.parametrize("verb", [Verb.INSTALL, Verb.UPGRADE])
def test_what_was_proven_and_is_there_is_no_drift(verb: Verb) -> None:
    artefact = Artefact(backend="echo", digests=frozenset({DIGEST}), renewal="op1" if verb is Verb.INSTALL else "")
    assert drift_of(an_intent(verb, artefact=artefact), NODE, a_report(HAS)) is None


def test_what_was_there_and_is_gone_can_be_installed_again() -> None:
    drift = drift_of(an_intent(), NODE, a_report(), rule="all")
    assert told(drift) == ("changed", "installed", "not installed")
    assert drift is not None
    assert (drift.why, drift.since, drift.rule) == (
        "it was there, and the node does not report it any more",
        None,
        "all",
    )
    assert drift.fix is not None
    assert (drift.fix.verb, drift.fix.ref.backend, drift.fix.force) == (Verb.INSTALL, "echo", False)


def test_another_digest_is_told_with_its_date_and_is_replaced() -> None:
    artefact = Artefact(backend="echo", version="1", digests=frozenset({DIGEST}), uri="oci://r/x", name="echo")
    date = after(15).isoformat().replace("+00:00", "Z")
    entry = BackendEntry(name="echo", version="2", digest=OTHER, uri="oci://r/x", installed_at=date)
    drift = drift_of(an_intent(artefact=artefact), NODE, a_report(entry))
    assert told(drift) == (
        "changed",
        "version 1, digest sha256:aaaaaaaaaaaa, from oci://r/x",
        "version 2, digest sha256:bbbbbbbbbbbb, from oci://r/x",
    )
    assert drift is not None
    assert drift.since == after(15)
    assert drift.fix is not None
    assert (drift.fix.ref.uri, drift.fix.ref.name, drift.fix.force) == ("oci://r/x", "echo", True)


@pytest.mark.parametrize("date", ["", "yesterday", "1999-01-01T00:00:00Z"])
def test_a_date_that_cannot_be_is_not_told(date: str) -> None:
    entry = BackendEntry(name="echo", uri="oci://other/x", installed_at=date)
    artefact = Artefact(backend="echo", uri="oci://r/x", name="echo")
    drift = drift_of(an_intent(artefact=artefact), NODE, a_report(entry))
    assert drift is not None
    assert drift.since is None


def test_what_was_deleted_and_is_there_again_can_be_deleted_unless_it_came_with_the_machine() -> None:
    drift = drift_of(an_intent(Verb.DELETE), NODE, a_report(HAS))
    assert told(drift) == ("changed", "not installed", "version 1, digest sha256:aaaaaaaaaaaa")
    assert drift is not None
    assert drift.fix is not None
    assert (drift.fix.verb, drift.fix.ref.backend) == (Verb.DELETE, "echo")
    system = drift_of(an_intent(Verb.DELETE), NODE, a_report(BackendEntry(name="echo", is_system=True)))
    assert system is not None
    assert system.fix is None
    assert drift_of(an_intent(Verb.DELETE), NODE, a_report()) is None


def test_a_report_from_before_the_proof_says_nothing() -> None:
    assert drift_of(an_intent(), NODE, a_report(at=10)) is None
    assert drift_of(an_intent(), NODE, None) is None


def test_what_is_not_reached_is_drift_only_when_somebody_or_something_is_in_the_way() -> None:
    reason = because(ReasonCode.NODE_SAID, text="disk full")
    sent = Outstanding(generation=1, verb=Verb.INSTALL, sent_at=after(0), until=after(9), before=Before(present=False))
    blocked = drift_of(an_intent(state=IntentState.BLOCKED, reason=reason), NODE, None)
    failing = drift_of(an_intent(state=IntentState.OPEN, attempts=2, reason=reason), NODE, a_report())
    waiting = drift_of(an_intent(state=IntentState.OPEN, waits_for_node=True), NODE, a_report())
    again = drift_of(an_intent(state=IntentState.OPEN, waits_for_node=True, reason=reason), NODE, a_report())

    assert told(blocked) == ("blocked", "installed", "not known")
    assert told(failing) == ("failing", "installed", "not installed")
    assert told(waiting) == ("waiting", "installed", "not installed")
    assert blocked is not None
    assert (blocked.since, blocked.why, blocked.operation_id, blocked.fix) == (after(10), "disk full", "op1", None)
    assert waiting is not None
    assert waiting.why == "it waits for the node to come back"
    assert again is not None
    assert again.why == "it waits for the node to come back; last: disk full"
    assert drift_of(an_intent(state=IntentState.OPEN), NODE, a_report()) is None, "about to be sent"
    assert drift_of(an_intent(state=IntentState.OPEN, attempts=1, outstanding=sent), NODE, a_report()) is None
    assert drift_of(an_intent(state=IntentState.CANCELLED), NODE, a_report()) is None


def test_what_a_rule_demands_and_nobody_asked_for_yet_is_missing() -> None:
    drift = missing_drift("all", "echo", NODE, a_report())
    assert told(drift) == ("missing", "installed", "not installed")
    assert (drift.rule, drift.fix) == ("all", None)
