"""Reads the `model` field of a multipart form. All other parts, such as megabytes of audio, are skipped without a
copy."""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from corral.gateway.answers import GatewayRefusal

_FORM: Final = re.compile(rb"content-type:\s*multipart/form-data\s*;(.*)", re.IGNORECASE | re.DOTALL)
_BOUNDARY: Final = re.compile(rb'(?:^|;)\s*boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE)
_NAME: Final = re.compile(rb'content-disposition:\s*form-data\s*;(?:[^\r\n]*;)?\s*name="?([^";\r\n]*)', re.IGNORECASE)
_HEAD_BYTES: Final = 16 * 1024
_MOST_PARTS: Final = 256
_MOST_LOOKALIKES: Final = 20_000
"""Maximum number of byte sequences in one part that look like the delimiter. Honest clients choose a boundary
without any."""
_PADDING: Final = 64


class _Delimiter(NamedTuple):
    start: int
    end: int
    is_last: bool


class _Part(NamedTuple):
    head: bytes
    start: int
    end: int


def model_in_form(lines: Iterable[bytes], body: bytes) -> str:
    """Return the field `model` of a form, or "" when it is missing. Raise `GatewayRefusal` for other bodies."""
    for part in _parts(_boundary(lines), body):
        name = _NAME.search(part.head)
        if name is not None and name[1] == b"model":
            return body[part.start : min(part.end, part.start + _HEAD_BYTES)].decode(errors="replace")
    return ""


def _boundary(lines: Iterable[bytes]) -> bytes:
    form = next((match for line in lines if (match := _FORM.fullmatch(line))), None)
    if form is None:
        raise GatewayRefusal(400, "the body must be multipart/form-data", code="invalid_body")
    boundary = _BOUNDARY.search(form[1])
    if boundary is None:
        raise GatewayRefusal(400, "the Content-Type of the form names no boundary", code="invalid_body")
    quoted, plain = boundary.groups()
    return bytes(quoted or plain)


def _parts(boundary: bytes, body: bytes) -> Iterator[_Part]:
    """Yield the parts of the body. Each search starts where the last one ended, so the body is scanned once."""
    mark = b"--" + boundary
    here = _delimiter(mark, body, 0) if body.startswith(mark) else _delimiter(b"\r\n" + mark, body, 0)
    if here is None:
        raise GatewayRefusal(400, "the body is not the form that its Content-Type names", code="invalid_body")
    for _ in range(_MOST_PARTS):
        if here.is_last:
            return
        head_end = body.find(b"\r\n\r\n", here.end, here.end + _HEAD_BYTES)
        following = _delimiter(b"\r\n" + mark, body, head_end) if head_end >= 0 else None
        if following is None:
            raise GatewayRefusal(400, "the form is cut off, or damaged", code="invalid_body")
        yield _Part(body[here.end : head_end], head_end + 4, following.start)
        here = following
    raise GatewayRefusal(400, f"the form has more than {_MOST_PARTS} parts", code="invalid_body")


def _delimiter(mark: bytes, body: bytes, start: int) -> _Delimiter | None:
    """Find the next delimiter from `start`. A delimiter ends with its line; anything longer is content of the part."""
    for _ in range(_MOST_LOOKALIKES):
        start = body.find(mark, start)
        if start < 0:
            return None
        end = start + len(mark)
        if body.startswith(b"--", end):
            return _Delimiter(start, end, is_last=True)
        line_end = body.find(b"\r\n", end, end + _PADDING)
        if line_end >= 0 and not body[end:line_end].strip(b" \t"):
            return _Delimiter(start, line_end, is_last=False)
        start = end
    raise GatewayRefusal(400, "the form's boundary occurs in its content", code="invalid_body")
