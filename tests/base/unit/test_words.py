"""Lists within sentences."""

import pytest

from corral.base.words import listed


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a, b"),
        (["a", "b", "c"], "a, b and 1 more"),
    ],
)
def test_a_few_are_named_and_the_rest_counted(names: list[str], told: str) -> None:
    assert listed(names, most=2) == told
