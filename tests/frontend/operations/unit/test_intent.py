"""What proves a wish, and what becomes of an intent: the ladder, rung by rung, and the stories that went wrong once."""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from corral.base.ids import NodeId, OperationId
from corral.frontend.backends.decide.backend import (
    Artefact,
    BackendEntry,
    Inventory,
    Rung,
    Wish,
    evidence_of,
    payload_of,
    prove,
)
from corral.frontend.models.decide.removal import evidence_of_removal
from corral.frontend.operations.decide import intent as intents
from corral.frontend.operations.decide import intent_steps
from corral.frontend.operations.decide.intent import (
    Before,
    Intent,
    IntentKind,
    IntentPolicy,
    IntentState,
    Proven,
    Sighting,
    Unproven,
    Verb,
)
from corral.frontend.operations.decide.intent_steps import IntentStep, Rest, Send
from corral.frontend.operations.decide.reasons import ReasonCode, because, sentence
from corral.frontend.serving.decide.load_job import LoadNeed, needed_by_load
from tests.kit.clock import START
from tests.kit.intent_model import FleetModel
from tests.kit.intent_model_checks import check_rest, settle
from tests.kit.intent_model_parts import WorkerConduct

POLICY = IntentPolicy()
OLD = Before(present=True, installed_at="2029-01-01T00:00:00Z")
OLD_ENTRY = BackendEntry(name="echo", installed_at=OLD.installed_at)
NEW_ENTRY = BackendEntry(name="echo", installed_at="2030-01-01T00:00:00Z")


def seen(*entries: BackendEntry) -> Inventory:
    return Inventory(entries=entries, seen_at=START)


def wish(verb: Verb = Verb.INSTALL, **artefact: object) -> Wish:
    return Wish(verb=verb, key="echo", artefact=Artefact(backend="echo", **artefact))  # type: ignore[arg-type]


def an_intent(verb: Verb = Verb.INSTALL, **artefact: object) -> Intent:
    return Intent(
        node_id=NodeId("n1"),
        verb=verb,
        subject="echo",
        payload=payload_of(wish(verb, **artefact).artefact),
        operation_id=OperationId("op1"),
        accepted_at=START,
        changed_at=START,
        next_try=START,
    )


def evidence(intent: Intent, report: Inventory) -> Sighting:
    return evidence_of_removal(intent) if intent.kind is IntentKind.MODEL else evidence_of(intent, report)


def look(intent: Intent, report: Inventory, now: datetime, policy: IntentPolicy, **given: bool | str) -> IntentStep:
    return intent_steps.look(intent, evidence(intent, report), now, policy, **given)  # type: ignore[arg-type]


def answered(intent: Intent, error: str | None, report: Inventory, now: datetime, policy: IntentPolicy) -> Intent:
    return intent_steps.answered(intent, error, evidence(intent, report), now, policy)


@pytest.mark.parametrize(
    ("wanted", "entries", "rung"),
    [
        (wish(), [OLD_ENTRY], Rung.PRESENT),
        (wish(), [], None),
        (wish(uri="oci://a"), [replace(OLD_ENTRY, uri="oci://a")], Rung.PRESENT),
        (wish(uri="oci://a"), [replace(OLD_ENTRY, uri="oci://b")], None),
        (wish(digests=frozenset({"d2"})), [replace(OLD_ENTRY, digest="d2")], Rung.DIGEST),
        (wish(digests=frozenset({"d2"})), [replace(OLD_ENTRY, digest="d1")], None),
        (wish(digests=frozenset({"i2", "p"})), [replace(OLD_ENTRY, digest="i1", platform_digest="p")], Rung.DIGEST),
        (wish(digests=frozenset({"p"})), [replace(OLD_ENTRY, platform_digest="q")], None),
        (wish(renewal="r"), [OLD_ENTRY], None),
        (wish(renewal="r"), [NEW_ENTRY], Rung.RENEWED),
        (wish(renewal="r", digests=frozenset({"d"})), [replace(OLD_ENTRY, digest="d")], None),
        (wish(Verb.UPGRADE, digests=frozenset({"d"})), [replace(OLD_ENTRY, digest="d")], Rung.DIGEST),
        (wish(Verb.UPGRADE, digests=frozenset({"d"})), [replace(NEW_ENTRY, digest="other")], None),
        (wish(Verb.UPGRADE), [OLD_ENTRY], None),
        (wish(Verb.UPGRADE), [replace(OLD_ENTRY, digest="d", source_digest="d")], Rung.DIGEST),
        (wish(Verb.UPGRADE), [replace(OLD_ENTRY, digest="d", source_digest="e")], None),
        (wish(renewal="r"), [replace(OLD_ENTRY, digest="d", source_digest="d")], None),
        (wish(Verb.UPGRADE), [NEW_ENTRY], Rung.RENEWED),
        (wish(Verb.UPGRADE, version="2"), [replace(NEW_ENTRY, version="2")], Rung.VERSION),
        (wish(Verb.UPGRADE, version="2"), [replace(NEW_ENTRY, version="1")], None),
        (wish(Verb.UPGRADE, version="2"), [NEW_ENTRY], Rung.RENEWED),
        (wish(Verb.UPGRADE, uri="oci://a"), [replace(NEW_ENTRY, uri="oci://b")], None),
        (wish(Verb.DELETE), [], Rung.ABSENT),
        (wish(Verb.DELETE), [replace(OLD_ENTRY, name="other")], Rung.ABSENT),
        (wish(Verb.DELETE), [OLD_ENTRY], None),
    ],
)
def test_only_a_report_that_shows_it_proves_a_wish(
    wanted: Wish, entries: list[BackendEntry], rung: Rung | None
) -> None:
    proof = prove(wanted, seen(*entries), OLD)
    assert (proof.rung if isinstance(proof, Proven) else None) == rung


