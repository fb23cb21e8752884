"""Load jobs: the durable cold load of one replica. Requests that wait for a model share its job with the ordinal 0; the
model's other jobs load further replicas.

pending   waits for a node that can take it, or for a frontend to work on it
loading   a frontend works on it: it holds the lease
failed    given up for now; a request after `retry_at` starts it again

A job that succeeded is gone: the replica is what is left of it. A job is a list of steps that can each be repeated by
the frontend that takes the job over: existing results are found and not made twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, assert_never

import msgspec
from msgspec.structs import replace

from corral.base.ids import LeaseToken, LoadJobId, NodeId, ReplicaId
from corral.base.retry import Backoff
from corral.base.setting_kinds import duration
from corral.base.settings import setting
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.decide.node import Node, may_not_listen_yet
from corral.frontend.operations.decide.intent import CLOCK_SKEW, Intent, IntentState, Verb, together
from corral.wire.models import PERMANENT, LoadReason


class LoadState(StrEnum):
    PENDING = "pending"
    LOADING = "loading"
    FAILED = "failed"


NEXT: Final[Mapping[LoadState, frozenset[LoadState]]] = {
    LoadState.PENDING: frozenset({LoadState.LOADING}),
    LoadState.LOADING: frozenset({LoadState.PENDING, LoadState.FAILED, LoadState.LOADING}),
    LoadState.FAILED: frozenset({LoadState.PENDING}),
}


class LoadWhy(StrEnum):
    """The reason for which a replica is loaded."""

    ASKED = "asked"
    """A request waits for the model."""
    PERSON = "person"
    MINIMUM = "minimum"
    BUSY = "busy"
    SPREAD = "spread"
    DRAIN = "drain"
    """Another node is to be emptied."""
    MOVED = "moved"
    """Another one is where no rule wants it any more."""
    RESTORED = "restored"
    """An upgrade of the backend ended another one."""
    CHANGED = "changed"
    """The model's configuration was changed."""


MAY_END_OTHERS: Final = frozenset({LoadWhy.ASKED, LoadWhy.PERSON, LoadWhy.MINIMUM, LoadWhy.RESTORED, LoadWhy.CHANGED})
"""Loads for which other models may have to go. What is only nice to have waits until there is room."""
WAITS_FOR_ROOM: Final = frozenset({LoadReason.NO_PLACE, LoadReason.ROOM_IS_MADE, LoadReason.WAITS_FOR_TURN})


class LoadStepName(StrEnum):
    PLACE = "place"
    INSTALL = "install"
    STAGE = "stage"
    START = "start"
    LOAD = "load"


class LoadStep(NamedTuple):
    """A step that was begun."""

    name: LoadStepName
    began_at: datetime


