"""How many tokens an answer took, read from its last few kilobytes after its end. Never guessed."""

import re
from collections import deque
from typing import Final, NamedTuple

TAIL: Final = 4096
"""Bytes. The last event of a stream carries the usage; nothing that engines send after it is longer than this."""


_OBJECT: Final = re.compile(rb'"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
"""The rest of a name, and a whole object with at most one level of objects inside."""
_TRIES: Final = 4


def _number(name: bytes) -> re.Pattern[bytes]:
    """Ended by what ends a number in JSON: one that is cut by a chunk's border does not match."""
    return re.compile(rb'"' + name + rb'"\s*:\s*(\d{1,12})\s?[,}]')


_USAGE: Final = b'"usage'
_TIMINGS: Final = b'"timings'
_PROMPT: Final = _number(rb"prompt_tokens")
_COMPLETION: Final = _number(rb"completion_tokens")
_PROMPT_N: Final = _number(rb"prompt_n")
_CACHE_N: Final = _number(rb"cache_n")
_PREDICTED_N: Final = _number(rb"predicted_n")


class Usage(NamedTuple):
    prompt_tokens: int
    completion_tokens: int


class Tail:
    """The end of an answer while it passes: references to its last pieces, no copies of small ones."""

    __slots__ = ("_enough", "_pieces", "size")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self.size = 0
        """Of the whole answer so far."""
        self._enough = TAIL
        """What was dropped at the front, and TAIL: so long the rest must be before more of it can go."""

    def add(self, piece: bytes) -> None:
        size = len(piece)
        pieces = self._pieces
        if size >= TAIL:
            pieces.clear()
            pieces.append(piece[-TAIL:])  # a copy, so that a large piece is not kept for its last bytes
            self.size = self._enough = self.size + size
            return
        pieces.append(piece)
        self.size += size
        while self.size - len(pieces[0]) >= self._enough:
            self._enough += len(pieces.popleft())

    def usage(self) -> Usage | None:
        return read_usage(b"".join(self._pieces))


def read_usage(tail: bytes) -> Usage | None:
    """OpenAI's `usage`, or else llama.cpp's `timings`; None when neither is told in full."""
    return _openai_usage(_last(_USAGE, tail)) or _llama_timings(_last(_TIMINGS, tail))


def _openai_usage(usage: bytes) -> Usage | None:
    prompt, completion = _PROMPT.search(usage), _COMPLETION.search(usage)
    if prompt is None:
        return None
    if completion is None:  # embeddings have none, unless a chunk's border hides it from us
        return None if b"\r\n" in usage else Usage(int(prompt[1]), 0)
    return Usage(int(prompt[1]), int(completion[1]))


def _llama_timings(timings: bytes) -> Usage | None:
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
