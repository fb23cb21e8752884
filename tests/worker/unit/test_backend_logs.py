"""Lines of backends: whole, bounded, and kept apart."""

import pytest

from corral.worker.processes.backend_logs import (
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


def test_everything_is_bounded(clock: ManualClock) -> None:
    logs = BackendLogs(clock)
    writer = LineWriter(logs.of("0"), OutputStream.STDERR)
    writer.feed(b"x" * (3 * MOST_BYTES))
    assert [len(line.text) for line in logs.of("0").lines] == [MOST_BYTES] * 3
    writer.feed(b"\n" * (5 * MOST_LINES))
    assert len(logs.of("0").lines) == MOST_LINES
    assert len(writer.tail) == 20
    for number in range(MOST_KEYS + 1):
        logs.of(str(number))
    assert logs.of("0").lines == [], "the oldest log was forgotten"
