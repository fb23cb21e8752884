"""Diagnostics of the frontend: whether it answers, takes our key, and agrees with us on version and time."""

from datetime import UTC, datetime, timedelta
from typing import Final

from corral import __version__
from corral.base.errors import AccessDenied, CorralError
from corral.base.words import format_duration
from corral.cli.client import FrontendFailed, FrontendTarget, Unreachable
from corral.cli.doctor.examination import OK, PROBLEM, WARNING, Examination, finding
from corral.wire.nodes import Finding


def check_frontend(examination: Examination) -> Finding:
    """Does a frontend answer?"""
    words = examination.frontend
    if words.target is None:
        return finding(
            "frontend",
            PROBLEM,
            f"no frontend is known: there is no up.json in {examination.settings.data}",
            "Start one with `corral up`, or name one with --url or CORRAL_URL.",
        )
    if words.is_there:
        return finding("frontend", OK, f"{words.target.url} answers (from {words.target.origin})")
    return finding("frontend", PROBLEM, _summary(words.target, words.trouble), _remedy(words.trouble))


def _summary(target: FrontendTarget, trouble: CorralError | None) -> str:
    """What failed, without the error's advice to run doctor."""
    match trouble:
        case FrontendFailed():
            return f"{target.url} answers, but: {trouble.reason}"
        case Unreachable():
            return f"no answer from {target.url} (from {target.origin}): {trouble.reason}"
    return trouble.message if trouble is not None else "it does not answer"


def _remedy(trouble: CorralError | None) -> str:
    if isinstance(trouble, FrontendFailed):
        return "What died there is started again within seconds; if not, see the log of the frontend."
    return "Start it with `corral up` or `corral frontend`, or correct the URL."


_KEY_REMEDY = (
    "Set CORRAL_KEY or --key-file to an admin key; `corral keys reset-admin` makes one on the frontend's machine."
)


def check_key(examination: Examination) -> Finding | None:
    """Does the frontend accept our key?"""
    words = examination.frontend
    if isinstance(words.trouble, AccessDenied):
        return finding("key", PROBLEM, words.trouble.message, _KEY_REMEDY)
    return finding("key", OK, "the frontend accepts it") if words.report is not None else None


def check_version(examination: Examination) -> Finding | None:
    """Do this program and the frontend have the same version?"""
    if examination.frontend.version is None:
        return None
    theirs = examination.frontend.version.version
    if theirs == __version__:
        return finding("version", OK, f"{theirs} here and there")
    return finding(
        "version", WARNING, f"{__version__} here, {theirs} at the frontend", "Install the frontend's version here."
    )


TOLERATED_SECONDS: Final = 5.0
"""The frontend sends its time in whole seconds, and the answer took some time to arrive."""
ALARMING_SECONDS: Final = 300.0
"""From here on keys and certificates may look expired, or not yet valid."""
EARLIEST: Final = datetime(2025, 1, 1, tzinfo=UTC)
"""Corral did not exist before: such a clock was never set."""


def check_clock(examination: Examination) -> Finding:
    """Does our clock agree with the frontend's?"""
    return judge_clock(examination.frontend.clock_ahead_seconds, datetime.now(UTC))


def judge_clock(ahead_seconds: float | None, now: datetime) -> Finding:
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
