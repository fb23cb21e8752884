"""Requests to engines that somebody else runs: their heads, the name of the model in them, and what a status means.

Engines get neither the client's identity nor its credentials.

Many know a model by another name, which is put into the body. Nothing else of it changes, and it is not copied as a
whole: the result is a list of pieces. Engines disagree about which of two names they take, and some read `Model` as
`model`; so a body that has the name twice is refused, because its sender could reach another model of the engine. For
the same reason a form is refused that parsers may read in different ways.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON
from corral.gateway.admit import model_parts
from corral.gateway.answers import GatewayRefusal
from corral.gateway.head import HOPS, MOST_HOPS, RequestHead, write_head
from corral.gateway.upstream import UpstreamFailure

Piece = bytes | memoryview
_KEY: Final = "model"
_SPELLINGS: Final = tuple("".join(letters) for letters in itertools.product(*zip(_KEY, _KEY.upper(), strict=True)))
"""The name of the field in every mixture of letter cases; the first is the right one."""
_ABSENT: Final = msgspec.Raw()
_SpelledModels: Final = msgspec.defstruct(
    "_SpelledModels", [(spelling, msgspec.Raw, _ABSENT) for spelling in _SPELLINGS], gc=False
)
_PARAMETERS: Final = rb'((?:[ \t]*;[ \t]*[^\s=;"]+=(?:"[^"]*"|[^\s";,]*))*)(?:[ \t]*;)?'
_FIELD: Final = re.compile(rb"content-disposition:[ \t]*form-data" + _PARAMETERS, re.IGNORECASE)
_FORM: Final = re.compile(rb"content-type:[ \t]*multipart/form-data" + _PARAMETERS, re.IGNORECASE)
_PARAMETER: Final = re.compile(rb';[ \t]*([^\s=;"]+)=(?:"([^"]*)"|([^\s";,]*))')
_decoder: Final = msgspec.json.Decoder(_SpelledModels)
_PRIVATE: Final = re.compile(
    rb"(?:accept-encoding|referer|openai-organization|openai-project|x-goog-[^:]*):", re.IGNORECASE
)
"""Headers of clients that are none of the business of engines that somebody else runs. A compressed answer is not asked
for, since its usage could not be read."""
_NOT_HERE: Final = frozenset({402, 403, 404, 408, 429, 502, 503, 504, 529})
"""Statuses with which an engine says that it cannot answer, while another one may."""
_DECLINED: Final = frozenset({403, 404, 408})
"""Statuses that a request itself may cause. The engine is not blamed for them, or one client could make it unavailable
for all."""
ENGINE_IS_WELL: Final = frozenset({UpstreamFailure.DECLINED, UpstreamFailure.OVERLOADED})
"""Failures with an answer that the client may get when no other engine is to be asked."""


def check_hops(head: RequestHead, model: str) -> None:
    """Raise `GatewayRefusal` for a request that came through so many fleets that their engines must form a circle."""
    if head.hops >= MOST_HOPS:
        text = f"the request for {model} came through {MOST_HOPS} fleets: their engines lead to each other in a circle"
        raise GatewayRefusal(508, text, code="engine_loop", param=_KEY)


def engine_head(head: RequestHead, route: bytes, *, lines: bytes, id_line: bytes, pieces: Sequence[Piece]) -> bytes:
    """Return the head for an engine, without the client's identity and credentials."""
    passed_on = [line for line in head.lines if not _PRIVATE.match(line)]
    return write_head(
        replace(head, fields=b"".join(line + b"\r\n" for line in passed_on)),
        target=route + b"?" + head.query if head.query else route,
        lines=lines,
        added=id_line + b"%b: %d\r\n" % (HOPS, head.hops + 1),
        length=size_of(pieces),
    )


def engine_failure(status: int) -> UpstreamFailure | None:
    """Return what is wrong with an engine that answers with this status, or None."""
    if status == 101:
        return UpstreamFailure.GARBAGE
    if 300 <= status < 400:  # a client that follows it would send its key there
        return UpstreamFailure.REDIRECTED
    if status == 401:
        return UpstreamFailure.DENIED
    if status in _NOT_HERE:
        return UpstreamFailure.DECLINED if status in _DECLINED else UpstreamFailure.OVERLOADED
    return None


def rename_in_json(body: bytes, name: str) -> list[Piece]:
    """Return the JSON object with another value of `model`. Raise `GatewayRefusal` when it has that key twice.

    The body is one that `asked_in_json` has read, so it is well-formed.
    """
    start, end = _find_value(body)
    if _is_repeated(body, start):
        raise _ambiguous("the body has `model` twice")
    whole = memoryview(body)
    return [whole[:start], msgspec.json.encode(name), whole[end:]]


