"""When silence is believed, and when not."""

from datetime import timedelta

import pytest

from corral.frontend.nodes.decide.liveness import BrakePolicy, Hearing, Pulse, judge
from tests.kit.clock import START

POLICY = BrakePolicy()
SECOND = timedelta(seconds=1)
NOW = START + timedelta(hours=1)
HEARS = Hearing(since=START, until=NOW)


@pytest.mark.parametrize(
    ("heard", "silent", "why"),
    [
        (10, 0, ""),
        (9, 1, ""),
        (0, 1, ""),  # one machine fails alone, also if it is all there is
        (1, 1, ""),
        (0, 2, "2 of 2 nodes went silent together"),
        (2, 2, ""),  # half is not more than half
        (2, 3, "3 of 5 nodes went silent together"),
        (499, 501, "501 of 1000 nodes went silent together"),
        (0, 0, ""),
    ],
)
def test_it_holds_when_more_than_the_share_goes_silent_together(heard: int, silent: int, why: str) -> None:
    pulse = Pulse(heard=heard, silent=silent)
    assert judge(pulse, HEARS, recovered_at=None, now=NOW, policy=POLICY) == why


def test_the_share_is_a_matter_of_policy() -> None:
    pulse = Pulse(heard=80, silent=20)
    cautious, never = BrakePolicy(share=0.1), BrakePolicy(share=1.0)
    assert judge(pulse, HEARS, recovered_at=None, now=NOW, policy=cautious)
    assert not judge(Pulse(heard=0, silent=20), HEARS, recovered_at=None, now=NOW, policy=never)


def test_it_holds_while_control_is_deaf_and_for_some_heartbeats_after() -> None:
    calm = Pulse(heard=10, silent=0)
    deaf = Hearing(since=START, until=NOW - 11 * SECOND)
    assert judge(calm, deaf, recovered_at=None, now=NOW, policy=POLICY) == "control has heard nothing for 11 s"
    for seconds, holds in ((0, True), (29, True), (30, False), (-5, False)):
        reason = judge(calm, HEARS, recovered_at=NOW - seconds * SECOND, now=NOW, policy=POLICY)
        assert bool(reason) is holds
    reason = judge(calm, HEARS, recovered_at=NOW - 12 * SECOND, now=NOW, policy=POLICY)
    assert reason == "control could not hear until 12 s ago; for 18 s more it waits for its nodes"
