"""The one field of a form that matters here: which model it is for. The rest, sounds of megabytes, is only skipped."""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from corral.gateway.answers import Refusal

_FORM: Final = re.compile(rb"content-type:\s*multipart/form-data\s*;(.*)", re.IGNORECASE | re.DOTALL)
_BOUNDARY: Final = re.compile(rb'(?:^|;)\s*boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE)
_NAME: Final = re.compile(rb'content-disposition:\s*form-data\s*;(?:[^\r\n]*;)?\s*name="?([^";\r\n]*)', re.IGNORECASE)
_HEAD_BYTES: Final = 16 * 1024
_MOST_PARTS: Final = 256


class _Part(NamedTuple):
    head: bytes
    start: int
    end: int


def model_in_form(lines: Iterable[bytes], body: bytes) -> str:
    """The field `model` of a form; empty when there is none. Refusal when it is no form."""
    for part in _parts(_boundary(lines), body):
        name = _NAME.search(part.head)
        if name is not None and name[1] == b"model":
            return body[part.start : min(part.end, part.start + _HEAD_BYTES)].decode(errors="replace")
    return ""


def _boundary(lines: Iterable[bytes]) -> bytes:
    form = next((found for line in lines if (found := _FORM.fullmatch(line))), None)
    if form is None:
        raise Refusal(400, "the body must be multipart/form-data", code="invalid_body")
    boundary = _BOUNDARY.search(form[1])
    if boundary is None:
        raise Refusal(400, "the Content-Type of the form names no boundary", code="invalid_body")
    quoted, plain = boundary.groups()
    return bytes(quoted or plain)


def _parts(boundary: bytes, body: bytes) -> Iterator[_Part]:
    """Each look goes on where the last one ended, so a body is gone through once."""
    delimiter = b"\r\n--" + boundary
    at = 0 if body.startswith(delimiter[2:]) else body.find(delimiter) + 2
    if at == 1:
        raise Refusal(400, "the body is not the form that its Content-Type names", code="invalid_body")
    for _ in range(_MOST_PARTS):
        at += len(delimiter) - 2
        if body.startswith(b"--", at):
            return
        head_end = body.find(b"\r\n\r\n", at, at + _HEAD_BYTES)
        end = body.find(delimiter, head_end) if head_end >= 0 else -1
        if end < 0:
            raise Refusal(400, "the form is cut off, or damaged", code="invalid_body")
        yield _Part(body[at:head_end], head_end + 4, end)
        at = end + 2
    raise Refusal(400, f"the form has more than {_MOST_PARTS} parts", code="invalid_body")
