"""Does our clock agree with the frontend's?"""

from datetime import UTC, datetime, timedelta
from typing import Final

from corral.base.durations import format_duration
from corral.cli.doctor.examination import OK, PROBLEM, WARNING, Examination, finding
from corral.wire.node_views import Finding

TOLERATED_SECONDS: Final = 5.0
"""The frontend tells its time in whole seconds, and the answer was under way."""
ALARMING_SECONDS: Final = 300.0
"""Keys and certificates begin to look expired, or not yet valid."""
EARLIEST: Final = datetime(2025, 1, 1, tzinfo=UTC)
"""Corral did not exist before: such a clock was never set."""


def check(seen: Examination) -> Finding:
    return judge(seen.frontend.clock_ahead_seconds, datetime.now(UTC))


def judge(ahead_seconds: float | None, now: datetime) -> Finding:
    if now < EARLIEST:
        return finding("clock", PROBLEM, f"this machine believes it is {now:%Y-%m-%d}", "Let NTP set its clock.")
    if ahead_seconds is None:
        return finding("clock", OK, "set; there is no frontend to compare it with")
    distance = abs(ahead_seconds)
    if distance <= TOLERATED_SECONDS:
        return finding("clock", OK, "agrees with the frontend's")
    relation = "behind" if ahead_seconds > 0 else "ahead of"
    summary = f"{format_duration(timedelta(seconds=distance))} {relation} the frontend's"
    level = PROBLEM if distance >= ALARMING_SECONDS else WARNING
    return finding("clock", level, summary, "Let NTP set the clocks of both machines.")
