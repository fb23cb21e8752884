"""How a rule of scheduling and the setting decide together whether prompts choose replicas."""

import pytest

from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.gateways.view import affinity_of
from corral.wire.view import AffinityEntry

USUAL = AffinityEntry(seconds=60.0)


@pytest.mark.parametrize(
    ("policy", "usual", "expected"),
    [
        ("", USUAL, USUAL),
        ("", None, None),
        ("round_robin", USUAL, None),
        ("prefix_cache", USUAL, USUAL),
        ("prefix_cache", None, AffinityEntry()),
    ],
)
def test_a_rule_wins_over_the_setting(policy: str, usual: AffinityEntry | None, expected: AffinityEntry | None) -> None:
    assert affinity_of(SchedulingWish(model="m", route_policy=policy), usual) == expected


def test_numbers_of_a_rule_replace_the_usual_ones_where_they_are_given() -> None:
    wish = SchedulingWish(model="m", balance_abs_threshold=7, min_prefix_match=0.9)
    assert affinity_of(wish, USUAL) == AffinityEntry(min_match=0.9, most_ahead=7, seconds=60.0)
    assert affinity_of(None, USUAL) == USUAL
