"""What a range of an upload says, and what to do with it where there may be something of the file already: LocalAI's
table and words. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from corral.wire.files import ContentRange
from corral.worker.files.refusals import FileRefused, bad_request


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


_MOST: Final = 2**63 - 1


def parse_content_range(text: str) -> ContentRange:
    """All three numbers must be there and fit each other; anything else is refused in LocalAI's words."""
    unit, _, rest = text.strip().partition(" ")
    if unit != "bytes":
        raise bad_request('invalid Content-Range: missing "bytes" prefix')
    span, slash, total = rest.strip().partition("/")
    if not slash:
        raise bad_request("invalid Content-Range: missing /total")
    start, dash, end = span.partition("-")
    if not dash:
        raise bad_request("invalid Content-Range: missing - separator")
    found = ContentRange(_number("start", start), _number("end", end), _number("total", total))
    if found.end < found.start or found.total <= found.end:
        raise bad_request(f"invalid Content-Range range: {found.start}-{found.end}/{found.total}")
    return found


def _number(which: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _unusable(which, text, "invalid syntax")
    if len(text) > len(str(_MOST)) or int(text) > _MOST:
        raise _unusable(which, text, "value out of range")
    return int(text)


def _unusable(which: str, text: str, problem: str) -> FileRefused:
    return bad_request(f'invalid Content-Range {which}: strconv.ParseInt: parsing "{text}": {problem}')
