"""The grammar of video memory budgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.nodes import VramBudget

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "ceiling"),
    [
        ("", 0),
        ("0", 0),
        ("  ", 0),
        ("80%", int(10 * GIB * 0.8)),
        ("100 %", 10 * GIB),
        ("0.5", 5 * GIB),
        ("1", 10 * GIB),
        (".25", int(2.5 * GIB)),
        ("2GB", 2 * 1000**3),
        ("2gib", 2 * GIB),
        ("1.5 GiB", int(1.5 * GIB)),
        ("500MB", 500 * 1000**2),
        ("1024", 1024),
        ("4096B", 4096),
        ("1TB", 10 * GIB),
    ],
)
def test_every_form_of_a_budget_is_understood(text: str, ceiling: int) -> None:
    assert VramBudget.read(text).ceiling(10 * GIB) == ceiling


@pytest.mark.parametrize(
    "text", ["200%", "101%", "0%", "-5%", "abc", "1.5", "5XB", "GB", "%", "1e9", "0GB", "١٢%" * 20]
)
def test_nonsense_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="vram budget"):
        VramBudget.read(text)
    assert VramBudget.read_lenient(text) == VramBudget()


def test_a_share_above_the_whole_names_the_limit() -> None:
    with pytest.raises(ValueError, match='vram budget "200%" exceeds 100%'):
        VramBudget.read("200%")


@given(st.text(max_size=40), st.integers(0, 2**60))
def test_any_text_is_either_refused_or_a_ceiling_within_the_machine(text: str, total: int) -> None:
    try:
        ceiling = VramBudget.read(text).ceiling(total)
    except ValueError:
        return
    assert ceiling >= 0
    assert total == 0 or ceiling <= total
