"""How many tokens an answer took, read from its last few kilobytes after its end. Never guessed.

Only streams of `/v1/messages` tell the tokens of the prompt at their beginning, so that is kept as well.
"""

import re
from typing import Final, NamedTuple

TAIL: Final = 4096
"""Bytes. The last event of a stream carries the usage; nothing that engines send after it is longer than this."""
_FIRST: Final = 2048
"""Bytes of the beginning."""
_MOST: Final = 2 * TAIL
"""Bytes that are kept before the front of them goes."""

_OBJECT: Final = re.compile(rb'"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
"""The rest of a name, and a whole object with at most one level of objects inside."""
_TRIES: Final = 4


def _number(name: bytes) -> re.Pattern[bytes]:
    """Ended by what ends a number in JSON: one that is cut by a chunk's border does not match."""
    return re.compile(rb'"' + name + rb'"\s*:\s*(\d{1,12})\s?[,}]')


_USAGE: Final = b'"usage'
_TIMINGS: Final = b'"timings'
_PROMPT: Final = _number(rb"prompt_tokens")
_COMPLETION: Final = _number(rb"completion_tokens")
_INPUT: Final = _number(rb"input_tokens")
_OUTPUT: Final = _number(rb"output_tokens")
_CACHED: Final = (_number(rb"cache_read_input_tokens"), _number(rb"cache_creation_input_tokens"))
"""Beside `input_tokens` in Anthropic's shape; OpenAI's `/v1/responses` counts them in."""
_PROMPT_N: Final = _number(rb"prompt_n")
_CACHE_N: Final = _number(rb"cache_n")
_PREDICTED_N: Final = _number(rb"predicted_n")


class Usage(NamedTuple):
    prompt_tokens: int
    completion_tokens: int


class Tail:
    """The end of an answer while it passes: references to its last pieces, no copies of small ones."""

    __slots__ = ("_first", "_pieces", "_trim_at", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._first = b""
        """The beginning, once it is no longer among the pieces."""
        self.size = 0
        """Of the whole answer so far."""
        self._trim_at = _MOST

    def add(self, piece: bytes) -> None:
        """Called for every event of every stream, so almost always there is nothing else to do."""
        self._pieces.append(piece)
        self.size += len(piece)
        if self.size >= self._trim_at:
            self._trim()

    def _trim(self) -> None:
        """A copy, so that a large piece is not kept for its last bytes."""
        kept = b"".join(self._pieces)
        self._first = self._first or kept[:_FIRST]
        self._pieces = [kept[-TAIL:]]
        self._trim_at = self.size + _MOST - TAIL

    def usage(self) -> Usage | None:
        kept = b"".join(self._pieces)
        return read_usage(kept[-TAIL:], first=self._first or kept)


def read_usage(tail: bytes, *, first: bytes = b"") -> Usage | None:
    """OpenAI's or Anthropic's `usage`, or else llama.cpp's `timings`; None when none is told in full."""
    usage = _last(_USAGE, tail)
    told = (_openai_usage(usage) or _input_and_output(usage, first)) if usage else None
    return told or _llama_timings(_last(_TIMINGS, tail))


def _input_and_output(usage: bytes, first: bytes) -> Usage | None:
    """The words of `/v1/messages` and `/v1/responses`."""
    output = _OUTPUT.search(usage)
    told = usage if _INPUT.search(usage) else _message_start(first)
    prompt = _INPUT.search(told)
    if prompt is None or output is None:
        return None
    cached = sum(int(found[1]) for number in _CACHED if (found := number.search(told)) is not None)
    return Usage(int(prompt[1]) + cached, int(output[1]))


def _openai_usage(usage: bytes) -> Usage | None:
    prompt, completion = _PROMPT.search(usage), _COMPLETION.search(usage)
    if prompt is None:
        return None
    if completion is None:  # embeddings have none, unless a chunk's border hides it from us
        return None if b"\r\n" in usage else Usage(int(prompt[1]), 0)
    return Usage(int(prompt[1]), int(completion[1]))


def _message_start(first: bytes) -> bytes:
    """The usage that the first event of a stream tells."""
    at = first.find(_USAGE)
    found = _OBJECT.match(first, at + len(_USAGE)) if b'"message_start"' in first[: max(at, 0)] else None
    return b"" if found is None else found[1]


def _llama_timings(timings: bytes) -> Usage | None:
    if not timings:
        return None
    prompt, completion = _PROMPT_N.search(timings), _PREDICTED_N.search(timings)
    if prompt is None or completion is None:
        return None
    cached = _CACHE_N.search(timings)
    return Usage(int(prompt[1]) + (int(cached[1]) if cached is not None else 0), int(completion[1]))


def _last(name: bytes, tail: bytes) -> bytes:
    """The last object of that name; nothing when there is none. Quotes in texts are escaped in JSON."""
    end = len(tail)
    for _ in range(_TRIES):
        end = tail.rfind(name, 0, end)
        if end < 0:
            break
        found = _OBJECT.match(tail, end + len(name))
        if found is not None and tail[end - 1 : end] != b"\\":
            return found[1]
    return b""
