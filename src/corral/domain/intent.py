"""An intent: what a node should have, or not have, of one backend. There is one for each node and backend.

| state       | means                                                     | becomes                         |
|-------------|-----------------------------------------------------------|---------------------------------|
| `open`      | must be reached                                           | `satisfied` `blocked` `cancelled` |
| `satisfied` | proven; from then on only compared                        | (only a newer intent)           |
| `blocked`   | cannot succeed; stays until somebody changes something    | `open` `cancelled`              |
| `cancelled` | a person took it back, or its node was removed            | (only a newer intent)           |

A newer intent replaces an older one in any state and counts one generation up. A request that nobody answered may
still be under way at the node: until it was answered, its effect shows or its time is over it is kept, as *outstanding*
by the intent that sent it and as a *doubt* by whatever comes after. Of a node in doubt no report proves anything about
a newer wish. A Corral worker is asked all the same, since it finishes what it was told first; a LocalAI worker, whose
deletes overtake its installs, is not asked for anything else before. Each start of a worker is another *life*, which
Corral's workers tell and those of LocalAI begin by registering: what an earlier life was asked for has ended with it.

Everything here is decided from the intent, a report of the node and the time. Whoever does the work stores the intent
that comes out, and only if it still holds the lease on the one that went in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from corral.base.ids import LeaseToken, NodeId, OperationId
from corral.base.retry import Backoff
from corral.base.setting_kinds import duration
from corral.base.settings import setting
from corral.domain.artefacts import is_same_source
from corral.domain.backend import Before, Inventory, Verb, Wish, before_of


class IntentState(StrEnum):
    OPEN = "open"
    SATISFIED = "satisfied"
    BLOCKED = "blocked"
    CANCELLED = "cancelled"


NEXT: Final[Mapping[IntentState, frozenset[IntentState]]] = {
    IntentState.OPEN: frozenset({IntentState.SATISFIED, IntentState.BLOCKED, IntentState.CANCELLED}),
    IntentState.BLOCKED: frozenset({IntentState.OPEN, IntentState.CANCELLED}),
}  # satisfied and cancelled end a generation


CLOCK_SKEW: Final = timedelta(minutes=1)
"""What is from further in the future than this is from before a clock was set back. Frontends differ by less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentPolicy:
    """How long what may take."""

    install: timedelta = setting(
        duration("1s", "24h"),
        """How long a node may take to install a backend and to start a process of it, before it counts as still working
        on it. 15 minutes, as LocalAI has it: it may have to download.""",
        name="install_timeout",
        aliases=("LOCALAI_NATS_BACKEND_INSTALL_TIMEOUT",),
        default="15m",
    )
    upgrade: timedelta = setting(
        duration("1s", "24h"),
        """How long a node may take to answer an upgrade before it counts as still working on it. 15 minutes, as LocalAI
        has it.""",
        name="upgrade_timeout",
        aliases=("LOCALAI_NATS_BACKEND_UPGRADE_TIMEOUT",),
        default="15m",
    )
    delete: timedelta = setting(
        duration("1s", "24h"),
        """How long a node may take to delete a backend before it counts as still working on it. 2 minutes, as LocalAI
        has it: processes of the backend have to end first.""",
        name="delete_timeout",
        default="2m",
    )
    remove: timedelta = timedelta(seconds=30)
    """A model's files."""
    lease: timedelta = timedelta(seconds=6)
    """After so long without a sign of the frontend that works on it, another one goes on."""
    backoff: Backoff = Backoff(first=timedelta(seconds=30), cap=timedelta(minutes=15), spread=0.0)
    attempts: int = 10
    """Failures after which an intent is blocked."""
    look_again: timedelta = timedelta(seconds=5)
    """Between looks at a node that may still be working for somebody who is gone."""
    doubt: timedelta = timedelta(seconds=30)
    """How long a replacing request of a dead frontend is given to show an effect before it is sent again."""
    hold: timedelta = timedelta(seconds=1)
    """Between looks at replicas that must get out of the way first."""
    absent: timedelta = timedelta(seconds=30)
    """Until an absent node is looked for again, should nobody tell that it is back."""
    misses: Backoff = Backoff(first=timedelta(seconds=10), cap=timedelta(minutes=5), spread=0.0)
    """Between tries at a node that beats and does not respond."""
    distinct_dates: timedelta = timedelta(milliseconds=1100)
    """LocalAI dates installs to the second: before this time another one may get the same date."""

    def timeout(self, verb: Verb) -> timedelta:
        return {
            Verb.INSTALL: self.install,
            Verb.UPGRADE: self.upgrade,
            Verb.DELETE: self.delete,
            Verb.REMOVE: self.remove,
        }[verb]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outstanding:
    """A request that the node may still be working on."""

    generation: int
    """Of the intent that it was sent for; of several requests the oldest one's."""
    verb: Verb
    sent_at: datetime
    until: datetime
    """Later than this it has no more effect: twice its time-out after it was sent."""
    before: Before
    is_late: bool = False
    """Its sender waited to the end: the node is busy with it."""
    is_several: bool = False
    """It stands for more than one: the effect of one proves nothing about the others."""
    life: str = ""
    """Of the worker that it was sent to; empty when it did not tell, or for several lives."""

    def shows(self, inventory: Inventory, key: str) -> bool:
        """Whether the report shows its effect, so that no other can follow."""
        if self.is_several:
            return False
        now = before_of(inventory, key)
        return not now.present if self.verb is Verb.DELETE else now.present and now != self.before


