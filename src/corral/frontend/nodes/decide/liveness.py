"""Whether nodes are alive: how much silence means what, and when silence of many proves little.

Status is computed and never stored, so no route, silence or re-registration can turn a pending node into a healthy one.

| status      | when (the first line that holds)                                             |
|-------------|------------------------------------------------------------------------------|
| `pending`   | nobody approved it                                                           |
| `offline`   | it deregistered, or was silent for `offline_after` of its intervals          |
| `unhealthy` | silent for `unhealthy_after` of its intervals, or it did not respond on NATS |
| `draining`  | a person or the worker itself asked for it                                   |
| `healthy`   | otherwise                                                                    |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from corral.base.ids import Incarnation
from corral.base.setting_kinds import whole
from corral.base.settings import setting
from corral.frontend.nodes.decide.node import Node, NodeFacts, NodeStatus, ReportedCard, report_cards


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessPolicy:
    """How much silence means what, counted in heartbeat intervals of the node itself."""

    unhealthy_after: int = setting(
        whole(1, 1000),
        """Heartbeats in a row that a node may miss before it is unhealthy and gets no new work. 3, so that one lost
        packet and one slow disk are forgiven.""",
        default=3,
    )
    offline_after: int = setting(
        whole(2, 10000),
        """Heartbeats in a row that a node may miss before it is offline and what it ran is replaced. 6: a minute with
        LocalAI's interval, as long as LocalAI waits. Must be more than `unhealthy_after`.""",
        default=6,
    )
    assumed_interval: timedelta = timedelta(seconds=10)
    """LocalAI workers never say theirs; this is their default."""
    longest_learned_interval: timedelta = timedelta(minutes=5)
    """A longer gap was an outage, not a habit."""
    tolerated_skew: timedelta = timedelta(seconds=5)
    """A heartbeat further in the future than this was written by a clock that has since been set back."""
    tolerated_deafness: timedelta = timedelta(seconds=3)
    """How old the last proof that control can hear may be before silence stops counting."""


class Hearing(msgspec.Struct, frozen=True, kw_only=True):
    """The last unbroken time in which some control process could hear: itself, the database and NATS were up."""

    since: datetime
    until: datetime
    """The last moment for which that is proven."""


def heartbeat_interval(facts: NodeFacts, policy: LivenessPolicy) -> timedelta:
    """The worker's own interval; for one that never says it, the longest of the last gaps seen."""
    if facts.stated_interval is not None:
        return facts.stated_interval
    return max((policy.assumed_interval, *facts.recent_gaps))


def silence(facts: NodeFacts, now: datetime, policy: LivenessPolicy, hearing: Hearing) -> timedelta:
    """How long nothing was heard although control could hear.

    A heartbeat in the future was written by a clock that is ahead of ours, or by ours before it was set back, which
    `forget_future` repairs: until then nothing is known of silence.
    """
    can_hear = now - hearing.until <= policy.tolerated_deafness
    end = now if can_hear else hearing.until
    return max(end - max(facts.last_heartbeat, hearing.since), timedelta(0))


def status_of(facts: NodeFacts, now: datetime, policy: LivenessPolicy, hearing: Hearing) -> NodeStatus:
    """The one word for a node; see the table at the top of this module."""
    if facts.approved_at is None:
        return NodeStatus.PENDING
    interval = heartbeat_interval(facts, policy)
    quiet = silence(facts, now, policy, hearing)
    if facts.deregistered_at is not None or quiet >= interval * policy.offline_after:
        return NodeStatus.OFFLINE
    if facts.no_responders_at is not None or quiet >= interval * policy.unhealthy_after:
        return NodeStatus.UNHEALTHY
    if facts.draining_since is not None:
        return NodeStatus.DRAINING
    return NodeStatus.HEALTHY