class StepBound(msgspec.Struct, frozen=True, kw_only=True):
    """When a step has taken too long."""

    least: timedelta = timedelta(0)
    """The step may always take this long, whether anything moves or not."""
    stall: timedelta
    """After that it ends when nothing has moved for so long."""
    most: timedelta
    """The step may never take longer than this, however much moves."""

    def ends_at(self, began: float, moved_at: float) -> float:
        """In seconds of the clock that never jumps."""
        while_moving = max(began + self.least.total_seconds(), moved_at + self.stall.total_seconds())
        return min(while_moving, began + self.most.total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPolicy:
    """How long what may take."""

    fixed_load: timedelta | None = setting(
        duration("1s", "24h"),
        """How long a backend may take to load a model's weights. By default it depends on their size, as in LocalAI;
        a value holds for all, whether it is more or less.""",
        name="load_timeout",
        aliases=("LOCALAI_NATS_MODEL_LOAD_TIMEOUT",),
        default=None,
        default_text="5 minutes and 20 s per GiB, at most 6 h",
    )
    install: timedelta = timedelta(minutes=15)
    """A node's answer to an install; LocalAI's own bound, since it may have to download."""
    load: timedelta = timedelta(minutes=5)
    """LoadModel of weights whose size is not known."""
    load_per_gib: timedelta = timedelta(seconds=20)
    longest_load: timedelta = timedelta(hours=6)
    stall: timedelta = timedelta(minutes=5)
    """An install that has taken its time, and a staging, are given up when nothing has moved for so long."""
    stall_per_gib: timedelta = timedelta(seconds=10)
    """And so much more for the files of a model, which both sides may have to hash."""
    longest: timedelta = timedelta(hours=24)
    """No step takes longer, however much moves."""
    lease: timedelta = timedelta(seconds=30)
    """After so long without a sign of the frontend that works on it, another one goes on."""
    look_again: timedelta = timedelta(seconds=2)
    """Until a model that found no node is tried again; twice as long after every look that found none."""
    rarest_look: timedelta = timedelta(seconds=30)
    unwanted_after: timedelta = timedelta(minutes=10)
    """A load for a request is taken back when no request was seen for so long, and no node can take it."""
    cooldown: Backoff = Backoff(first=timedelta(seconds=5), cap=timedelta(minutes=5), spread=0.0)
    attempts: int = 3
    """Nodes that are tried before a job fails."""
    restarts: int = 3
    """Processes of a node's worker that are asked for the same load: one that ends each of them is passed over."""
    hitch_pause: timedelta = timedelta(seconds=1)
    """Until a node is asked again that is about to listen on NATS, or still ends an earlier process."""
    ending: timedelta = timedelta(seconds=25)
    """A LocalAI worker gives a process that it stops 5 s to free its model and 15 s to end."""

    def load_time(self, size_bytes: int) -> timedelta:
        """The deadline of LoadModel for weights of this size."""
        if self.fixed_load is not None:
            return self.fixed_load
        return min(self.load + self.load_per_gib * (size_bytes / 1024**3), self.longest_load)

    @property
    def install_bound(self) -> StepBound:
        return StepBound(least=self.install, stall=self.stall, most=self.longest)

    def stage_bound(self, size_bytes: int) -> StepBound:
        """For files of this size, as far as that is known."""
        return StepBound(stall=self.stall + self.stall_per_gib * (size_bytes / 1024**3), most=self.longest)


class LoadJob(msgspec.Struct, frozen=True, kw_only=True):
    id: LoadJobId
    model: str
    ordinal: int = 0
    revision: str
    why: LoadWhy = LoadWhy.ASKED
    state: LoadState
    steps: tuple[LoadStep, ...] = ()
    """The steps that were begun on the present node, the current one last; empty while no node is chosen."""
    node_id: NodeId | None = None
    replica_id: ReplicaId | None = None
    """The reserved replica; a frontend that takes the job over continues with it."""
    preferred_node_id: NodeId | None = None
    """Where it was before, or is wanted."""
    failures: int = 0
    """Times in a row that this model could not be loaded."""
    message: str = ""
    """What it waits for, or why it failed, with names and addresses: for administrators."""
    reason: LoadReason | None = None
    """Code of what it waits for or why it failed, for every client; None while there is nothing to say."""
    engine_lines: tuple[str, ...] = ()
    """What the engine wrote last before the load failed: for administrators."""
    retry_at: datetime
    """No attempt is made before this time."""
    lease_token: LeaseToken | None = None
    lease_until: datetime | None = None
    created_at: datetime
    changed_at: datetime

    @property
    def step(self) -> LoadStepName | None:
        return self.steps[-1].name if self.steps else None

    @property
    def is_permanent(self) -> bool:
        """Whether it failed in a way that comes again until somebody changes something."""
        return self.state is LoadState.FAILED and self.reason in PERMANENT


def step_seconds(job: LoadJob, now: datetime) -> Mapping[str, float]:
    """How long each step took, the current one until now. A step that was done twice counts with both."""
    ends = [*(step.began_at for step in job.steps[1:]), now]
    seconds: dict[str, float] = {}
    for step, end in zip(job.steps, ends, strict=False):
        seconds[step.name.value] = seconds.get(step.name.value, 0.0) + max((end - step.began_at).total_seconds(), 0.0)
    return seconds


def seconds_so_far(job: LoadJob, now: datetime) -> Mapping[str, float]:
    """Seconds that each step has taken until now. Time in which nobody works on the job does not count."""
    return step_seconds(job, now if job.state is LoadState.LOADING else job.changed_at)


_ADVANCED: Final = (LoadState.LOADING, LoadState.PENDING, LoadState.FAILED)


def furthest(jobs: Iterable[LoadJob]) -> LoadJob | None:
    """Return the job of a model whose progress waiting requests are shown; None if there is no job."""
    return min(jobs, key=lambda job: (_ADVANCED.index(job.state), job.ordinal), default=None)


def due_at(job: LoadJob) -> datetime:
    """When somebody may claim it, unless it changes before."""
    return job.lease_until or job.retry_at if job.state is LoadState.LOADING else job.retry_at


def next_look(job: LoadJob, now: datetime, policy: LoadPolicy) -> datetime:
    """When to look again for a node. News of the fleet come by themselves: without any, it waits on as long as it has
    waited."""
    return now + min(max(now - job.created_at, policy.look_again), policy.rarest_look)


def is_late_for_news(job: LoadJob, now: datetime, policy: LoadPolicy) -> bool:
    """Whether it looks later than it should when something in the fleet has changed."""
    waits = job.state is LoadState.PENDING and job.reason is LoadReason.NO_PLACE
    return waits and job.retry_at > max(now, job.changed_at + policy.look_again)


def may_claim(job: LoadJob, now: datetime, policy: LoadPolicy) -> bool:
    """Whether somebody may begin to work on it, or go on where another one went silent.

    What is from further in the future than clocks differ was written before the clock was set back.
    """
    match job.state:
        case LoadState.PENDING:
            return job.retry_at <= now or job.changed_at > now + CLOCK_SKEW
        case LoadState.LOADING:
            until = job.lease_until
            return until is None or until <= now or until > now + policy.lease + CLOCK_SKEW
        case LoadState.FAILED:
            return False


def is_cooling(job: LoadJob, now: datetime) -> bool:
    """Whether it failed, and its model is not to be tried again yet."""
    return job.state is LoadState.FAILED and job.retry_at > now and job.changed_at <= now + CLOCK_SKEW


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a load is."""

    phase: str = ""
    """`installing` or the word of the node, then `staging` and `loading`; empty when it is not known."""
    current_bytes: int | None = None
    total_bytes: int | None = None
    """The size of what the node downloads or is sent, or of the weights."""
    bytes_per_second: float | None = None
    eta_seconds: float | None = None
    file_index: int | None = None
    """Which file is sent, counted from 1."""
    total_files: int | None = None
    file: str = ""
    """The path of the file, for administrators."""


NO_LOAD_PROGRESS: Final = LoadProgress()


class LoadStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a model is, for those who wait for it."""

    model: str
    state: str
    """`loaded`, `failed`, or what is being done."""
    node: str = ""
    message: str = ""
    reason: LoadReason | None = None
    engine_lines: tuple[str, ...] = ()
    progress: LoadProgress = NO_LOAD_PROGRESS
    step: str = ""
    """The step of the job that is being done."""
    step_seconds: Mapping[str, float] = msgspec.field(default_factory=dict)
    is_permanent: bool = False
    retry_after: timedelta = timedelta(seconds=5)


class LoadNeed(StrEnum):
    """What an intent about a backend or a model on a node means for a cold load there."""

    FREE = "free"
    """Nothing prevents bringing the files."""
    REPLACE = "replace"
    """The files were deleted from the node, and that is finished; now they are wanted there again."""
    REFUSED = "refused"
    """The files are about to be deleted."""


def needed_by_load(intent: Intent | None, *, since: datetime, now: datetime) -> LoadNeed:
    """Whether a load may begin beside this intent; `since` is when the model's file was last written."""
    if intent is None or not intent.verb.deletes:
        return LoadNeed.FREE
    if intent.verb is Verb.REMOVE:
        return LoadNeed.REFUSED if _may_take_files(intent, since, now) else LoadNeed.FREE
    match intent.state:
        case IntentState.SATISFIED:
            return LoadNeed.REPLACE
        case IntentState.OPEN | IntentState.BLOCKED:
            return LoadNeed.REFUSED
        case IntentState.CANCELLED:
            return LoadNeed.FREE


def _may_take_files(removal: Intent, since: datetime, now: datetime) -> bool:
    """Whether a load would leave files that nobody deletes later, or lose its files to a removal under way.

    After a removal that is not open, the same model was added again, unless this frontend does not know it yet.
    """
    unanswered = together(removal.outstanding, removal.doubt)
    if removal.state is IntentState.OPEN or (unanswered is not None and unanswered.until > now):
        return True
    return removal.state is not IntentState.CANCELLED and since <= removal.accepted_at


class Hitch(StrEnum):
    """Trouble of a load that passes by itself, so that its node is asked again soon instead of being given up.

    hitch           what is behind it                                                        how long it may last
    not_listening   a worker registers first and listens on NATS a moment later              `LISTENS_WITHIN` since then
    still_ending    a LocalAI worker refuses a place whose last process it is still ending   `LoadPolicy.ending`
    ended           and may answer with the address of that process instead                  `LoadPolicy.ending`
    """

    NOT_LISTENING = "not_listening"
    """Nobody answers for the node on NATS."""
    STILL_ENDING = "still_ending"
    """The node says that the last process of this place is being stopped."""
    ENDED = "ended"
    """Nobody serves at the address that the node named."""


def will_pass(hitch: Hitch, node: Node, *, since: datetime | None, now: datetime, policy: LoadPolicy) -> bool:
    """Whether to ask the node again. `since` is when its answer was first waited for, and for a process that ended when
    the place last became free; None when nobody ever had it."""
    match hitch:
        case Hitch.NOT_LISTENING:
            return may_not_listen_yet(node.joined_at, now)
        case Hitch.STILL_ENDING | Hitch.ENDED:
            is_foreign = node.peer is None  # Corral's workers wait for the end of a process before they start the next
            return is_foreign and since is not None and timedelta(0) <= now - since < policy.ending
        case _:
            assert_never(hitch)


def says_that_it_ends(refusal: str, process_key: str) -> bool:
    """Whether a worker refuses a process because it is stopping the one before it."""
    return process_key in refusal and "stopping" in refusal


class HeldJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that this process holds the lease of."""

    job: LoadJob
    token: LeaseToken
    spec: ModelSpec

    def at_step(self, name: LoadStepName, at: datetime) -> "HeldJob":
        return replace(self, job=replace(self.job, steps=(*self.job.steps, LoadStep(name, at))))
