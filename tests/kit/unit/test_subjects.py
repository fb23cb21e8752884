"""Which subjects a pattern covers. Which ones are well-formed at all is in the conformance suite."""

import pytest

from tests.kit.bus import covers


@pytest.mark.parametrize(
    ("pattern", "subject", "covered"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a.b", False),
        ("a.b", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("*.b.*", "a.b.c", True),
        ("*.b.*", "a.c.c", False),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*.>", "a.b", False),
        ("a.*.>", "a.b.c", True),
        (">", "a", True),
        ("A", "a", False),
    ],
)
def test_a_pattern_covers_what_nats_says_it_does(pattern: str, subject: str, covered: bool) -> None:
    assert covers(pattern, subject) is covered