def test_a_delete_by_the_name_of_a_meta_backend_wants_both_gone() -> None:
    wanted = Wish(verb=Verb.DELETE, key="cpu-echo", artefact=Artefact(backend="echo"))
    assert isinstance(prove(wanted, seen(replace(OLD_ENTRY, is_meta=True)), None), Unproven)
    assert prove(wanted, seen(), None) == Proven(rung=Rung.ABSENT)


def test_a_node_that_tells_neither_digest_nor_date_is_asked_once_and_then_blocked() -> None:
    bare = BackendEntry(name="echo")
    step = look(an_intent(Verb.UPGRADE), seen(bare), START, POLICY, is_corral=False)
    assert isinstance(step, Send)
    settled = answered(intent_steps.heard(step.intent, is_corral=False), None, seen(bare), START, POLICY)
    assert settled.state is IntentState.BLOCKED
    assert "nothing can prove" in sentence(settled.reason)


def test_what_came_with_the_machine_cannot_be_deleted_and_is_not_tried() -> None:
    system = BackendEntry(name="echo", is_system=True)
    step = look(an_intent(Verb.DELETE), seen(system), START, POLICY, is_corral=False)
    assert isinstance(step, Rest)
    assert step.intent.state is IntentState.BLOCKED


def test_what_is_there_already_is_satisfied_without_a_request() -> None:
    present = look(an_intent(), seen(OLD_ENTRY), START, POLICY, is_corral=False)
    absent = look(an_intent(Verb.DELETE), seen(), START, POLICY, is_corral=False)
    assert isinstance(present, Rest)
    assert isinstance(absent, Rest)
    assert present.intent.state is absent.intent.state is IntentState.SATISFIED


def test_another_uri_under_the_same_name_is_replaced() -> None:
    there = replace(OLD_ENTRY, uri="oci://b")
    step = look(an_intent(uri="oci://a"), seen(there), START, POLICY, is_corral=False)
    assert isinstance(step, Send)
    assert step.replaces


def test_a_time_out_is_no_failure_and_is_looked_at_again_when_it_is_over() -> None:
    step = look(an_intent(), seen(), START, POLICY, is_corral=False)
    assert isinstance(step, Send)
    at = START + POLICY.install
    late = intent_steps.timed_out(step.intent, at, POLICY)
    assert (late.attempts, late.next_try) == (0, at + POLICY.install)
    again = look(late, seen(), at + timedelta(minutes=1), POLICY, is_corral=False)
    assert isinstance(again, Rest)
    assert isinstance(look(late, seen(), late.next_try, POLICY, is_corral=False), Send)


def test_failures_back_off_as_the_reference_does_and_the_tenth_blocks() -> None:
    intent, pauses, refused = an_intent(), [], because(ReasonCode.NODE_SAID, text="no")
    for _ in range(9):
        intent = intent_steps.failed(intent, refused, START, POLICY)
        pauses.append((intent.next_try - START).total_seconds())
    assert pauses == [30, 60, 120, 240, 480, 900, 900, 900, 900]
    intent = intent_steps.failed(intent, refused, START, POLICY)
    assert (intent.state, sentence(intent.reason), intent.attempts) == (IntentState.BLOCKED, "no", 10)
    again = intents.retry(intent, START)
    assert (again.state, again.attempts) == (IntentState.OPEN, 0)


def test_a_success_that_the_report_contradicts_is_told_as_such_and_retried() -> None:
    told = answered(an_intent(), None, seen(), START, POLICY)
    assert sentence(told.reason) == "the node says that it is done, but the node does not have echo"
    assert (told.state, told.attempts) == (IntentState.OPEN, 1)


def test_an_error_that_the_report_contradicts_is_success() -> None:
    assert answered(an_intent(), "no", seen(OLD_ENTRY), START, POLICY).state is IntentState.SATISFIED


