"""Durations, backoff, private files, errors and logs."""

import contextlib
import io
import json
import logging
import os
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base import logs
from corral.base.errors import CorralError, InvalidInput, NotFound, PathNotUsable
from corral.base.logs import JsonFormatter, LogFile, LogOutput, TextFormatter, log_context, set_up_logs
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.base.retry import Backoff
from corral.base.words import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("1m30s", 90),
        ("250ms", 0.25),
        ("24h", 86400),
        ("30d", 2592000),
        ("5", 5),
        ("1.5", 1.5),
        (" 2M ", 120),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "s", "10 s 5", "-1s", "ten", "1w", "1e3", "10ss"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(("seconds", "text"), [(5, "5s"), (125, "2m 5s"), (7260, "2h 1m"), (90000, "1d 1h")])
def test_durations_are_shown_short(seconds: int, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


@given(st.integers(0, 10_000))
def test_backoff_never_exceeds_its_cap(attempt: int) -> None:
    backoff = Backoff(first=timedelta(seconds=30), cap=timedelta(minutes=15))
    assert backoff.steady(attempt) <= backoff.cap
    assert backoff.delay(attempt) <= backoff.cap * 1.2


def test_backoff_doubles() -> None:
    backoff = Backoff(first=timedelta(seconds=30), cap=timedelta(minutes=15))
    assert [backoff.steady(n).total_seconds() for n in range(1, 8)] == [30, 60, 120, 240, 480, 900, 900]


def test_a_private_file_is_whole_and_only_the_owner_s(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert read_private(path) is None
    write_private(path, b"one")
    write_private(path, b"two")
    assert read_private(path) == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["secret"]


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0o644)
    with pytest.raises(PathNotUsable, match="chmod 600"):
        read_private(path)


def test_a_directory_that_cannot_be_made_says_which(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PathNotUsable, match="cannot create the directory"):
        make_private_directory(tmp_path / "file" / "below")
    assert stat.S_IMODE(make_private_directory(tmp_path / "new").stat().st_mode) == 0o700


def test_an_error_without_words_uses_its_docstring_and_fields() -> None:
    assert str(NotFound(node="n1")) == "There is no such thing: node=n1"
    assert str(NotFound("no node has the id x")) == "no node has the id x"
    assert str(InvalidInput("limit", "too large")) == "limit: too large"
    assert (CorralError.retryable, InvalidInput.code) == (False, "invalid_input")


def logged(formatter: logging.Formatter, message: str, **extra: object) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.info(message, extra=extra)
    return stream.getvalue().strip()


def test_json_logs_carry_the_event_the_context_and_no_secret() -> None:
    with log_context(node="n1"):
        line = json.loads(logged(JsonFormatter("control"), "joined", event="node.joined", registration_token="hush"))
    assert (line["message"], line["event"], line["node"], line["process"]) == ("joined", "node.joined", "n1", "control")
    assert line["registration_token"] == "***"


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("logging_as_before")
class TestLogFiles:
    def test_a_file_has_everything_and_standard_error_what_somebody_should_look_at(self, tmp_path: Path) -> None:
        terminal = io.StringIO()
        set_up_logs("control", LogOutput(directory=tmp_path / "logs"), stream=terminal)
        logging.getLogger("x").info("connected")
        logging.getLogger("x").warning("lost")
        file = tmp_path / "logs" / "control.log"
        assert [line.split("control   ")[1] for line in file.read_text().splitlines()] == ["connected", "warning: lost"]
        assert [line.split("control   ")[1] for line in terminal.getvalue().splitlines()] == ["warning: lost"]
        assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)

    def test_verbose_shows_everything_on_standard_error_too(self, tmp_path: Path) -> None:
        terminal = io.StringIO()
        set_up_logs("control", LogOutput(directory=tmp_path, is_verbose=True), stream=terminal)
        logging.getLogger("x").info("connected")
        assert "connected" in terminal.getvalue()
        assert "connected" in (tmp_path / "control.log").read_text()

    def test_a_full_file_is_renamed_and_the_oldest_one_deleted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "FILE_BYTES", 200)
        set_up_logs("control", LogOutput(directory=tmp_path), stream=io.StringIO())
        for number in range(50):
            logging.getLogger("x").info("line %d", number)
        assert sorted(file.name for file in tmp_path.iterdir()) == [
            "control.log",
            "control.log.1",
            "control.log.2",
            "control.log.3",
        ]
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in tmp_path.iterdir())
        assert "line 49" in (tmp_path / "control.log").read_text()

    def test_a_file_that_takes_no_more_is_told_once_and_stops_nothing(self, tmp_path: Path, capsys: Any) -> None:
        set_up_logs("control", LogOutput(directory=tmp_path), stream=io.StringIO())
        (handler,) = [one for one in logging.getLogger().handlers if isinstance(one, LogFile)]
        with open("/dev/full", "w", buffering=1) as full:
            whole, handler.stream = handler.stream, full
            logging.getLogger("x").info("one")
            logging.getLogger("x").info("two")
            handler.stream = whole
            with contextlib.suppress(OSError):
                full.close()
        assert capsys.readouterr().err.count("lines are missing from the log") == 1

    def test_nor_does_one_that_cannot_be_told_of_because_the_terminal_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_up_logs("control", LogOutput(directory=tmp_path), stream=io.StringIO())
        (handler,) = [one for one in logging.getLogger().handlers if isinstance(one, LogFile)]
        closed = io.TextIOWrapper(io.BytesIO())
        closed.close()
        with monkeypatch.context() as gone:
            gone.setattr("sys.stderr", closed)
            whole, handler.stream = handler.stream, closed
            logging.getLogger("x").info("one")
            handler.stream = whole
        logging.getLogger("x").info("two")
        assert "two" in (tmp_path / "control.log").read_text()

    def test_a_directory_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "control.log").mkdir()
        with pytest.raises(PathNotUsable, match=r"control\.log"):
            set_up_logs("control", LogOutput(directory=tmp_path))


def test_text_logs_are_for_people() -> None:
    line = logged(TextFormatter("up"), "ready", event="up.ready", url="http://x")
    assert line.endswith("up        ready  url=http://x")


def test_what_strangers_sent_neither_moves_the_cursor_nor_looks_like_another_line_in_text_logs() -> None:
    forged = "\x1b[2Jname\n2030-01-01 12:00:00 control   all is well"
    header, *more = logged(TextFormatter("up"), f"refused: {forged}", node=forged).splitlines()
    assert header.endswith("up        refused: �[2Jname")
    assert [line[:6] for line in more] == ["  2030", "  2030"]
    assert not any("\x1b" in line for line in more)
