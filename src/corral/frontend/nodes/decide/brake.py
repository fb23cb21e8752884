"""The mass-failure brake: when to believe that we are the ones who are wrong.

When many nodes go silent together, a switch or a frontend is more likely to have failed than all these machines; and a
frontend that could not hear for a while knows little of what happened. Then nothing is taken away because of silence,
and nothing is started elsewhere in its place. The brake lifts by itself: when the nodes are heard again, when they have
been silent for so long that they must be gone, or some time after hearing came back.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from corral.frontend.nodes.decide.node import Hearing


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakePolicy:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Approved nodes that have not said good-bye."""

    heard: int
    silent: int
    """Those that went silent within the window; who has been for longer is gone, and counts no more."""


def judge(pulse: Pulse, hearing: Hearing, *, recovered_at: datetime | None, now: datetime, policy: BrakePolicy) -> str:
    """Why the brake holds, for people to read; empty when it does not."""
    deaf = now - hearing.until
    if deaf > policy.tolerated_deafness:
        return f"control has heard nothing for {deaf.total_seconds():.0f} s"
    if recovered_at is not None and timedelta(0) <= now - recovered_at < policy.recovery:
        return f"control could not hear until {(now - recovered_at).total_seconds():.0f} s ago"
    all_of_them = pulse.heard + pulse.silent
    if pulse.silent >= policy.fewest and pulse.silent > policy.share * all_of_them:
        return f"{pulse.silent} of {all_of_them} nodes went silent together"
    return ""
