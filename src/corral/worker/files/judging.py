"""Parses the range of an upload, and decides what to do with it given what was received before: LocalAI's rules and
messages. Pure."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from corral.wire.files import ContentRange
from corral.worker.files.refusals import FileRefused, bad_request


class RangeVerdict(Enum):
    APPEND = "append"
    RESTART = "restart"
    """What is there belongs to another file: start again with this range."""
    CONFLICT = "conflict"
    """The range continues another file than the one that was begun: drop that one and refuse."""
    ELSEWHERE = "elsewhere"
    """The range does not begin where the file ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What was received of the file so far."""

    size: int = 0
    target: str = ""
    """Expected hash of an unfinished upload; empty when it is unknown, or the file is finished."""
    hash: str = ""
    """Hash of a finished file, if known."""


def judge(span: ContentRange, digest: str, present: Present) -> RangeVerdict:
    """Decide. `digest` is the expected hash of the whole file; empty when the client did not state it."""
    size = present.size
    if span.start == 0 and size > 0:
        if not digest or (present.target or present.hash) != digest:
            return RangeVerdict.RESTART
        if present.target and size >= span.total:  # all bytes are there but the hash is wrong
            return RangeVerdict.RESTART
    elif span.start > 0 and digest and present.target and present.target != digest:
        return RangeVerdict.CONFLICT
    return RangeVerdict.APPEND if span.start == size else RangeVerdict.ELSEWHERE


_MOST: Final = 2**63 - 1


def parse_content_range(text: str) -> ContentRange:
    """Parse a Content-Range. All three numbers must be there and consistent; else it is refused in LocalAI's words."""
    unit, _, rest = text.strip().partition(" ")
    if unit != "bytes":
        raise bad_request('invalid Content-Range: missing "bytes" prefix')
    span, slash, total = rest.strip().partition("/")
    if not slash:
        raise bad_request("invalid Content-Range: missing /total")
    start, dash, end = span.partition("-")
    if not dash:
        raise bad_request("invalid Content-Range: missing - separator")
    content_range = ContentRange(_number("start", start), _number("end", end), _number("total", total))
    if content_range.end < content_range.start or content_range.total <= content_range.end:
        raise bad_request(
            f"invalid Content-Range range: {content_range.start}-{content_range.end}/{content_range.total}"
        )
    return content_range


def _number(which: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _unusable(which, text, "invalid syntax")
    if len(text) > len(str(_MOST)) or int(text) > _MOST:
        raise _unusable(which, text, "value out of range")
    return int(text)


def _unusable(which: str, text: str, problem: str) -> FileRefused:
    return bad_request(f'invalid Content-Range {which}: strconv.ParseInt: parsing "{text}": {problem}')
