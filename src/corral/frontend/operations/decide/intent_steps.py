"""What becomes of an intent while somebody works on it: after a look at the node, and after each end of a call."""

from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from corral.frontend.operations.decide.intent import (
    CLOCK_SKEW,
    TOLD,
    Before,
    Intent,
    IntentPolicy,
    IntentState,
    Outstanding,
    Proven,
    Sighting,
    Unproven,
    together,
)
from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to send: it is satisfied, blocked, or waits."""

    intent: Intent


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """Store the intent, then send the request that brings it about."""

    intent: Intent
    replaces: bool = False
    """Whether the request replaces what is there."""


IntentStep = Rest | Send


def look(
    intent: Intent, evidence: Sighting, now: datetime, policy: IntentPolicy, *, is_corral: bool, life: str = ""
) -> IntentStep:
    """What follows from a fresh look at the node.

    Corral's workers work on requests one after the other, and give each install a new date.
    """
    doubt = _still_open(intent.doubt, life, now)
    if doubt is not None and (doubt.until <= now or doubt.shows(evidence.had)):
        doubt = None  # those requests can have no more effect
    intent = replace(intent, outstanding=_still_open(intent.outstanding, life, now), doubt=doubt)
    in_doubt = doubt is not None and doubt.generation < intent.generation
    if in_doubt and doubt is not None and not is_corral:
        reason = because(ReasonCode.EARLIER_REQUEST)
        return Rest(intent=_look_again(intent, now, min(doubt.until, now + policy.look_again), reason))
    if evidence.unanswered is not None and not is_corral:
        return Rest(intent=_look_again(intent, now, now + policy.look_again, evidence.unanswered))
    proof = evidence.proof
    if isinstance(proof, Proven) and not in_doubt and evidence.unanswered is None:
        return Rest(intent=satisfied(intent, proof, now))
    if isinstance(proof, Unproven) and proof.is_hopeless and intent.may_block:
        return Rest(intent=blocked(intent, proof.reason, now))
    sent = intent.outstanding
    if sent is not None and (until := _patient_until(evidence, sent, policy)) > now:
        return Rest(intent=_look_again(intent, now, min(until, now + policy.look_again), intent.reason))
    if intent.before is None and evidence.renews and not is_corral and _is_recent(evidence.had, now):
        noted = replace(intent, before=evidence.had, next_try=now + policy.distinct_dates)
        return Rest(intent=replace(noted, changed_at=now))
    return _send(intent, evidence, now, policy, life)


def _still_open(sent: Outstanding | None, life: str, now: datetime) -> Outstanding | None:
    """A request, unless it ended with an earlier process of the worker.

    If the clock was set back since it was sent, nobody knows how long ago that was: then it counts as sent just now.
    """
    if sent is None or (sent.life and life and sent.life != life):
        return None
    if sent.sent_at <= now + CLOCK_SKEW:
        return sent
    return replace(sent, sent_at=now, until=now + (sent.until - sent.sent_at))


def _patient_until(evidence: Sighting, sent: Outstanding, policy: IntentPolicy) -> datetime:
    """Until when a request of ours that nobody answered is not repeated."""
    if sent.is_late:
        return sent.until
    replaces = evidence.renews or (not sent.verb.deletes and sent.before.present)
    return min(sent.until, sent.sent_at + policy.doubt) if replaces else sent.sent_at


def _is_recent(had: Before, now: datetime) -> bool:
    """Whether an install that begins now might be dated like the one that is there."""
    try:
        dated = datetime.fromisoformat(had.installed_at)
    except ValueError:
        return False
    return dated.tzinfo is not None and abs(now - dated) < timedelta(minutes=1)


def _send(intent: Intent, evidence: Sighting, now: datetime, policy: IntentPolicy, life: str) -> Send:
    unanswered = None if intent.outstanding is None else replace(intent.outstanding, is_several=True)
    outstanding = Outstanding(
        generation=intent.generation,
        verb=intent.verb,
        sent_at=now,
        until=now + 2 * policy.timeout(intent.verb),
        before=evidence.had,
        life=life,
    )
    sent = replace(
        intent,
        outstanding=outstanding,
        doubt=together(unanswered, intent.doubt),
        before=intent.before or evidence.had,
        waits_for_node=False,
        reason=None,
        changed_at=now,
        next_try=now,
    )
    return Send(intent=sent, replaces=not intent.verb.deletes and (evidence.renews or evidence.had.present))


# What becomes of an intent.


def satisfied(intent: Intent, proof: Proven, now: datetime) -> Intent:
    code = ReasonCode.ALREADY if intent.before is None else ReasonCode.PROVEN
    return _rested(intent, now, state=IntentState.SATISFIED, reason=because(code, rung=str(proof.rung)), attempts=0)


def blocked(intent: Intent, reason: Reason, now: datetime) -> Intent:
    return _rested(intent, now, state=IntentState.BLOCKED, reason=reason)


def heard(intent: Intent, *, is_corral: bool) -> Intent:
    """The node answered what is outstanding; a Corral worker has then finished all earlier requests too."""
    return replace(intent, outstanding=None, doubt=None if is_corral else intent.doubt)


def answered(
    intent: Intent,
    error: str | None,
    evidence: Sighting,
    now: datetime,
    policy: IntentPolicy,
    *,
    is_hopeless: bool = False,
) -> Intent:
    """The node answered and was looked at again: what it has decides, whatever the answer was.

    `is_hopeless` says of an error that no further attempt can change it.
    """
    if evidence.unanswered is not None:
        return _rested(intent, now, reason=evidence.unanswered, next_try=now + policy.look_again)
    proof = evidence.proof
    if isinstance(proof, Proven):
        return satisfied(intent, proof, now)
    if error is not None and is_hopeless:
        return blocked(intent, because(ReasonCode.NODE_SAID, text=error), now)
    if error is not None:
        return failed(intent, because(ReasonCode.NODE_SAID, text=error), now, policy)
    if proof.answer_proves:
        return satisfied(intent, Proven(rung=TOLD), now)
    if proof.is_hopeless:
        return blocked(intent, proof.reason, now)
    return failed(intent, because(ReasonCode.CONTRADICTED, proof=proof.reason), now, policy)


def answered_unseen(intent: Intent, error: str | None, now: datetime, policy: IntentPolicy) -> Intent:
    """The node answered, but its report is missing. An answer alone is no proof: look again soon."""
    if error is not None:
        return failed(intent, because(ReasonCode.NODE_SAID, text=error), now, policy)
    return _rested(intent, now, reason=because(ReasonCode.NOT_REPORTED), next_try=now + policy.look_again)


def failed(intent: Intent, reason: Reason, now: datetime, policy: IntentPolicy) -> Intent:
    """One attempt more that came to nothing."""
    attempts = intent.attempts + 1
    if attempts >= policy.attempts:
        return replace(blocked(intent, reason, now), attempts=attempts)
    next_try = now + policy.backoff.steady(attempts)
    return _rested(intent, now, attempts=attempts, reason=reason, next_try=next_try)


def timed_out(intent: Intent, now: datetime, policy: IntentPolicy) -> Intent:
    """No answer in time: the node may still be working, so this is no failure. It gets as long again."""
    timeout = policy.timeout(intent.verb)
    until = now + timeout
    late = intent.outstanding and replace(intent.outstanding, is_late=True, until=max(until, intent.outstanding.until))
    reason = because(ReasonCode.NO_ANSWER, seconds=f"{timeout.total_seconds():.0f}")
    return replace(_rested(intent, now, reason=reason, next_try=until), outstanding=late)


def unheard(intent: Intent, error: str, now: datetime, policy: IntentPolicy) -> Intent:
    """The bus went away, or the node sent no report: this counts neither as a failure nor as a success."""
    return _look_again(intent, now, now + policy.look_again, because(ReasonCode.CALL_FAILED, text=error))


def held(intent: Intent, why: Reason, now: datetime, policy: IntentPolicy) -> Intent:
    """The intent waits until what `why` names has happened, and is looked at again later."""
    return replace(_look_again(intent, now, now + policy.hold, why), waits_for_node=False)


def absent(intent: Intent, now: datetime, policy: IntentPolicy) -> Intent:
    """The node is away. It is waited for, however long that takes. What was asked of an absent store has ended.

    At first it is looked for again soon: it may have come back while this was decided, and then nobody tells.
    """
    pause = min(policy.absent, max(policy.hold, now - intent.accepted_at))
    if intent.kind.is_at_stores:
        intent = replace(intent, outstanding=None, reason=because(ReasonCode.STORE_AWAY))
    away = _look_again(intent, now, now + pause, intent.reason)
    return replace(away, waits_for_node=True)


def unreachable(intent: Intent, now: datetime, policy: IntentPolicy) -> Intent:
    """Nobody listens for the node, although it is not known to be away."""
    misses = intent.misses + 1
    return replace(absent(intent, now, policy), next_try=now + policy.misses.steady(misses), misses=misses)


def undelivered(intent: Intent, now: datetime, policy: IntentPolicy) -> Intent:
    """The request did not arrive: nobody listens for the node."""
    return replace(unreachable(intent, now, policy), outstanding=None)


def _look_again(intent: Intent, now: datetime, at: datetime, reason: Reason | None) -> Intent:
    return replace(intent, next_try=at, reason=reason, changed_at=now)


def _rested(intent: Intent, now: datetime, **changes: object) -> Intent:
    rested = replace(intent, outstanding=None, waits_for_node=False, misses=0, changed_at=now)
    return replace(rested, **changes)
