"""Lines of backends: whole, bounded, and kept apart."""

import pytest

from corral.worker.processes.backend_logs import (
    LONGEST_LINE,
    MOST_BYTES,
    MOST_KEYS,
    MOST_LINES,
    BackendLogs,
    LineWriter,
    OutputStream,
)
from tests.kit.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_pieces_become_lines(clock: ManualClock) -> None:
    log = BackendLogs(clock).of("m#0")
    out, err = LineWriter(log, OutputStream.STDOUT), LineWriter(log, OutputStream.STDERR)
    out.feed(b"one\r\ntw")
    err.feed(b"oh \xff\n")
    out.feed(b"o\nthree")
    out.end()
    out.end()
    assert [(line.stream, line.text) for line in log.lines] == [
        ("stdout", "one"),
        ("stderr", "oh \ufffd"),
        ("stdout", "two"),
        ("stdout", "three"),
    ]
    assert (err.tail, log.lines[0].at) == (["oh \ufffd"], clock.now())


def test_of_a_line_of_a_megabyte_the_beginning_and_the_length_are_kept(clock: ManualClock) -> None:
    log = BackendLogs(clock).of("m#0")
    writer = LineWriter(log, OutputStream.STDOUT)
    for piece in (b"begin", *[b"x" * 65_536] * 16, b"end\r\nshort\n", b"y" * (LONGEST_LINE + 1), b"\n", b"z" * 20_000):
        writer.feed(piece)
    writer.end()
    assert [(line.text[:5], len(line.text), line.length) for line in log.lines] == [
        ("begin", LONGEST_LINE, 1024 * 1024 + len("beginend")),
        ("short", 5, 0),
        ("yyyyy", LONGEST_LINE, LONGEST_LINE + 1),
        ("zzzzz", LONGEST_LINE, 20_000),
    ]


def test_everything_is_bounded(clock: ManualClock) -> None:
    logs = BackendLogs(clock)
    writer = LineWriter(logs.of("0"), OutputStream.STDERR)
    for _ in range(MOST_BYTES // LONGEST_LINE + 5):
        writer.feed(b"x" * LONGEST_LINE + b"\n")
    assert sum(len(line.text) for line in logs.of("0").lines) == MOST_BYTES
    assert max(map(len, writer.tail)) < LONGEST_LINE
    writer.feed(b"\n" * (5 * MOST_LINES))
    assert len(logs.of("0").lines) == MOST_LINES
    assert len(writer.tail) == 20
    for number in range(MOST_KEYS + 1):
        logs.of(str(number))
    assert logs.of("0").lines == [], "the oldest log was forgotten"
