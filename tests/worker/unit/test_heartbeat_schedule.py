"""When the next heartbeat is due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.worker.membership.heartbeat import next_beat


@pytest.mark.parametrize(
    ("due", "now", "expected"),
    [
        (0.0, 0.0, 10.0),
        (10.0, 10.2, 20.0),
        (10.0, 19.9, 20.0),
        (10.0, 20.0, 20.0),
        (10.0, 27.0, 20.0),
        (10.0, 30.5, 30.0),
        (10.0, 3605.0, 3600.0),
        (10.0, 9.999, 20.0),
    ],
)
def test_beats_stay_on_the_grid_and_a_pause_is_made_up_for_once(due: float, now: float, expected: float) -> None:
    assert next_beat(due, now, 10.0) == expected


@given(late=st.integers(min_value=0, max_value=10_000), interval=st.integers(min_value=1, max_value=100))
def test_after_any_pause_at_most_one_beat_is_overdue(late: int, interval: int) -> None:
    due = next_beat(0, late, interval)
    following = next_beat(due, max(late, due), interval)

    assert due % interval == 0
    assert due > 0
    assert following > late
    assert following - due == interval
