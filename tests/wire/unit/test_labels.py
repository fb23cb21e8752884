"""Labels: the worker's words, the derived ones, and the people's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.labels import (
    MAX_LABELS,
    NodeLabels,
    growth_problem,
    label_problem,
    matches,
    merge,
    remove,
    replace_all,
    report,
    vram_bucket,
)

REPORTED = report(NodeLabels(), {"site": "lab"}, {"node.name": "w1"})
maps = st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=6)


def test_replacing_all_labels_leaves_exactly_those() -> None:
    assert replace_all(REPORTED, {"a": "b"}).effective == {"a": "b"}


def test_a_removed_label_stays_away_when_it_is_reported_again() -> None:
    without = remove(REPORTED, "site")
    assert "site" not in report(without, {"site": "lab"}, {}).effective


def test_an_automatic_label_comes_back_with_the_next_registration() -> None:
    without = remove(REPORTED, "node.name")
    assert report(without, {}, {"node.name": "w1"}).effective["node.name"] == "w1"


def test_what_people_set_wins_over_what_is_reported() -> None:
    assert merge(REPORTED, {"site": "home"}).effective["site"] == "home"
    assert report(merge(REPORTED, {"site": "home"}), {"site": "lab"}, {}).effective["site"] == "home"


def test_setting_a_removed_label_brings_it_back() -> None:
    assert merge(remove(REPORTED, "site"), {"site": "new"}).effective["site"] == "new"


@given(maps, maps, maps)
def test_people_s_labels_survive_any_registration(
    reported: dict[str, str], people: dict[str, str], again: dict[str, str]
) -> None:
    labels = merge(report(NodeLabels(), reported, {}), people)
    assert matches(report(labels, again, {}).effective, people)


def many(prefix: str, count: int) -> dict[str, str]:
    return {f"{prefix}{number}": "x" for number in range(count)}


def test_a_node_never_has_more_than_256_labels_however_often_it_registers() -> None:
    labels = merge(NodeLabels(), {"rack": "7"})
    for registration in range(40):
        labels = report(labels, many(f"r{registration}-", 250), {"node.name": "w1"})

    assert len(labels.effective) == MAX_LABELS
    assert labels.effective.items() >= {"rack": "7", "node.name": "w1", **many("r39-", 250)}.items()


def test_the_label_that_was_reported_longest_ago_goes_first() -> None:
    labels = report(report(NodeLabels(), many("a", 200), {}), {"a0": "again", **many("b", 100)}, {})

    assert labels.effective["a0"] == "again"
    assert "a1" not in labels.effective
    assert "a199" in labels.effective


def test_automatic_labels_and_those_of_people_stay_whatever_a_worker_reports() -> None:
    full = replace_all(NodeLabels(), many("people", 256))
    labels = report(full, many("worker", 256), {"node.name": "w1"})

    assert labels.effective == {**many("people", 256), "node.name": "w1"}


def test_people_may_not_add_more_than_fit_and_may_always_take_away() -> None:
    before = report(NodeLabels(), many("a", 250), {})
    assert growth_problem(before, merge(before, many("b", 6))) is None
    assert growth_problem(before, merge(before, many("b", 7))) == "the node would have 257 labels, and 256 are the most"
    crowded = NodeLabels(reported=many("a", 300))
    assert growth_problem(crowded, remove(crowded, "a0")) is None


@given(maps, maps)
def test_replacing_all_is_exact_whatever_was_there(reported: dict[str, str], wanted: dict[str, str]) -> None:
    assert replace_all(report(NodeLabels(), reported, {}), wanted).effective == dict(sorted(wanted.items()))


@pytest.mark.parametrize(
    ("gib", "bucket"), [(4, "4GB"), (8, "8GB"), (12, "8GB"), (16, "16GB"), (24, "24GB"), (48, "48GB"), (96, "80GB+")]
)
def test_video_memory_is_labelled_by_buckets(gib: int, bucket: str) -> None:
    assert vram_bucket(gib * 1024**3) == bucket


@pytest.mark.parametrize(
    "labels", [{"": "x"}, {"k" * 129: "x"}, {"k": "v" * 256}, {str(number): "" for number in range(257)}]
)
def test_labels_that_cannot_be_stored_are_named(labels: dict[str, str]) -> None:
    assert label_problem(labels)
