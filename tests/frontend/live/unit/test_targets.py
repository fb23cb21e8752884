"""Shares of targets as readers see them never go back within an attempt."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from corral.frontend.live.topic_rows import all_forward, forward
from corral.frontend.operations.decide.operation import TargetStatus
from corral.wire.operation_views import TargetView

MOVING = (TargetStatus.DOWNLOADING.value, TargetStatus.RUNNING_ON_WORKER.value)


def target(status: str = "downloading", percentage: float = 0.0, attempts: int = 0) -> TargetView:
    return TargetView(
        node_id="n",
        node_name="gpu-1",
        backend="vllm",
        status=status,
        waits_for_node=False,
        message="",
        attempts=attempts,
        changed_at="",
        percentage=percentage,
    )


TARGETS = st.builds(
    target,
    status=st.sampled_from([status.value for status in TargetStatus]),
    percentage=st.floats(0, 100),
    attempts=st.integers(0, 2),
)


@given(st.lists(TARGETS, min_size=2, max_size=20))
def test_the_share_never_goes_back_while_an_attempt_is_under_way(seen: list[TargetView]) -> None:
    shown = [seen[0]]
    for news in seen[1:]:
        shown.append(forward(shown[-1], news))
    for before, after in itertools.pairwise(shown):
        if before.status in MOVING and after.status in MOVING and before.attempts == after.attempts:
            assert after.percentage >= before.percentage


@given(TARGETS, TARGETS)
def test_nothing_but_the_share_is_kept(before: TargetView, now: TargetView) -> None:
    after = forward(before, now)
    assert (after.status, after.attempts, after.message) == (now.status, now.attempts, now.message)
    assert after.percentage in (before.percentage, now.percentage)


def test_another_attempt_begins_at_nothing() -> None:
    assert forward(target(percentage=80), target(percentage=0, attempts=1)).percentage == 0
    assert forward(target(percentage=80), target("queued")).percentage == 0


def test_a_frontend_that_knows_less_for_a_moment_is_not_shown() -> None:
    assert all_forward({"n": target(percentage=80)}, [target(percentage=20)])["n"].percentage == 80
