"""An intent: what a node should have, or not have, of one subject. There is one for each node, kind and subject.

The *kind* says what an intent is about: a backend, a model, or its files, in a store or on a node. A store is a
directory that frontends share, and stands where a node does. The room that owns the kind plans intents, sends the
requests and reads the proof from what nodes report; its conclusions arrive here as `Sighting`. The payload of an intent
is stored as it is, and only its kind understands it.

| state       | means                                                     | becomes                         |
|-------------|-----------------------------------------------------------|---------------------------------|
| `open`      | must be reached                                           | `satisfied` `blocked` `cancelled` |
| `satisfied` | proven; from then on only compared                        | (only a newer intent)           |
| `blocked`   | cannot succeed; stays until somebody changes something    | `open` `cancelled`              |
| `cancelled` | a person took it back, or its node was removed            | (only a newer intent)           |

A newer intent replaces an older one in any state and counts one generation up. A request that nobody answered may still
be under way at the node: until it was answered, its effect shows or its time is over it is kept, as *outstanding* by
the intent that sent it and as a *doubt* by the intents that follow. Of a node in doubt no report proves anything about
a newer wish. A Corral worker is asked all the same, since it finishes earlier requests first; a LocalAI worker, whose
deletes overtake its installs, is not asked for anything else before. Each start of a worker is another *life*, which
Corral's workers tell and those of LocalAI begin by registering: what an earlier life was asked for has ended with it.

Everything here is decided from the intent, a report of the node and the time. The caller stores the resulting intent
only if it still holds the lease on the original one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from corral.base.ids import LeaseToken, NodeId, OperationId
from corral.base.retry import Backoff
from corral.base.setting_kinds import duration
from corral.base.settings import setting
from corral.base.values import PartlyPrinted
from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because


class IntentKind(StrEnum):
    """What an intent is about. Each kind is implemented by the room that owns the subject."""

    BACKEND = "backend"
    MODEL = "model"
    PULL = "pull"
    """The files of a model in a store, and the model itself."""
    STAGING = "staging"
    """The files of a model on a node."""

    @property
    def noun(self) -> str:
        """What its subjects are, in one word that LocalAI knows too."""
        return "backend" if self is IntentKind.BACKEND else "model"

    @property
    def is_at_stores(self) -> bool:
        """Whether its places are stores, and not nodes."""
        return self is IntentKind.PULL

    @property
    def ends_with_sender(self) -> bool:
        """Whether a frontend does the work itself: it ends with that frontend, and when somebody cancels it."""
        return self in (IntentKind.PULL, IntentKind.STAGING)


class Verb(StrEnum):
    """What an operation does on each of its nodes."""

    INSTALL = "install"
    UPGRADE = "upgrade"
    DELETE = "delete"
    REMOVE = "remove"
    """Remove a model: nodes delete its files."""
    PULL = "pull"
    """Download the files of a model into a store, and add the model."""
    STAGE = "stage"
    """Bring the files of a model to nodes, and load nothing."""

    @property
    def kind(self) -> IntentKind:
        return _KINDS.get(self, IntentKind.BACKEND)

    @property
    def deletes(self) -> bool:
        return self in (Verb.DELETE, Verb.REMOVE)


_KINDS: Final = {Verb.REMOVE: IntentKind.MODEL, Verb.PULL: IntentKind.PULL, Verb.STAGE: IntentKind.STAGING}


Payload = Mapping[str, Any]
"""How a subject is wanted: a JSON document that only the kind of the intent reads and writes."""
IntentKey = tuple[NodeId, IntentKind, str]
"""Node, kind and subject. There is one intent for each."""


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


RETRIES: Final = Backoff(first=timedelta(seconds=30), cap=timedelta(minutes=15), spread=0.0)
"""The pauses between attempts that failed."""


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
    """How long a removal of a model's files may take."""
    pull: timedelta = timedelta(days=7)
    """The frontend that downloads knows how far it is, and ends the download with itself."""
    stage: timedelta = timedelta(days=7)
    """The files of a model on a node: the frontend that sends them knows how far it is."""
    lease: timedelta = timedelta(seconds=6)
    """After so long without a sign of the frontend that works on it, another one goes on."""
    backoff: Backoff = RETRIES
    attempts: int = 10
    """Failures after which an intent is blocked."""
    look_again: timedelta = timedelta(seconds=5)
    """Between looks at a node that may still be working for somebody who is gone."""
    doubt: timedelta = timedelta(seconds=30)
    """How long a replacing request of a dead frontend is given to show an effect before it is sent again."""
    hold: timedelta = timedelta(seconds=1)
    """Between looks at replicas that must get out of the way first."""
    absent: timedelta = timedelta(seconds=30)
    """How often an absent node is looked for, in case the event of its return was lost."""
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
            Verb.PULL: self.pull,
            Verb.STAGE: self.stage,
        }[verb]


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What a node had of a subject at some moment. If the date differs later, the subject was replaced since."""

    present: bool
    installed_at: str = ""
    """In the node's own words; only compared for being different, since the clock of a node may be set back."""


class Proven(msgspec.Struct, frozen=True, kw_only=True):
    rung: str
    """How strong the proof is; the kind has the list."""


class Unproven(msgspec.Struct, frozen=True, kw_only=True):
    reason: Reason
    is_hopeless: bool = False
    """No further attempt can change that."""
    is_other_digest: bool = False
    """Something else was installed than its tag named when it was asked for: the tag may have moved."""
    answer_proves: bool = False
    """No report of a node shows this subject, so the node's answer to a request is the proof."""


Proof = Proven | Unproven
TOLD: Final = "told"
"""The rung of a proof that is only the node's answer."""


