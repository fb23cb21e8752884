"""Boards: whoever comes back at any point knows the same in the end as somebody who never left."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.frontend.live.decide import board as boards
from corral.frontend.live.decide.board import Board, since, take
from corral.frontend.live.decide.frames import (
    MOST_BYTES,
    change_frames,
    last_with_id,
    snapshot_frames,
)
from tests.kit.live import LiveEvent, LiveState

encode = msgspec.json.Encoder().encode
STATES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), max_size=6)
HISTORIES = st.lists(STATES, min_size=1, max_size=12)


def played(history: list[dict[str, int]]) -> list[Board]:
    """The board after each of these states, the first one at version 1."""
    board, seen = Board(floor=1, version=1), []
    for number, state in enumerate(history):
        board = take(board, state, version=number + 1, encode=encode)
        seen.append(board)
    return seen


def told(state: LiveState, board: Board, version: int | None) -> int:
    """Tell a reader what it has not seen; returns the version that it has then."""
    change = None if version is None else since(board, version)
    frames = snapshot_frames("t", board) if change is None else change_frames("t", change)
    for frame in frames:
        state.apply(LiveEvent.parse(frame.strip(b"\n")))
    return max(board.version, version or 0)


@given(HISTORIES, st.sets(st.integers(0, 11)))
def test_a_reader_that_misses_any_of_the_changes_ends_with_the_same_state(
    history: list[dict[str, int]], away: set[int]
) -> None:
    reader, version = LiveState(), None
    seen = played(history)
    for number, board in enumerate(seen):
        if number not in away or number == len(seen) - 1:
            version = told(reader, board, version)
    assert reader.topics["t"] == history[-1]


@given(HISTORIES, st.sets(st.integers(0, 11)))
def test_also_when_what_is_gone_is_forgotten_at_once(history: list[dict[str, int]], away: set[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boards, "MOST_GONE", 1)
        test_a_reader_that_misses_any_of_the_changes_ends_with_the_same_state.hypothesis.inner_test(  # type: ignore[attr-defined]
            history, away
        )


@given(HISTORIES)
def test_nothing_is_told_that_the_reader_has(history: list[dict[str, int]]) -> None:
    for board in played(history):
        change = since(board, board.version)
        assert change is not None
        assert not change.items
        assert not change.gone


@given(HISTORIES)
def test_what_is_gone_is_bounded(history: list[dict[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boards, "MOST_GONE", 2)
        assert all(len(board.gone) <= 2 for board in played(history))


def test_the_same_state_is_the_very_same_board() -> None:
    board = take(Board(), {"a": {"x": 1}}, version=1, encode=encode)
    assert take(board, {"a": {"x": 1}}, version=2, encode=encode) is board


def test_a_value_that_is_written_alike_is_no_news() -> None:
    board = take(Board(), {"a": 1}, version=1, encode=encode)
    after = take(board, {"a": 1.0}, version=2, encode=lambda value: b"1")
    assert after.version == 1


def test_an_item_that_came_back_is_not_told_as_gone() -> None:
    board = take(Board(), {"a": 1}, version=1, encode=encode)
    board = take(board, {}, version=2, encode=encode)
    board = take(board, {"a": 1}, version=3, encode=encode)
    change = since(board, 1)
    assert change is not None
    assert change.items == {"a": b"1"}
    assert change.gone == ()


def test_a_large_board_comes_in_frames_of_which_the_first_and_the_last_say_so() -> None:
    rows: Mapping[str, Any] = {str(number): "x" * 1000 for number in range(200)}
    frames = list(snapshot_frames("t", take(Board(), rows, version=1, encode=encode)))
    data = [LiveEvent.parse(frame).data for frame in frames]
    assert len(frames) > 3
    assert all(len(frame) < MOST_BYTES + 2000 for frame in frames)
    assert [("first" in part, "whole" in part) for part in data] == [
        (True, False),
        *[(False, False)] * (len(frames) - 2),
        (False, True),
    ]


def test_only_the_last_frame_of_a_batch_has_a_place() -> None:
    frames = list(last_with_id([b"data: 1\n\n", b"data: 2\n\n"], "h.1"))
    assert frames == [b"data: 1\n\n", b"id: h.1\ndata: 2\n\n"]
    assert list(last_with_id([], "h.1")) == []


def test_markup_and_line_ends_in_names_stay_text_inside_one_line() -> None:
    nasty = "<script>alert(1)</script>\r\n\ndata: {}\u2028"
    board = take(Board(), {nasty: {"name": nasty}}, version=1, encode=encode)
    (frame,) = snapshot_frames("nodes", board)
    assert frame.count(b"\n") == 3  # of the event, of its data, and the one that ends it
    assert LiveEvent.parse(frame).data["items"] == {nasty: {"name": nasty}}
