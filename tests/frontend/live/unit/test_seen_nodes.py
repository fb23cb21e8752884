"""Statuses that are kept are those that would be judged."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from corral.frontend.live.decide.picture import SeenNodes
from corral.frontend.nodes.decide.liveness import Hearing, LivenessPolicy, status_of
from tests.kit.clock import START
from tests.kit.samples import a_node, after

POLICY = LivenessPolicy()
SECONDS = st.integers(0, 200)


@given(
    st.lists(st.tuples(SECONDS, st.sampled_from(["", "approved", "drained", "gone", "mute"])), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30), st.booleans()), min_size=1, max_size=8),
)
def test_at_every_moment_each_node_has_the_status_that_its_facts_mean(
    beats: list[tuple[int, str]], looks: list[tuple[int, int, bool]]
) -> None:
    nodes = [
        a_node(
            last_heartbeat=after(beat),
            approved_at=None if state == "" else START,
            draining_since=START if state == "drained" else None,
            deregistered_at=START if state == "gone" else None,
            no_responders_at=START if state == "mute" else None,
        )
        for beat, state in beats
    ]
    kept, now, since = SeenNodes(POLICY), START, START
    for passed, deaf, is_new in looks:
        now += timedelta(seconds=passed)
        since = now if is_new else since
        hearing = Hearing(since=since, until=max(now - timedelta(seconds=deaf), since))
        statuses = [seen.status for seen in kept.of(nodes, now, hearing)]
        assert statuses == [status_of(node.facts, now, POLICY, hearing) for node in nodes]


def test_a_node_that_did_not_change_is_the_very_same() -> None:
    node, kept = a_node(last_heartbeat=after(0)), SeenNodes(POLICY)
    (first,) = kept.of([node], after(1), Hearing(since=START, until=after(1)))
    (second,) = kept.of([node], after(2), Hearing(since=START, until=after(2)))
    assert first is second
