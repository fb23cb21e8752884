"""Backends that were proven once, and are not as they were asked for any more."""

import pytest
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.backends.decide.backend import Artefact, BackendEntry, Inventory, payload_of
from corral.frontend.live.drifting import drifted
from corral.frontend.nodes.decide.node import NodeStatus, SeenNode
from corral.frontend.operations.decide.intent import Intent, IntentState, Verb
from tests.kit.samples import a_node, after, an_operation

NODE = SeenNode(
    node=a_node(id=NodeId("n1"), name="gpu-1"), status=NodeStatus.HEALTHY, silent_seconds=0.0, heard_seconds_ago=0.0
)
DIGEST = "sha256:a"


def satisfied(verb: Verb = Verb.INSTALL) -> Intent:
    _, (intent,) = an_operation("op", "n1", verb=verb)
    artefact = Artefact(backend="echo", digests=frozenset({DIGEST}), renewal="once")
    return replace(intent, state=IntentState.SATISFIED, payload=payload_of(artefact), changed_at=after(0))


def report(*entries: BackendEntry, at: float = 10) -> dict[NodeId, Inventory]:
    return {NodeId("n1"): Inventory(entries=entries, seen_at=after(at))}


@pytest.mark.parametrize("verb", [Verb.INSTALL, Verb.UPGRADE])
def test_what_is_there_as_asked_has_not_drifted_however_it_came_there(verb: Verb) -> None:
    intent = satisfied(verb)
    same = BackendEntry(name=intent.subject, digest=DIGEST, installed_at="long ago")
    assert drifted([intent], [NODE], report(same)) == []


def test_what_is_gone_or_other_has_drifted() -> None:
    intent = satisfied()
    (gone,) = drifted([intent], [NODE], report())
    assert (gone.node_name, gone.backend, gone.wanted, gone.has) == ("gpu-1", intent.subject, DIGEST, "absent")
    (other,) = drifted([intent], [NODE], report(BackendEntry(name=intent.subject, digest="sha256:b")))
    assert (other.has, bool(other.why)) == ("sha256:b", True)


def test_what_was_deleted_and_is_there_again_has_drifted() -> None:
    intent = satisfied(Verb.DELETE)
    assert drifted([intent], [NODE], report()) == []
    (again,) = drifted([intent], [NODE], report(BackendEntry(name=intent.subject)))
    assert (again.wanted, again.has) == ("absent", "present")


def test_a_report_from_before_the_proof_and_a_node_that_is_gone_say_nothing() -> None:
    assert drifted([satisfied()], [NODE], report(at=-5)) == []
    assert drifted([satisfied()], [], report()) == []
    assert drifted([satisfied()], [NODE], {}) == []