class Report(Protocol):
    """What a node said to have, as its kind stores it."""

    @property
    def seen_at(self) -> datetime: ...


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind concludes from one look at a node, about one intent."""

    proof: Proof
    had: Before
    """What the node has now of the subject."""
    renews: bool = False
    """Whether the intent wants what is there to be replaced."""
    payload: Payload
    """The payload of the intent, updated if its meaning has changed since it was accepted."""
    report: Report | None = None
    """Stored together with what becomes of the intent."""
    unanswered: Reason | None = None
    """Why `proof` proves nothing yet: a load asked the node for this subject, and the node has not answered."""


class Outstanding(msgspec.Struct, frozen=True, kw_only=True):
    """A request that the node may still be working on."""

    generation: int
    """The generation of the intent that it was sent for; for several requests the oldest."""
    verb: Verb
    sent_at: datetime
    until: datetime
    """Later than this it has no more effect: twice its time-out after it was sent."""
    before: Before
    is_late: bool = False
    """Its sender waited to the end: the node is busy with it."""
    is_several: bool = False
    """This stands for several requests: the effect of one proves nothing about the others."""
    life: str = ""
    """Which process of the worker it was sent to; empty when unknown, or for several."""

    def shows(self, now: Before) -> bool:
        """Whether its effect shows in what the node has now, so that no further effect can follow."""
        if self.is_several:
            return False
        return not now.present if self.verb.deletes else now.present and now != self.before


def together(first: Outstanding | None, second: Outstanding | None) -> Outstanding | None:
    if first is None or second is None:
        return first or second
    return replace(
        first,
        generation=min(first.generation, second.generation),
        until=max(first.until, second.until),
        is_late=first.is_late or second.is_late,
        is_several=True,
        life=first.life if first.life == second.life else "",
    )


class Intent(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("lease_token",)

    node_id: NodeId
    verb: Verb
    subject: str
    """The canonical name on the node: a backend's directory, or the name of a model."""
    payload: Payload = msgspec.field(default_factory=dict)
    operation_id: OperationId
    generation: int = 1
    state: IntentState = IntentState.OPEN
    accepted_at: datetime
    changed_at: datetime
    before: Before | None = None
    """What the node had when it was first asked for this."""
    outstanding: Outstanding | None = None
    """Sent for this intent, and not answered."""
    doubt: Outstanding | None = None
    """Other requests that nobody answered, for older generations or sent twice."""
    attempts: int = 0
    """Number of failed attempts in a row."""
    misses: int = 0
    """Times in a row that nobody listened although the node beats."""
    next_try: datetime
    waits_for_node: bool = False
    reason: Reason | None = None
    """Why it is not satisfied, or what proved it."""
    lease_token: LeaseToken | None = None
    lease_until: datetime | None = None

    @property
    def kind(self) -> IntentKind:
        return self.verb.kind

    @property
    def key(self) -> IntentKey:
        return self.node_id, self.verb.kind, self.subject

    @property
    def may_still_finish(self) -> bool:
        """Whether what was sent may have its effect after a cancel. What a frontend does itself is ended."""
        return self.outstanding is not None and not self.kind.ends_with_sender

    @property
    def may_block(self) -> bool:
        """Whether a hopeless proof ends it: after the node was asked, or for a delete, which needs no question."""
        return self.before is not None or self.verb.deletes


# What people do.


Inherit = Callable[[Intent, Intent], Payload]
"""What a new intent takes over from the one that it supersedes: called with the new and the old one, returns the
payload of the new one."""


def supersede(old: Intent | None, new: Intent, inherit: Inherit) -> Intent:
    """A newer intent replaces the old one in any state; requests that may still run at the node are kept."""
    if old is None:
        return new
    return replace(
        new,
        payload=inherit(new, old),
        generation=old.generation + 1,
        doubt=together(old.outstanding, old.doubt),
        lease_token=old.lease_token,
        lease_until=old.lease_until,
    )


def overtaken(intent: Intent, worked: Intent, *, is_corral: bool) -> Intent:
    """What an intent learns from a request that was sent before it was superseded or cancelled, and has now ended."""
    late = worked.outstanding if worked.outstanding is not None and worked.outstanding.is_late else None
    if late is not None:
        return replace(intent, outstanding=None, doubt=together(late, intent.doubt))
    doubt = intent.doubt
    done = doubt is None or is_corral or not doubt.is_several
    return replace(intent, outstanding=None, doubt=None if done else doubt)


def may_retry(intent: Intent) -> bool:
    return intent.state is IntentState.BLOCKED or (intent.state is IntentState.OPEN and intent.attempts > 0)


def retry(intent: Intent, now: datetime) -> Intent:
    """Try again at once, and count failures from zero."""
    return replace(
        intent,
        state=IntentState.OPEN,
        attempts=0,
        misses=0,
        next_try=now,
        reason=None,
        waits_for_node=False,
        changed_at=now,
    )


def may_cancel(intent: Intent) -> bool:
    return intent.state in (IntentState.OPEN, IntentState.BLOCKED)


def cancel(intent: Intent, why: Reason, now: datetime) -> Intent:
    """Send nothing more. A request that was sent already cannot be taken back: the node may finish it."""
    reason = because(ReasonCode.CANCELLED_TOO_LATE, why=why) if intent.may_still_finish else why
    return replace(intent, state=IntentState.CANCELLED, reason=reason, waits_for_node=False, changed_at=now)


def is_due(intent: Intent, now: datetime, policy: IntentPolicy) -> bool:
    """Whether somebody may begin to work on it, or go on where another one went silent."""
    lease = intent.lease_until
    free = lease is None or lease <= now or lease > now + policy.lease + CLOCK_SKEW
    return (
        intent.state is IntentState.OPEN and free and (intent.next_try <= now or intent.changed_at > now + CLOCK_SKEW)
    )
