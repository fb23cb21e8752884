"""Which troubles of a load pass by themselves, so that its node is asked again soon instead of being given up.

hitch           what is behind it                                                        how long it may last
not_listening   a worker registers first and listens on NATS a moment later              `LISTENS_WITHIN` since then
still_ending    a LocalAI worker refuses a place whose last process it is still ending   `LoadPolicy.ending`
ended           and may answer with the address of that process instead                  `LoadPolicy.ending`
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from corral.frontend.nodes.decide.node import Node, may_not_listen_yet
from corral.frontend.serving.decide.load_job import LoadPolicy


class Hitch(StrEnum):
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
