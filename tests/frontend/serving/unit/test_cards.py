"""Which GPUs a model gets, and the sentence when it gets none."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.frontend.serving.decide.cards import CardRoom, CardShortage, fit_cards

GIB = 1024**3


def card(id: str, free: float, total: float = 0, *, is_out: bool = False) -> CardRoom:
    return CardRoom(id=id, free=int(free * GIB), total=int((total or free) * GIB), is_out=is_out)


def fit(
    vram: float,
    *cards: CardRoom,
    splits: bool = False,
    per_card: float = 0,
    budget_left: float | None = None,
    count: int = 0,
) -> tuple[str, ...] | str:
    """The cards, or the sentence why there are none."""
    fitted = fit_cards(
        int(vram * GIB),
        per_card=int(per_card * GIB),
        splits=splits,
        cards=cards,
        budget_left=None if budget_left is None else int(budget_left * GIB),
        count=count,
    )
    return fitted.message if isinstance(fitted, CardShortage) else fitted


TWO_OF_12 = (card("a", 11.4, 12), card("b", 11.6, 12))


def test_two_cards_of_12_gb_do_not_hold_20_unless_the_engine_splits() -> None:
    assert fit(20, *TWO_OF_12) == (
        "needs 20.0 GiB on one card; the largest has 11.6 GiB free of 12.0 GiB, and its engine does not split"
    )
    assert fit(20, *TWO_OF_12, splits=True) == ("b", "a")


def test_the_tightest_card_that_fits_is_taken_so_that_large_ones_stay_free() -> None:
    assert fit(10, card("large", 80), card("small", 12), card("tiny", 8), splits=True) == ("small",)


def test_a_card_out_of_service_is_never_taken() -> None:
    assert fit(10, card("a", 12, is_out=True), card("b", 80)) == ("b",)
    assert fit(20, card("a", 12, is_out=True), card("b", 12), splits=True) == (
        "needs 20.0 GiB of video memory and has 12.0 GiB free of 12.0 GiB"
    )
    assert fit(1, card("a", 12, is_out=True)) == "has no GPU in service"
    assert fit(0, *(card(id, 12, is_out=True) for id in "ab")) == "has no GPU in service: all 2 are taken out"


def test_what_spreading_costs_on_each_further_card_counts() -> None:
    assert fit(23, card("a", 12), card("b", 12), splits=True, per_card=1) == ("a", "b")
    assert fit(23.5, card("a", 12), card("b", 12), splits=True, per_card=1) == (
        "needs 24.5 GiB; its 2 cards have 24.0 GiB free of 24.0 GiB together"
    )


def test_the_last_of_several_cards_is_the_tightest_that_does() -> None:
    assert fit(30, card("a", 24), card("b", 16), card("c", 8), splits=True) == ("a", "c")


def test_the_budget_of_a_machine_counts_before_its_cards() -> None:
    assert fit(10, card("a", 12), budget_left=8) == "needs 10.0 GiB of video memory; its budget leaves 8.0 GiB"
    assert fit(23, card("a", 12), card("b", 12), splits=True, per_card=1, budget_left=23.5) == (
        "needs 24.0 GiB of video memory; its budget leaves 23.5 GiB"
    )


def test_a_size_that_nobody_knows_gets_the_emptiest_card_or_all_of_them() -> None:
    assert fit(0, card("a", 4), card("b", 8)) == ("b",)
    assert fit(0, card("a", 4), card("b", 8), splits=True) == ("b", "a")


def test_an_engine_that_was_told_a_number_of_cards_gets_so_many_with_equal_parts() -> None:
    cards = (card("a", 80), card("b", 24), card("c", 24), card("d", 8))

    assert fit(30, *cards, splits=True, count=2) == ("b", "c")
    assert fit(60, *cards, splits=True, count=2) == (
        "needs 30.0 GiB on each of 2 cards; the least free of its 2 emptiest has 24.0 GiB"
    )
    assert fit(4, *cards[:2], splits=True, count=4) == "has 2 of 4 GPUs in service that its engine was told to use"


@pytest.mark.parametrize("free", [24.0, 10**6])
def test_a_card_that_claims_more_free_than_it_has_is_not_believed(free: float) -> None:
    assert fit(20, card("liar", free, 12)) == "needs 20.0 GiB of video memory and has 12.0 GiB free of 12.0 GiB"


def test_a_machine_without_gpus_says_so() -> None:
    assert fit(1) == "has no GPU"


amounts = st.integers(0, 40)
rooms = st.lists(st.tuples(amounts, amounts, st.booleans()), max_size=6).map(
    lambda drawn: [
        CardRoom(id=f"gpu-{number}", free=free, total=total, is_out=is_out)
        for number, (free, total, is_out) in enumerate(drawn)
    ]
)


@given(
    vram=st.integers(1, 100),
    per_card=st.integers(0, 5),
    splits=st.booleans(),
    cards=rooms,
    budget_left=st.none() | st.integers(-5, 100),
)
def test_nothing_is_promised_twice_and_no_card_is_wasted(
    vram: int, per_card: int, splits: bool, cards: list[CardRoom], budget_left: int | None
) -> None:
    """Never over a card, never a card that is out, never over the budget, never more cards than it takes."""
    fitted = fit_cards(vram, per_card=per_card, splits=splits, cards=cards, budget_left=budget_left)
    usable = [card for card in cards if not card.is_out]
    fits = [
        number
        for number in range(1, (len(usable) if splits else 1) + 1)
        if (budget_left is None or vram + per_card * (number - 1) <= budget_left)
        and any(
            sum(card.room for card in chosen) >= vram + per_card * (number - 1)
            and (number == 1 or all(card.room > per_card for card in chosen))
            for chosen in combinations(usable, number)
        )
    ]
    if isinstance(fitted, CardShortage):
        assert not fits
        assert fitted.needed > fitted.free or not usable
        assert fitted.message
        return
    chosen = [card for card in cards if card.id in fitted]
    assert len(fitted) == len(set(fitted)) == len(chosen) == fits[0]
    assert not any(card.is_out for card in chosen)
    assert vram + per_card * (len(chosen) - 1) <= sum(min(card.free, card.total or card.free) for card in chosen)
    assert budget_left is None or vram + per_card * (len(chosen) - 1) <= budget_left


@given(vram=st.integers(1, 100), count=st.integers(2, 4), cards=rooms, per_card=st.integers(0, 3))
def test_equal_parts_fit_on_each_card(vram: int, count: int, cards: list[CardRoom], per_card: int) -> None:
    fitted = fit_cards(vram, per_card=per_card, splits=True, cards=cards, budget_left=None, count=count)
    part = -(-(vram + per_card * (count - 1)) // count)
    able = [card for card in cards if not card.is_out and card.room >= part]
    if isinstance(fitted, CardShortage):
        assert len(able) < count
    else:
        assert len(set(fitted)) == count
        assert set(fitted) <= {card.id for card in able}