def rename_in_form(lines: Sequence[bytes], body: bytes, name: str) -> list[Piece]:
    """Return the multipart form with another value of the field `model`. Raise `GatewayRefusal` when it is there
    twice, or could be for somebody who reads forms in another way."""
    boundary = _sole_value(lines, _FORM, b"boundary", "the request")
    marks = 1

    def field_name(head: bytes) -> bytes:
        nonlocal marks
        marks += 1
        return _field_name(head)

    kind = b'content-type: multipart/form-data; boundary="%b"' % boundary
    parts = list(model_parts([kind], body, field_name=field_name))
    if body.count(b"--" + boundary) != marks:
        raise _unclear("the form's boundary must not occur in its content")
    if len(parts) != 1:
        raise _ambiguous(f"the form has {len(parts)} fields `model`")
    start, end = parts[0]
    whole = memoryview(body)
    return [whole[:start], name.encode(), whole[end:]]


def _field_name(head: bytes) -> bytes:
    """Return the name of the field whose part has this head. Raise `GatewayRefusal` when parsers may disagree on it."""
    lines = head.split(b"\r\n")[1:]
    if any(line.startswith((b" ", b"\t")) or b"\r" in line or b"\n" in line for line in lines):
        raise _unclear("no header of a part of the form may be folded or have a bare end of a line")
    name = _sole_value(lines, _FIELD, b"name", "a part of the form")
    if name != _KEY.encode() and name.strip().lower() == _KEY.encode():
        raise _ambiguous(f"the form has `{name.decode()}`, which some engines take for `model`")
    return name


def _sole_value(lines: Sequence[bytes], form: re.Pattern[bytes], key: bytes, holder: str) -> bytes:
    """Return the value of a parameter that one of the lines must have, once and in one spelling."""
    header = form.pattern.partition(b":")[0]
    matching = [line for line in lines if line.partition(b":")[0].strip().lower() == header]
    requirement = f"{holder} must have one {header.decode().title()} with one {key.decode()}"
    if len(matching) != 1 or (match := form.fullmatch(matching[0].rstrip())) is None or b'\\"' in matching[0]:
        raise _unclear(requirement)
    pairs: list[tuple[bytes, bytes, bytes]] = _PARAMETER.findall(match[1])
    values = [pair for pair in pairs if pair[0].lower().partition(b"*")[0] == key]
    if len(values) != 1 or values[0][0].lower() != key or b"\\" in values[0][1] + values[0][2]:
        raise _unclear(requirement)
    return values[0][1] or values[0][2]


def size_of(pieces: Sequence[Piece]) -> int:
    return sum(map(len, pieces))


def _find_value(body: bytes) -> tuple[int, int]:
    """Return where the value of `model` begins and ends.

    The decoder finds the value, in a copy, and hands out a view of it, which does not say where it is. So the half of
    the copy that may hold it is overwritten, and the view shows whether it was that half.
    """
    copy = bytearray(body)
    try:
        fields = _decoder.decode(copy)
    except UNREADABLE_JSON as error:
        raise GatewayRefusal(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    other = next((spelling for spelling in _SPELLINGS[1:] if getattr(fields, spelling) is not _ABSENT), None)
    if other is not None:
        raise _ambiguous(f"the body has `{other}`, which some engines take for `model`")
    view = memoryview(getattr(fields, _KEY))
    low, high, mark = 0, len(copy), 0
    while high - low > 1:
        middle, mark = (low + high) // 2, mark + 1
        copy[low:middle] = bytes((mark,)) * (middle - low)
        if view[0] == mark:
            high = middle
        else:
            low = middle
    return low, low + len(view)


def _is_repeated(body: bytes, start: int) -> bool:
    """Whether the key whose last value begins at `start` is also among the keys before it."""
    colon = body.rindex(b":", 0, start)
    key = body.rindex(b'"', 0, body.rindex(b'"', 0, colon))  # the key has no quote inside, escaped or not
    comma = body.rfind(b",", 0, key)
    if comma < 0:
        return False
    earlier = _decoder.decode(b"".join((memoryview(body)[:comma], b"}")))
    return getattr(earlier, _KEY) is not _ABSENT


def _ambiguous(problem: str) -> GatewayRefusal:
    text = f"{problem}; the engine that answers for this model is asked under another name, so there must be one"
    return GatewayRefusal(400, text, code="ambiguous_model", param=_KEY)


def _unclear(requirement: str) -> GatewayRefusal:
    text = f"{requirement}, so that the engine that answers for this model reads the form as it was read here"
    return GatewayRefusal(400, text, code="invalid_body")
