"""What to do with a range that comes for a file of which there may be something already. Pure: LocalAI's table."""

from dataclasses import dataclass
from enum import Enum

from corral.wire.file_transfer import ContentRange


class RangeVerdict(Enum):
    APPEND = "append"
    RESTART = "restart"
    """What is there belongs to something else: begin anew, from this range."""
    CONFLICT = "conflict"
    """The range goes on with another file than the one that was begun: drop that one and say so."""
    ELSEWHERE = "elsewhere"
    """The range does not begin where the file ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What is there."""

    size: int = 0
    target: str = ""
    """The hash that an unfinished upload will have; empty when it was not said, or when the file is finished."""
    hash: str = ""
    """Of a finished file, where it is known."""


def judge(wanted: ContentRange, digest: str, present: Present) -> RangeVerdict:
    """`digest` is the hash that the whole file shall have; empty when the client did not say."""
    size = present.size
    if wanted.start == 0 and size > 0:
        if not digest or (present.target or present.hash) != digest:
            return RangeVerdict.RESTART
        if present.target and size >= wanted.total:  # all bytes are there and were found wrong
            return RangeVerdict.RESTART
    elif wanted.start > 0 and digest and present.target and present.target != digest:
        return RangeVerdict.CONFLICT
    return RangeVerdict.APPEND if wanted.start == size else RangeVerdict.ELSEWHERE
