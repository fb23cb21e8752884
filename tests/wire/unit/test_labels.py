"""Labels: the worker's words, the derived ones, and the people's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.labels import MAX_LABELS, NodeLabels, has_labels, label_growth_problem, label_problem, vram_bucket

REPORTED = NodeLabels().report({"site": "lab"}, {"node.name": "w1"})
maps = st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=6)


def test_replacing_all_labels_leaves_exactly_those() -> None:
    assert REPORTED.replace_all({"a": "b"}).effective == {"a": "b"}


def test_a_removed_label_stays_away_when_it_is_reported_again() -> None:
    without = REPORTED.remove("site")
    assert "site" not in without.report({"site": "lab"}, {}).effective


def test_an_automatic_label_comes_back_with_the_next_registration() -> None:
    without = REPORTED.remove("node.name")
    assert without.report({}, {"node.name": "w1"}).effective["node.name"] == "w1"


def test_what_people_set_wins_over_what_is_reported() -> None:
    assert REPORTED.merge({"site": "home"}).effective["site"] == "home"
    assert REPORTED.merge({"site": "home"}).report({"site": "lab"}, {}).effective["site"] == "home"


def test_setting_a_removed_label_brings_it_back() -> None:
    assert REPORTED.remove("site").merge({"site": "new"}).effective["site"] == "new"


@given(maps, maps, maps)
def test_people_s_labels_survive_any_registration(
    reported: dict[str, str], people: dict[str, str], again: dict[str, str]
) -> None:
    labels = NodeLabels().report(reported, {}).merge(people)
    assert has_labels(labels.report(again, {}).effective, people)


def many(prefix: str, count: int) -> dict[str, str]:
    return {f"{prefix}{number}": "x" for number in range(count)}


def test_a_node_never_has_more_than_256_labels_however_often_it_registers() -> None:
    labels = NodeLabels().merge({"rack": "7"})
    for registration in range(40):
        labels = labels.report(many(f"r{registration}-", 250), {"node.name": "w1"})

    assert len(labels.effective) == MAX_LABELS
    assert labels.effective.items() >= {"rack": "7", "node.name": "w1", **many("r39-", 250)}.items()


def test_the_label_that_was_reported_longest_ago_goes_first() -> None:
    labels = NodeLabels().report(many("a", 200), {}).report({"a0": "again", **many("b", 100)}, {})

    assert labels.effective["a0"] == "again"
    assert "a1" not in labels.effective
    assert "a199" in labels.effective


def test_automatic_labels_and_those_of_people_stay_whatever_a_worker_reports() -> None:
    full = NodeLabels().replace_all(many("people", 256))
    labels = full.report(many("worker", 256), {"node.name": "w1"})

    assert labels.effective == {**many("people", 256), "node.name": "w1"}


def test_people_may_not_add_more_than_fit_and_may_always_take_away() -> None:
    before = NodeLabels().report(many("a", 250), {})
    assert label_growth_problem(before, before.merge(many("b", 6))) is None
    assert (
        label_growth_problem(before, before.merge(many("b", 7)))
        == "the node would have 257 labels, and 256 are the most"
    )
    crowded = NodeLabels(reported=many("a", 300))
    assert label_growth_problem(crowded, crowded.remove("a0")) is None


@given(maps, maps)
def test_replacing_all_is_exact_whatever_was_there(reported: dict[str, str], wanted: dict[str, str]) -> None:
    assert NodeLabels().report(reported, {}).replace_all(wanted).effective == dict(sorted(wanted.items()))


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
