"""From how likely each moment is speech to where speech begins and ends. Pure.

Speech begins where the likelihood reaches the threshold, and ends where it has stayed below a lower one for a while; so
a breath does not cut a sentence in two. What is too short to be a word is dropped, and the rest gets a little more
room on both sides, but never that of a neighbour.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_HYSTERESIS: Final = 0.15
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Times are in seconds."""

    threshold: float = 0.5
    min_speech: float = 0.25
    min_silence: float = 0.1
    pad: float = 0.03


class Segment(NamedTuple):
    """In seconds."""

    start: float
    end: float


def segments_of(likelihoods: Sequence[float], *, step: float, length: float, rules: Rules) -> list[Segment]:
    """`step` is how long one moment is, `length` how long the whole sound."""
    found = [
        Segment(start, min(end, length))
        for start, end in _raw(likelihoods, step, rules)
        if min(end, length) - start > rules.min_speech - _ROUNDING
    ]
    return [_padded(found, index, length, rules.pad) for index in range(len(found))]


def _raw(likelihoods: Sequence[float], step: float, rules: Rules) -> Iterator[Segment]:
    patience = max(1, round(rules.min_silence / step))
    start: int | None = None
    last_heard = 0
    for moment, likelihood in enumerate(likelihoods):
        if likelihood >= rules.threshold:
            start = moment if start is None else start
        if start is None:
            continue
        if likelihood >= rules.threshold - _HYSTERESIS:
            last_heard = moment
        elif moment - last_heard >= patience:
            yield Segment(start * step, (last_heard + 1) * step)
            start = None
    if start is not None:
        yield Segment(start * step, (last_heard + 1) * step)


def _padded(found: Sequence[Segment], index: int, length: float, pad: float) -> Segment:
    """Neighbours that are near share the silence between them."""
    start, end = found[index]
    before = (found[index - 1].end + start) / 2 if index else 0.0
    after = (end + found[index + 1].start) / 2 if index + 1 < len(found) else length
    return Segment(max(before, start - pad), min(after, end + pad))
