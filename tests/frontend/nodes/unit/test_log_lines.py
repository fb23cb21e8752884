"""Lines of backends: which are meant, how long they may be, and which are missing."""

import pytest

from corral.base.errors import InvalidInput
from corral.frontend.nodes.decide.log_lines import (
    FORGOTTEN,
    LONGEST_LINE,
    NOWHERE,
    TOO_SLOW,
    LogFrame,
    LogPlace,
    LogTail,
    PlacedLine,
    WantedLines,
    read_place,
    shown,
)
from corral.wire.logs import InitialLines, LiveLine, LogGap, LogLine, LogLineView, MissedLines
from tests.kit.samples import after


def line(number: int, text: str = "", **fields: str) -> LogLine:
    at = after(number).isoformat().replace("+00:00", "Z")
    return LogLine(**{"timestamp": at, "stream": "stdout", "text": text or f"line {number}", **fields})  # type: ignore[arg-type]


def seen(one: LogLine) -> LogLineView:
    return shown(PlacedLine(LogPlace(one.timestamp, 1), one))


def initial(*numbers: int) -> InitialLines:
    return InitialLines(lines=[line(number) for number in numbers])


def told(frames: list[LogFrame]) -> list[str]:
    return [f"gap: {frame.gap} {frame.lost}" if isinstance(frame, LogGap) else frame.text for frame in frames]


def test_a_line_of_a_megabyte_is_cut_never_inside_a_character_and_its_length_is_told() -> None:
    long = seen(line(1, "é" * 1024 * 1024))
    assert (len(long.text.encode()), long.truncated, long.length) == (LONGEST_LINE, True, 2 * 1024 * 1024)
    odd = seen(line(1, "a" + "é" * LONGEST_LINE))
    assert (len(odd.text.encode()), odd.text[-1], odd.truncated) == (LONGEST_LINE - 1, "é", True)
    whole = seen(line(1, "x" * LONGEST_LINE))
    assert (len(whole.text), whole.truncated, whole.length) == (LONGEST_LINE, False, LONGEST_LINE)
    cut_there = seen(LogLine(text="begin", length=5000))
    assert (cut_there.text, cut_there.truncated, cut_there.length) == ("begin", True, 5000)
    assert seen(line(1, "\ud800")).text == "?"


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (WantedLines(), [1, 2, 3, 4]),
        (WantedLines(lines=2), [3, 4]),
        (WantedLines(lines=0), []),
        (WantedLines(search="LINE 2"), [2]),
        (WantedLines(search="line", lines=1), [4]),
        (WantedLines(since=after(3)), [3, 4]),
        (WantedLines(after=LogPlace(line(3).timestamp, 1)), [4]),
        (WantedLines(search="nothing has this"), []),
    ],
)
def test_only_what_is_meant_is_shown(wanted: WantedLines, numbers: list[int]) -> None:
    shown_lines = LogTail(wanted).page([line(number) for number in (1, 2, 3, 4)])
    assert [one.text for one in shown_lines] == [f"line {number}" for number in numbers]


def test_a_line_whose_time_makes_no_sense_is_shown() -> None:
    odd = line(1, timestamp="x" * 100)
    [one] = LogTail(WantedLines(since=after(1000))).page([odd])
    assert one.at == "x" * 40


def test_who_follows_gets_what_is_there_and_then_what_comes() -> None:
    tail = LogTail(WantedLines(lines=1, search="line"))
    assert told(list(tail.take(initial(1, 2)))) == ["line 2"]
    assert told(list(tail.take(LiveLine(line=line(3))))) == ["line 3"]
    assert told(list(tail.take(LiveLine(line=line(4, "other"))))) == []
    assert told(list(tail.take(MissedLines(count=7)))) == [f"gap: {TOO_SLOW} 7"]


def test_after_a_break_nothing_is_told_twice_and_nothing_is_left_out() -> None:
    tail = LogTail(WantedLines(lines=0))
    assert list(tail.take(initial(1, 2))) == []
    list(tail.take(LiveLine(line=line(3))))
    assert told(list(tail.take(initial(1, 2, 3, 4, 5)))) == ["line 4", "line 5"]
    assert told(list(tail.take(initial(4, 5)))) == []


def test_what_the_worker_forgot_meanwhile_is_a_gap() -> None:
    tail = LogTail(WantedLines())
    list(tail.take(initial(1, 2)))
    assert told(list(tail.take(initial(5, 6)))) == [f"gap: {FORGOTTEN} None", "line 5", "line 6"]
    assert told(list(tail.take(InitialLines(lines=None)))) == [f"gap: {FORGOTTEN} None"]


def test_a_worker_without_lines_has_nothing_to_forget() -> None:
    tail = LogTail(WantedLines())
    assert list(tail.take(InitialLines(lines=[]))) == []
    assert told(list(tail.take(initial(1)))) == ["line 1"]


def test_lines_of_the_same_time_are_told_apart() -> None:
    lines = [line(1, "a"), line(1, "b"), line(1, "c"), line(2, "d")]
    ids = [one.id for one in LogTail(WantedLines()).page(lines)]
    assert len(set(ids)) == 4
    for number, id in enumerate(ids):
        later = LogTail(WantedLines(after=read_place(id), lines=0)).page(lines)
        assert [one.text for one in later] == ["b", "c", "d"][number:]
    tail = LogTail(WantedLines())
    list(tail.take(InitialLines(lines=lines[:1])))
    [live] = tail.take(LiveLine(line=lines[1]))
    assert isinstance(live, LogLineView)
    assert live.id == ids[1], "a line has the same id, whether it is read or followed"


@pytest.mark.parametrize(
    ("last", "told_after"),
    [("2030-01-01T00:00:00Z", ["half", "more"]), ("2030-01-01T00:00:00.5Z", ["more"]), ("no time", ["half", "more"])],
)
def test_times_are_compared_as_times_and_not_as_texts(last: str, told_after: list[str]) -> None:
    """Go leaves out zeros at the end of a fraction."""
    half = LogLine(timestamp="2030-01-01T00:00:00.5Z", text="half")
    more = LogLine(timestamp="2030-01-01T00:00:00.51Z", text="more")
    [gap, *lines] = LogTail(WantedLines(after=LogPlace(last, 7))).take(InitialLines(lines=[half, more]))
    assert (told([gap]), told(lines)) == ([f"gap: {FORGOTTEN} None"], told_after)


def test_a_node_cannot_end_a_line_of_the_stream_with_its_time() -> None:
    [one] = LogTail(WantedLines()).page([LogLine(timestamp="1\n\nevent: line\u2028", text="x")])
    assert (one.at, read_place(one.id)) == ("1event:line", LogPlace("1event:line", 1))


def test_an_id_that_is_none_is_refused() -> None:
    assert read_place("") == NOWHERE
    for text in ("x", "/1", "x/", "x/-1", "x/1234567", "x" * 41 + "/1", "x/\u0661"):
        with pytest.raises(InvalidInput, match="Last-Event-ID"):
            read_place(text)
