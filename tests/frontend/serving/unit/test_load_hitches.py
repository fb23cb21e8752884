"""Which troubles of a load pass by themselves, on which nodes, and for how long."""

from datetime import timedelta

import pytest

from corral.frontend.nodes.decide.node import LISTENS_WITHIN, Node, Peer
from corral.frontend.serving.decide.load_job import Hitch, LoadPolicy, says_that_it_ends, will_pass
from tests.kit.clock import START
from tests.kit.samples import a_node, after

POLICY = LoadPolicy()
LOCALAI, CORRAL = a_node(), a_node(peer=Peer(version="1"))
LISTENS, ENDING = LISTENS_WITHIN.total_seconds(), POLICY.ending.total_seconds()


@pytest.mark.parametrize(
    ("hitch", "node", "seconds", "passes"),
    [
        (Hitch.NOT_LISTENING, CORRAL, 0, True),
        (Hitch.NOT_LISTENING, LOCALAI, LISTENS - 1, True),
        (Hitch.NOT_LISTENING, CORRAL, LISTENS, False),
        (Hitch.STILL_ENDING, LOCALAI, 0, True),
        (Hitch.STILL_ENDING, LOCALAI, ENDING - 1, True),
        (Hitch.STILL_ENDING, LOCALAI, ENDING, False),
        (Hitch.STILL_ENDING, CORRAL, 0, False),
        (Hitch.ENDED, LOCALAI, ENDING - 1, True),
        (Hitch.ENDED, LOCALAI, ENDING, False),
        (Hitch.ENDED, CORRAL, 0, False),
    ],
)
def test_a_hitch_passes_for_a_while(hitch: Hitch, node: Node, seconds: float, passes: bool) -> None:
    assert will_pass(hitch, node, since=START, now=after(seconds), policy=POLICY) is passes


def test_an_approval_gives_a_worker_as_much_time_as_a_registration() -> None:
    node = a_node(approved_at=after(100))
    now = after(100) + LISTENS_WITHIN - timedelta(seconds=1)
    assert will_pass(Hitch.NOT_LISTENING, node, since=START, now=now, policy=POLICY)


def test_a_process_in_a_place_that_nobody_had_was_not_ending() -> None:
    assert not will_pass(Hitch.ENDED, LOCALAI, since=None, now=START, policy=POLICY)


@pytest.mark.parametrize(
    ("refusal", "ends"),
    [("backend small#0 is stopping", True), ("backend other#0 is stopping", False), ("no such backend", False)],
)
def test_a_refusal_tells_that_the_process_before_is_being_stopped(refusal: str, ends: bool) -> None:
    assert says_that_it_ends(refusal, "small#0") is ends
