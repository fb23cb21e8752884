"""Topics: their names, who may read them, and places of readers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.errors import InvalidInput
from corral.frontend.access.decide import PERMISSIONS, Permission
from corral.frontend.live.decide.topics import (
    EVERYTHING,
    MOST_TOPICS,
    PERMISSION,
    ReaderPlace,
    Topic,
    TopicKind,
    allowed,
    read_place,
    read_topics,
)
from corral.wire.keys import Scope

TOPICS = st.one_of(
    st.sampled_from(EVERYTHING),
    st.builds(Topic, st.just(TopicKind.NODE), st.from_regex(r"[a-z0-9-]{1,36}", fullmatch=True)),
    st.builds(Topic, st.just(TopicKind.OPERATION), st.from_regex(r"[a-z0-9-]{1,36}", fullmatch=True)),
)


def test_without_names_a_reader_gets_the_usual_ones() -> None:
    assert read_topics(None) == EVERYTHING


def test_topics_come_in_the_order_that_was_asked_for_and_once() -> None:
    assert read_topics(" nodes, summary,nodes ") == (Topic(TopicKind.NODES), Topic(TopicKind.SUMMARY))


@pytest.mark.parametrize("text", ["", " , ", "nodez", "nodes:1", "node", "node:", "operation:a b", "node:" + "x" * 101])
def test_what_is_no_topic_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read_topics(text)
    assert error.value.field == "topics"
    assert text.strip(" ,")[:40] in error.value.message


def test_too_many_topics_are_refused() -> None:
    with pytest.raises(InvalidInput, match="are the most"):
        read_topics(",".join(f"node:{number}" for number in range(MOST_TOPICS + 1)))


def test_every_kind_has_a_permission_that_viewers_have() -> None:
    assert PERMISSION.keys() == set(TopicKind)
    assert set(PERMISSION.values()) <= PERMISSIONS[Scope.VIEWER]


def test_topics_that_somebody_may_not_read_are_left_out() -> None:
    topics = read_topics("nodes,summary,events")
    assert allowed(topics, lambda permission: permission is Permission.NODES_READ) == (Topic(TopicKind.NODES),)


@given(st.sets(TOPICS, max_size=10), st.integers(0, 10**9), st.one_of(st.none(), st.integers(0, 10**9)))
def test_a_place_is_read_as_it_was_written(topics: set[Topic], version: int, sequence: int | None) -> None:
    marks = frozenset(topic.mark for topic in topics)
    place = ReaderPlace(hub="ab12", version=version, sequence=sequence, marks=marks)
    assert read_place(str(place)) == place
    assert all(place.covers(topic, "ab12") and not place.covers(topic, "ab13") for topic in topics)


@given(st.text())
def test_a_place_that_makes_no_sense_is_the_beginning(text: str) -> None:
    assert isinstance(read_place(text), ReaderPlace)


def test_a_topic_that_was_not_read_is_not_covered() -> None:
    place = ReaderPlace(hub="h", version=7, marks=frozenset({Topic(TopicKind.NODES).mark}))
    assert not place.covers(Topic(TopicKind.NODE, "n1"), "h")
