"""How an operation stands, computed from its targets, in Corral's words and in LocalAI's."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from corral.base.ids import NodeId, OperationId
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import (
    NO_PROGRESS,
    Operation,
    OperationState,
    Pace,
    Progress,
    Target,
    TargetStatus,
    compat_status,
    error_text,
    merge,
    overall,
    seconds_left,
    seconds_left_of_all,
    shown_progress,
    speed_of,
    state_of,
    tried_again_at,
)
from corral.frontend.operations.decide.reasons import ReasonCode, because
from tests.kit.clock import START

QUEUED, DOWNLOADING = TargetStatus.QUEUED, TargetStatus.DOWNLOADING
BUSY, SUCCESS, ERROR = TargetStatus.RUNNING_ON_WORKER, TargetStatus.SUCCESS, TargetStatus.ERROR
BLOCKED, SUPERSEDED, CANCELLED = TargetStatus.BLOCKED, TargetStatus.SUPERSEDED, TargetStatus.CANCELLED


def target(status: TargetStatus, name: str = "w1", *, away: bool = False, message: str = "") -> Target:
    return Target(
        operation_id=OperationId("op1"),
        node_id=NodeId(name),
        node_name=name,
        subject="echo",
        status=status,
        waits_for_node=away,
        reason=because(ReasonCode.NODE_SAID, text=message) if message else None,
        changed_at=START,
    )


def operation(*targets: Target) -> Operation:
    return Operation(
        id=OperationId("op1"),
        verb=Verb.INSTALL,
        subject="echo",
        asked_by="me",
        accepted_at=START,
        targets=targets,
    )


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        ([QUEUED, SUCCESS], OperationState.RUNNING),
        ([DOWNLOADING, ERROR], OperationState.RUNNING),
        ([BUSY, SUCCESS], OperationState.RUNNING),
        ([SUCCESS, SUCCESS], OperationState.DONE),
        ([SUCCESS, SUPERSEDED], OperationState.DONE),
        ([SUCCESS, ERROR], OperationState.FAILED),
        ([SUCCESS, BLOCKED], OperationState.FAILED),
        ([CANCELLED, SUPERSEDED], OperationState.CANCELLED),
    ],
)
def test_the_state_follows_from_the_targets(statuses: list[TargetStatus], state: OperationState) -> None:
    assert state_of([target(one, f"w{number}") for number, one in enumerate(statuses)]) is state


def test_waiting_for_absent_nodes_is_neither_running_nor_failed_nor_green() -> None:
    away = target(QUEUED, "w2", away=True)
    assert state_of([target(SUCCESS), away]) is OperationState.WAITING
    assert state_of([target(ERROR), away]) is OperationState.FAILED
    assert state_of([target(DOWNLOADING), away]) is OperationState.RUNNING
    shown = compat_status(operation(target(SUCCESS), away))
    assert (shown.processed, shown.completed, shown.error) == (True, False, "")
    assert shown.message == "waiting for w2 to come back"


def test_errors_are_joined_as_localai_joins_them_and_queued_is_none() -> None:
    targets = [target(ERROR, "a", message="x"), target(QUEUED, "b", away=True), target(BLOCKED, "c", message="y")]
    assert error_text(targets) == "a: x; c: y"
    assert compat_status(operation(*targets)).error == "a: x; c: y"


def test_a_node_that_is_still_busy_ends_the_operation_for_localais_clients_and_says_so() -> None:
    shown = compat_status(operation(target(SUCCESS), target(BUSY, "w2")))
    assert (shown.processed, shown.error, shown.completed) == (True, "", False)
    assert "still installing in background on w2" in shown.message


@pytest.mark.parametrize("other", [SUCCESS, SUPERSEDED, CANCELLED])
def test_what_was_taken_back_on_the_way_is_cancelled_for_localais_clients(other: TargetStatus) -> None:
    shown = compat_status(operation(target(other), target(CANCELLED, "w2")))
    assert (shown.processed, shown.cancelled, shown.completed, shown.message) == (True, True, False, "cancelled")


def test_progress_never_goes_back_and_late_events_change_nothing() -> None:
    known = NO_PROGRESS
    shares = []
    for share in (0.0, 88.0, 0.0, 50.0, 100.0):
        known = merge(known, Progress(percentage=share))
        shares.append(known.percentage)
    assert shares == [0, 88, 88, 88, 100]
    numbered = merge(NO_PROGRESS, Progress(sequence=5, percentage=40, file_name="new"))
    assert merge(numbered, Progress(sequence=4, percentage=90, file_name="old")) == numbered
    assert merge(NO_PROGRESS, Progress(percentage=float("nan"))).percentage == 0


def test_a_new_attempt_begins_anew_and_the_one_before_has_no_more_say() -> None:
    first = merge(NO_PROGRESS, Progress(attempt=1, sequence=9, percentage=80))
    second = merge(first, Progress(attempt=2, sequence=1, percentage=5))
    assert (second.attempt, second.sequence, second.percentage) == (2, 1, 5)
    assert merge(second, Progress(attempt=1, sequence=10, percentage=99)) == second


def test_a_speed_is_measured_over_time_and_forgotten_when_nothing_is_heard() -> None:
    told = [(0.0, 0), (1.0, 100), (1.1, 150), (2.0, 300)]
    known = NO_PROGRESS
    for at, done in told:
        known = merge(known, Progress(current_bytes=done, total_bytes=1000), at=at)
    assert speed_of(known, 2.5) == 150  # between 100 and 200
    assert seconds_left(known, 2.5) == pytest.approx(700 / 150)
    assert (speed_of(known, 60.0), seconds_left(known, 60.0)) == (0, None)
    anew = merge(known, Progress(current_bytes=10, total_bytes=1000), at=3.0)
    assert speed_of(anew, 3.0) == 0


def moving(current: int, total: int, *, speed: int) -> Progress:
    """One that has heard of `speed` bytes per second, one second ago."""
    return Progress(current_bytes=current, total_bytes=total, pace=Pace(at=0.0, bytes=current, per_second=speed))


FAST, SLOW = moving(0, 100, speed=100), moving(0, 100, speed=10)
SILENT, HERE, MUTE = moving(0, 100, speed=0), moving(100, 100, speed=0), NO_PROGRESS


@pytest.mark.parametrize(
    ("shares", "left"),
    [
        ([(target(DOWNLOADING), FAST), (target(DOWNLOADING), SLOW)], 10),
        ([(target(DOWNLOADING), FAST), (target(SUCCESS), SLOW), (target(BLOCKED), MUTE)], 1),
        ([(target(DOWNLOADING), FAST), (target(BUSY), HERE), (target(ERROR), SLOW)], 1),
        ([(target(DOWNLOADING), FAST), (target(QUEUED, away=True), MUTE)], 1),
        ([(target(DOWNLOADING), FAST), (target(DOWNLOADING), SILENT)], None),
        ([(target(DOWNLOADING), FAST), (target(BUSY), MUTE)], None),
        ([(target(DOWNLOADING), FAST), (target(QUEUED), MUTE)], None),
        ([(target(SUCCESS), MUTE)], None),
        ([], None),
    ],
)
def test_the_whole_takes_as_long_as_its_slowest_and_is_unknown_where_one_is(
    shares: list[tuple[Target, Progress]], left: float | None
) -> None:
    assert seconds_left_of_all(shares, 1.0) == left


def test_a_late_word_changes_nothing_about_an_end() -> None:
    told = Progress(percentage=50, phase="downloading")
    for status in TargetStatus:
        moves = status in (TargetStatus.DOWNLOADING, TargetStatus.RUNNING_ON_WORKER)
        assert shown_progress(target(status), told) == (told if moves else NO_PROGRESS)


def test_the_whole_is_the_mean_of_all_that_do_not_wait() -> None:
    half = replace(NO_PROGRESS, percentage=50.0)
    shares = [(target(SUCCESS), NO_PROGRESS), (target(DOWNLOADING), half), (target(QUEUED, away=True), NO_PROGRESS)]
    assert overall(shares) == 75
    assert overall([]) == 0


def test_what_failed_says_when_it_is_tried_again() -> None:
    failed = replace(target(ERROR), attempts=2)

    assert tried_again_at(failed) == START + timedelta(minutes=1)
    assert tried_again_at(replace(failed, waits_for_node=True)) is None
    assert tried_again_at(target(BLOCKED)) is None