def test_an_upgrade_within_the_second_of_an_install_waits_until_dates_can_differ() -> None:
    just = replace(OLD_ENTRY, installed_at=START.isoformat())
    step = look(an_intent(Verb.UPGRADE), seen(just), START, POLICY, is_corral=False)
    assert isinstance(step, Rest)
    assert step.intent.before is not None
    assert isinstance(look(an_intent(Verb.UPGRADE), seen(just), START, POLICY, is_corral=True), Send)
    later = START + POLICY.distinct_dates
    assert isinstance(look(step.intent, seen(just), later, POLICY, is_corral=False), Send)


def needed(intent: Intent | None, *, since: datetime = START, now: datetime = START) -> LoadNeed:
    return needed_by_load(intent, since=since, now=now)


def test_a_cold_load_replaces_a_finished_delete_and_never_an_open_one() -> None:
    delete = an_intent(Verb.DELETE)
    assert needed(None) is LoadNeed.FREE
    assert needed(an_intent()) is LoadNeed.FREE
    assert needed(delete) is LoadNeed.REFUSED
    assert needed(replace(delete, state=IntentState.SATISFIED)) is LoadNeed.REPLACE


def test_a_load_waits_for_every_removal_of_its_model_that_may_still_take_its_files() -> None:
    later = START + timedelta(seconds=1)
    over = START + 2 * POLICY.remove
    step = look(an_intent(Verb.REMOVE), seen(), START, POLICY, is_corral=True)
    assert isinstance(step, Send)
    taken_back = intents.cancel(step.intent, because(ReasonCode.MODEL_ADDED_AGAIN), later)
    done = answered(intent_steps.heard(step.intent, is_corral=True), None, seen(), START, POLICY)
    assert needed(step.intent, since=later, now=over) is LoadNeed.REFUSED
    assert needed(taken_back, since=later, now=later) is LoadNeed.REFUSED
    assert needed(taken_back, since=later, now=over) is LoadNeed.FREE
    assert needed(done, since=later, now=later) is LoadNeed.FREE


def test_a_frontend_that_does_not_know_of_a_removal_yet_loads_nothing() -> None:
    done = answered(an_intent(Verb.REMOVE), None, seen(), START, POLICY)
    assert needed(done, since=START) is LoadNeed.REFUSED


@pytest.mark.parametrize("node", ["c", "l"])
@pytest.mark.parametrize("first", [Verb.INSTALL, Verb.DELETE])
def test_a_request_of_a_dead_frontend_does_not_undo_what_people_wanted_later(node: str, first: Verb) -> None:
    then = Verb.DELETE if first is Verb.INSTALL else Verb.INSTALL
    model = FleetModel()
    if first is Verb.DELETE:
        model.accept(Verb.INSTALL, "echo", [node])
        settle(model)
    model.accept(first, "echo", [node])
    model.step(0, (node, "echo"))
    model.crash(0)
    model.pass_time(timedelta(seconds=7))
    model.accept(then, "echo", [node])
    model.step(1, (node, "echo"))
    settle(model)
    check_rest(model)
    assert ("echo" in model.workers[node].disk) is (then is Verb.INSTALL)


def test_a_request_sent_twice_to_a_worker_that_takes_them_in_any_order_does_not_undo_a_delete() -> None:
    model = FleetModel()
    model.accept(Verb.INSTALL, "echo", ["l"])
    for number in (0, 1):
        model.step(number, ("l", "echo"))
        model.crash(number)
        model.pass_time(timedelta(seconds=7))
    model.work("l", 1, WorkerConduct.HONEST)
    model.accept(Verb.DELETE, "echo", ["l"])
    model.step(0, ("l", "echo"))
    settle(model)
    check_rest(model)


def test_a_tag_that_moves_between_question_and_pull_is_still_an_upgrade() -> None:
    model = FleetModel()
    model.accept(Verb.INSTALL, "echo", ["c"])
    settle(model)
    model.move_tag()
    model.accept(Verb.UPGRADE, "echo", ["c"])
    model.step(0, ("c", "echo"))
    model.move_tag()
    model.work("c", 0, WorkerConduct.HONEST)
    model.hear(0)
    assert model.stored["c", "echo"].state is IntentState.SATISFIED
    assert sum(model.sent.values()) == 2


def test_a_node_that_was_away_for_a_day_gets_there_with_its_first_sign_of_life() -> None:
    model = FleetModel()
    model.go_down("l")
    model.accept(Verb.INSTALL, "echo", ["l", "c"])
    for _ in range(24):
        model.step(0, ("l", "echo"))
        model.pass_time(timedelta(hours=1))
    waiting = model.stored["l", "echo"]
    assert (waiting.state, waiting.attempts, waiting.waits_for_node) == (IntentState.OPEN, 0, True)
    model.come_back("l")
    model.step(0, ("l", "echo"))
    model.work("l", 0, WorkerConduct.HONEST)
    model.hear(0)
    assert model.stored["l", "echo"].state is IntentState.SATISFIED
