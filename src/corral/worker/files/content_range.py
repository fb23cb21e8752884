"""The header `Content-Range` of an upload, refused in LocalAI's words. Pure."""

from typing import Final

from corral.wire.file_transfer import ContentRange
from corral.worker.files.refusals import FileRefused, bad_request

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
