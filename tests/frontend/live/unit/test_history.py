"""Rings of the last hour."""

from hypothesis import given
from hypothesis import strategies as st

from corral.frontend.live.decide import history
from corral.frontend.live.decide.history import HELD_STEPS, POINTS, Ring, Rings, SeriesKey, SeriesName

TOKENS = SeriesKey.of(SeriesName.TOKENS, model="small")
MEMORY = SeriesKey.of(SeriesName.MEMORY, kind="ram", node="gpu-1", node_id="n1")


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 1000)), max_size=60))
def test_a_ring_has_the_sums_of_the_last_hour(written: list[tuple[int, int]]) -> None:
    ring, expected, last = Ring(), dict[int, int](), 0
    for step, value in written:
        last = max(last, step)
        if step > last - POINTS:
            expected[step] = expected.get(step, 0) + value
        ring.add(step, value)
    for step in range(max(last - POINTS - 5, 0), last + 5):
        is_kept = last - POINTS < step <= last
        assert ring.at(step) == (expected.get(step) if is_kept else None)


def test_counters_are_told_per_second_and_are_nothing_where_a_gateway_reported() -> None:
    rings = Rings()
    rings.heard.add(1, 1)
    rings.heard.add(2, 1)
    rings.add(TOKENS, 2, 50)
    (series,) = rings.plotted([SeriesName.TOKENS], now=4, points=4, only={})
    assert series.values == [None, 0.0, 5.0, None]


def test_memory_holds_between_heartbeats_and_is_unknown_when_they_stop() -> None:
    rings = Rings()
    rings.raise_to(MEMORY, 10, 7)
    (series,) = rings.plotted([SeriesName.MEMORY], now=10 + 2 * HELD_STEPS, points=2 * HELD_STEPS, only={})
    assert series.values == [7.0] * HELD_STEPS + [None] * HELD_STEPS


def test_the_step_that_is_not_over_is_not_told() -> None:
    rings = Rings()
    rings.heard.add(5, 1)
    rings.add(TOKENS, 5, 50)
    assert rings.plotted([SeriesName.TOKENS], now=5, points=4, only={}) == []


def test_series_are_chosen_by_name_and_label() -> None:
    rings = Rings()
    rings.heard.add(1, 1)
    rings.add(TOKENS, 1, 10)
    rings.add(SeriesKey.of(SeriesName.TOKENS, model="large"), 1, 10)
    rings.raise_to(MEMORY, 1, 10)
    found = rings.plotted([SeriesName.TOKENS], now=2, points=1, only={"model": frozenset({"large"})})
    assert [series.labels for series in found] == [{"model": "large"}]
    by_node = rings.plotted(list(SeriesName), now=2, points=1, only={"node_id": frozenset({"n1"})})
    assert [series.name for series in by_node] == ["memory"]


def test_there_are_never_more_series_than_allowed() -> None:
    rings = Rings()
    for number in range(history.MOST_SERIES + 5):
        rings.add(SeriesKey.of(SeriesName.TOKENS, model=str(number)), 1, 1)
    assert (len(rings.rings), len(rings.refused)) == (history.MOST_SERIES, 5)
    rings.add(SeriesKey.of(SeriesName.TOKENS, model="new"), 1 + POINTS, 1)
    assert len(rings.rings) == 1, "those of an hour ago make room"