def next_look(facts: NodeFacts, now: datetime, policy: LivenessPolicy, hearing: Hearing) -> datetime | None:
    """When silence alone would next change the status; None when it cannot."""
    if facts.approved_at is None or facts.deregistered_at is not None:
        return None
    interval = heartbeat_interval(facts, policy)
    quiet = silence(facts, now, policy, hearing)
    for intervals in (policy.unhealthy_after, policy.offline_after):
        if quiet < interval * intervals:
            return now + interval * intervals - quiet
    return None


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life with what was measured; None means not reported, so the last value stays."""

    at: datetime
    measured: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Names of Capacity fields to bytes."""
    gpu_vendor: str | None = None
    cards: tuple[ReportedCard, ...] | None = None
    incarnation: Incarnation | None = None
    inventory: str = ""
    """The fingerprint of the backends that it has; not a fact of the node, and so not kept with it."""
    problems: tuple[str, ...] = ()


def beat(node: Node, heartbeat: Heartbeat, policy: LivenessPolicy, hearing: Hearing) -> Node:
    """Take in a heartbeat. It heals silence; it never approves, resumes or re-registers."""
    facts = node.facts
    gap = heartbeat.at - facts.last_heartbeat
    heard_whole_gap = facts.last_heartbeat >= hearing.since
    # Never go back, except from a future that only a wrong clock can have written.
    is_back_from_future = facts.last_heartbeat > heartbeat.at + policy.tolerated_skew
    last_heartbeat = heartbeat.at if is_back_from_future else max(facts.last_heartbeat, heartbeat.at)
    gaps = facts.recent_gaps
    if facts.stated_interval is None and heard_whole_gap and timedelta(0) < gap <= policy.longest_learned_interval:
        gaps = (*gaps, gap)[-5:]
    after = replace(
        node,
        facts=replace(
            facts,
            last_heartbeat=last_heartbeat,
            recent_gaps=gaps,
            no_responders_at=None,
            incarnation=heartbeat.incarnation or facts.incarnation,
        ),
        capacity=replace(node.capacity, **heartbeat.measured),
        gpu=node.gpu if heartbeat.gpu_vendor is None else replace(node.gpu, vendor=heartbeat.gpu_vendor),
        problems=heartbeat.problems,
    )
    return after if heartbeat.cards is None else report_cards(after, heartbeat.cards)


def forget_future(node: Node, *, now: datetime) -> Node:
    """After the clock was set back: what was heard later than now counts as heard now, so that silence can grow."""
    if node.facts.last_heartbeat <= now:
        return node
    return replace(node, facts=replace(node.facts, last_heartbeat=now))


class BrakePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to believe that we are the ones who are wrong.

    When many nodes go silent together, a switch or a frontend is more likely to have failed than all these machines;
    and a frontend that could not hear for a while knows little of what happened. Then nothing is taken away because of
    silence, and nothing is started elsewhere in its place. The brake lifts by itself: when the nodes are heard again,
    when they have been silent for so long that they must be gone, or some time after hearing came back.
    """

    share: float = 0.5
    """When more than this share of the nodes goes silent together, the brake holds."""
    fewest: int = 2
    """So many must be silent at least: one machine fails alone."""
    window: timedelta = timedelta(minutes=15)
    """What went silent within this time did so together, and is believed to be gone after it."""
    tolerated_deafness: timedelta = timedelta(seconds=10)
    """How old the last proof that control can hear may be."""
    recovery: timedelta = timedelta(seconds=30)
    """After control could not hear: three heartbeats, in which everybody can be heard again."""


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """Approved nodes that have not said good-bye."""

    heard: int
    silent: int
    """Nodes that went silent within the window. A node that has been silent for longer is not counted."""


def judge(pulse: Pulse, hearing: Hearing, *, recovered_at: datetime | None, now: datetime, policy: BrakePolicy) -> str:
    """Why the brake holds, for people to read; empty when it does not."""
    deaf = now - hearing.until
    if deaf > policy.tolerated_deafness:
        return f"control has heard nothing for {deaf.total_seconds():.0f} s"
    if recovered_at is not None and timedelta(0) <= now - recovered_at < policy.recovery:
        since, left = now - recovered_at, recovered_at + policy.recovery - now
        return (
            f"control could not hear until {since.total_seconds():.0f} s ago; "
            f"for {left.total_seconds():.0f} s more it waits for its nodes"
        )
    all_of_them = pulse.heard + pulse.silent
    if pulse.silent >= policy.fewest and pulse.silent > policy.share * all_of_them:
        return f"{pulse.silent} of {all_of_them} nodes went silent together"
    return ""
