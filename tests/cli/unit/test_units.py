"""Sizes, ages and times as people read them."""

from datetime import UTC, datetime

import pytest

from corral.cli.units import age, ago, moment, share, size

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
GIB = 1024**3


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (int(7.84 * GIB), "7.8 GiB"),
        (252 * GIB, "252 GiB"),
        (2**62, "4.0 EiB"),
        (2**80, "1048576.0 EiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_a_total_that_was_not_reported_is_a_dash() -> None:
    assert share(0, 0) == "–"
    assert share(0, GIB) == "0 B of 1.0 GiB"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "now"), (12.9, "12s ago"), (185, "3m 5s ago"), (90000, "1d 1h ago")]
)
def test_ages(seconds: float, text: str) -> None:
    assert ago(seconds) == text


@pytest.mark.parametrize("text", [None, "", "0001-01-01T00:00:00Z", "nonsense"])
def test_a_time_that_was_never_set_is_a_dash(text: str | None) -> None:
    assert moment(text, NOW) == "–"
    assert age(text, NOW) == "–"


def test_times_before_and_after_now() -> None:
    assert moment("2026-03-01T11:59:00Z", NOW).endswith("(1m 0s ago)")
    assert moment("2026-03-02T12:00:00Z", NOW).endswith("(in 1d 0h)")
