"""Reads an answer's token usage from its last kilobytes after its end. Never guesses.

Streams of `/v1/messages` and llama.cpp's embeddings report the prompt's tokens at the beginning, so that part is kept
as well.
"""

import re
from typing import Annotated, Final

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON

TAIL: Final = 4096
"""Bytes kept of the end. The last event of a stream has the usage, and nothing that engines send after it is longer."""
_FIRST: Final = 2048
"""Bytes kept of the beginning."""
_MOST: Final = 2 * TAIL
"""Bytes collected before the front is trimmed."""

_OBJECT: Final = re.compile(rb'(?<!\\)"(?:usage|timings)"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
"""A name, and a complete object with at most one nested level. Quotes inside JSON strings are escaped, so names in them
do not match."""
_TRIES: Final = 4


def _number(name: bytes) -> re.Pattern[bytes]:
    """Match a number up to the character that ends it in JSON, so that one cut by a chunk border does not match."""
    return re.compile(rb'"' + name + rb'"\s*:\s*(\d{1,12})\s?[,}]')


_USAGE: Final = b'"usage'
_OPENING: Final = b'"usage":{'
_BACKSLASH: Final = ord("\\")
_TIMINGS: Final = b'"timings'
_PROMPT: Final = _number(rb"prompt_tokens")
_COMPLETION: Final = _number(rb"completion_tokens")
_INPUT: Final = _number(rb"input_tokens")
_OUTPUT: Final = _number(rb"output_tokens")
_CACHED: Final = (_number(rb"cache_read_input_tokens"), _number(rb"cache_creation_input_tokens"))
"""Counted in addition to `input_tokens` in Anthropic's format; OpenAI's `/v1/responses` includes them."""
_PROMPT_N: Final = _number(rb"prompt_n")
_CACHE_N: Final = _number(rb"cache_n")
_PREDICTED_N: Final = _number(rb"predicted_n")
_PROMPT_EVAL: Final = b'"prompt_eval_count"'
_PROMPT_EVAL_COUNT: Final = re.compile(rb'(?<!\\)"prompt_eval_count"\s*:\s*(\d{1,12})\s?[,}]')
_EVAL_COUNT: Final = _number(rb"eval_count")


_Tokens = Annotated[int, msgspec.Meta(ge=0, lt=10**12)]


class Usage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: _Tokens
    completion_tokens: _Tokens


_decoder: Final = msgspec.json.Decoder(Usage)


class AnswerTail:
    """The end of a passing response: references to its last pieces, without copies of small ones.

    Whoever passes a piece on appends it and adds to `size` without a call, since that is done for every event of every
    stream, and calls `trim` at the size `trim_at`.
    """

    __slots__ = ("_first", "pieces", "size", "trim_at")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._first = b""
        """The beginning, once it is no longer among the pieces."""
        self.size = 0
        """Bytes of the whole response so far."""
        self.trim_at = _MOST

    def add(self, piece: bytes) -> None:
        """Keep a piece."""
        self.pieces.append(piece)
        self.size += len(piece)
        if self.size >= self.trim_at:
            self.trim()

    def trim(self) -> None:
        """Drop what is neither the beginning nor the end."""
        tail = b"".join(self.pieces)  # copy the end, so that a large piece is not kept for its last bytes
        self._first = self._first or tail[:_FIRST]
        self.pieces = [tail[-TAIL:]]
        self.trim_at = self.size + _MOST - TAIL

    def usage(self) -> Usage | None:
        tail = b"".join(self.pieces)
        return read_usage(tail[-TAIL:], first=self._first or tail)


def read_usage(tail: bytes, *, first: bytes = b"") -> Usage | None:
    """Return OpenAI's or Anthropic's `usage`, llama.cpp's `timings`, or Ollama's counts; None when none is complete."""
    return _decoded(tail) or _searched(tail, first)


def _decoded(tail: bytes) -> Usage | None:
    """Read the last `usage` if it is OpenAI's and in one piece, as most are: much quicker than to search in it."""
    at = tail.rfind(_USAGE)
    if not tail.startswith(_OPENING, at) or tail[at - 1] == _BACKSLASH:
        return None
    start = at + len(_OPENING) - 1
    end = tail.find(b"}", start) + 1
    while end and tail.count(b"{", start, end) != tail.count(b"}", start, end):
        end = tail.find(b"}", end) + 1
    counts = tail[start:end]
    if not counts or counts.find(b"\r") >= 0:  # cut off, or with the border of a chunk in it
        return None
    try:
        return _decoder.decode(counts)
    except UNREADABLE_JSON:
        return None


def _searched(tail: bytes, first: bytes) -> Usage | None:
    usage = _last(_USAGE, tail) or _leading(first)
    reported = (_openai_usage(usage) or _input_and_output(usage, first)) if usage else None
    return reported or _llama_timings(_last(_TIMINGS, tail)) or _ollama_counts(tail)


def _leading(first: bytes) -> bytes:
    """Return the usage object at the beginning of an answer that is one JSON object, or b""."""
    at = first.find(_USAGE) if first.startswith(b"{") else -1
    match = _OBJECT.match(first, at) if at >= 0 else None
    return b"" if match is None else match[1]


def _input_and_output(usage: bytes, first: bytes) -> Usage | None:
    """Read `input_tokens` and `output_tokens`, as in `/v1/messages` and `/v1/responses`.

    A stream of `/v1/messages` has the first of them in the usage object of its first event.
    """
    output = _OUTPUT.search(usage)
    counts = usage
    if not _INPUT.search(usage):
        at = first.find(_USAGE)
        match = _OBJECT.match(first, at) if b'"message_start"' in first[: max(at, 0)] else None
        counts = b"" if match is None else match[1]
    prompt = _INPUT.search(counts)
    if prompt is None or output is None:
        return None
    cached = sum(int(match[1]) for number in _CACHED if (match := number.search(counts)) is not None)
    read = int(prompt[1]) + cached
    return Usage(read, int(output[1])) if read else None  # no prompt is empty: whoever wrote 0 did not know


def _openai_usage(usage: bytes) -> Usage | None:
    prompt, completion = _PROMPT.search(usage), _COMPLETION.search(usage)
    if prompt is None:
        return None
    if completion is None:  # embeddings have none, but a chunk border may also hide it
        return None if b"\r\n" in usage else Usage(int(prompt[1]), 0)
    return Usage(int(prompt[1]), int(completion[1]))


def _llama_timings(timings: bytes) -> Usage | None:
    if not timings:
        return None
    prompt, completion = _PROMPT_N.search(timings), _PREDICTED_N.search(timings)
    if prompt is None or completion is None:
        return None
    cached = _CACHE_N.search(timings)
    return Usage(int(prompt[1]) + (int(cached[1]) if cached is not None else 0), int(completion[1]))


def _ollama_counts(tail: bytes) -> Usage | None:
    """Read the counts that end an answer in Ollama's form; embeddings have only those of the prompt."""
    at = tail.rfind(_PROMPT_EVAL)
    prompt = _PROMPT_EVAL_COUNT.match(tail, at) if at >= 0 else None
    if prompt is None:
        return None
    completion = _EVAL_COUNT.search(tail, at)
    return Usage(int(prompt[1]), 0 if completion is None else int(completion[1]))


def _last(name: bytes, tail: bytes) -> bytes:
    """Return the last object with that name, or b""."""
    end = len(tail)
    for _ in range(_TRIES):
        end = tail.rfind(name, 0, end)
        if end < 0:
            break
        match = _OBJECT.match(tail, end)
        if match is not None:
            return match[1]
    return b""