def together(one: Outstanding | None, other: Outstanding | None) -> Outstanding | None:
    if one is None or other is None:
        return one or other
    return replace(
        one,
        generation=min(one.generation, other.generation),
        until=max(one.until, other.until),
        is_late=one.is_late or other.is_late,
        is_several=True,
        life=one.life if one.life == other.life else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    node_id: NodeId
    wish: Wish
    operation_id: OperationId
    generation: int = 1
    state: IntentState = IntentState.OPEN
    accepted_at: datetime
    changed_at: datetime
    before: Before | None = None
    """What the node had when it was first asked for this wish."""
    outstanding: Outstanding | None = None
    """Sent for this wish, and not answered."""
    doubt: Outstanding | None = None
    """Other requests that nobody answered, for older wishes or sent twice."""
    attempts: int = 0
    """Failures in a row."""
    misses: int = 0
    """Times in a row that nobody listened although the node beats."""
    next_try: datetime
    waits_for_node: bool = False
    message: str = ""
    """Why it is not satisfied, or what proved it."""
    lease_token: LeaseToken | None = field(default=None, repr=False)
    lease_until: datetime | None = None

    @property
    def backend(self) -> str:
        return self.wish.key

    @property
    def has_been_asked(self) -> bool:
        """Whether the node was asked, or need not be: what came with a machine can never be deleted."""
        return self.before is not None or self.wish.verb is Verb.DELETE


# What people do.


def supersede(old: Intent | None, new: Intent) -> Intent:
    """A newer intent takes the place of whatever was there; what is still under way at the node is not forgotten."""
    if old is None:
        return new
    return replace(
        new,
        wish=_called_as_before(new.wish, old),
        generation=old.generation + 1,
        doubt=together(old.outstanding, old.doubt),
        lease_token=old.lease_token,
        lease_until=old.lease_until,
    )


def _called_as_before(wish: Wish, old: Intent) -> Wish:
    """The alias of what a wish replaces stays: no worker reports it, and LocalAI's forget it unless it is sent again.

    An upgrade from another uri than ours replaces what somebody else has installed since, with an alias of its own.
    """
    is_there = wish.verb is Verb.UPGRADE or old.state is IntentState.SATISFIED
    if wish.verb.deletes or wish.artefact.alias or not is_there:
        return wish
    uri, before = wish.artefact.uri, old.wish.artefact.uri
    if wish.verb is Verb.UPGRADE and uri and before and not is_same_source(uri, before):
        return wish
    return replace(wish, artefact=replace(wish.artefact, alias=old.wish.artefact.alias))


def overtaken(intent: Intent, worked: Intent, *, is_corral: bool) -> Intent:
    """What an intent learns from a request that was sent before it was superseded or cancelled, and has now ended."""
    late = worked.outstanding if worked.outstanding is not None and worked.outstanding.is_late else None
    if late is not None:
        return replace(intent, outstanding=None, doubt=together(late, intent.doubt))
    known = intent.doubt
    done = known is None or is_corral or not known.is_several
    return replace(intent, outstanding=None, doubt=None if done else known)


def may_retry(intent: Intent) -> bool:
    return intent.state is IntentState.BLOCKED or (intent.state is IntentState.OPEN and intent.attempts > 0)


def retry(intent: Intent, now: datetime) -> Intent:
    """Begin to count anew, at once."""
    return replace(
        intent,
        state=IntentState.OPEN,
        attempts=0,
        misses=0,
        next_try=now,
        message="",
        waits_for_node=False,
        changed_at=now,
    )


def may_cancel(intent: Intent) -> bool:
    return intent.state in (IntentState.OPEN, IntentState.BLOCKED)


def cancel(intent: Intent, why: str, now: datetime) -> Intent:
    """Ask for nothing more. What the node was told already it may finish: nobody can take that back."""
    message = f"{why}; it had been sent, and the node may still finish it" if intent.outstanding else why
    return replace(intent, state=IntentState.CANCELLED, message=message, waits_for_node=False, changed_at=now)


class LoadNeed(StrEnum):
    """What a cold load on a node means for the intent about its backend, or its model, that is there."""

    FREE = "free"
    """Nothing speaks against it."""
    REPLACE = "replace"
    """It was deleted, and that is done: from now on it is wanted there again."""
    REFUSED = "refused"
    """It is about to be deleted."""


def needed_by_load(intent: Intent | None, *, since: datetime, now: datetime) -> LoadNeed:
    """`since` is when the model came to be as it is."""
    if intent is None or not intent.wish.verb.deletes:
        return LoadNeed.FREE
    if intent.wish.verb is Verb.REMOVE:
        return LoadNeed.REFUSED if _may_take_files(intent, since, now) else LoadNeed.FREE
    match intent.state:
        case IntentState.SATISFIED:
            return LoadNeed.REPLACE
        case IntentState.OPEN | IntentState.BLOCKED:
            return LoadNeed.REFUSED
        case IntentState.CANCELLED:
            return LoadNeed.FREE


def _may_take_files(removal: Intent, since: datetime, now: datetime) -> bool:
    """Whether a load would leave files that nobody deletes any more, or have them deleted under its hands.

    Others than open ones were followed by the same model, added anew, unless the frontend that loads does not know yet.
    """
    unanswered = together(removal.outstanding, removal.doubt)
    if removal.state is IntentState.OPEN or (unanswered is not None and unanswered.until > now):
        return True
    return removal.state is not IntentState.CANCELLED and since <= removal.accepted_at


def is_due(intent: Intent, now: datetime, policy: IntentPolicy) -> bool:
    """Whether somebody may begin to work on it, or go on where another one went silent."""
    lease = intent.lease_until
    free = lease is None or lease <= now or lease > now + policy.lease + CLOCK_SKEW
    return (
        intent.state is IntentState.OPEN and free and (intent.next_try <= now or intent.changed_at > now + CLOCK_SKEW)
    )
