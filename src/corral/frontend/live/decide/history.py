"""The last hour in steps of ten seconds: for each series a ring of points, written as reports arrive.

Time is divided into steps that are numbered from the epoch. A counter adds up within a step and is shown per second; a
gauge is the largest value of its step. Nothing is stored: after a restart the series are empty.
"""

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

STEP_SECONDS: Final = 10
POINTS: Final = 360
"""Points per series: one hour."""
MOST_SERIES: Final = 4000
"""Most series of all names together, which take some megabytes. More than a thousand nodes have with two series
each."""
HELD_STEPS: Final = 3
"""How long the last value of a gauge holds when nothing new is heard: heartbeats are as far apart as steps."""


class SeriesName(StrEnum):
    TOKENS = "tokens"
    """Tokens of answers per second, counted when an answer ends; by model."""
    PROMPT_TOKENS = "prompt_tokens"
    """Tokens of prompts per second; by model."""
    REQUESTS = "requests"
    """Requests that ended, per second; by model and outcome."""
    QUEUE = "queue"
    """Requests that wait for a replica; by model."""
    IN_FLIGHT = "in_flight"
    """Requests at replicas; by model."""
    MEMORY = "memory"
    """Bytes in use; by node, kind `ram` or `vram`, and GPU where the machine names them."""

    @property
    def is_counter(self) -> bool:
        return self in (SeriesName.TOKENS, SeriesName.PROMPT_TOKENS, SeriesName.REQUESTS)

    @property
    def is_of_gateways(self) -> bool:
        """Whether gateways tell it, which say nothing of a model without requests."""
        return self is not SeriesName.MEMORY


class SeriesKey(NamedTuple):
    name: SeriesName
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, name: SeriesName, **labels: str) -> "SeriesKey":
        return cls(name, tuple(sorted(labels.items())))


def step_of(seconds: float) -> int:
    """The number of the step that a time of the epoch is in."""
    return int(seconds // STEP_SECONDS)


class Ring:
    """The points of the last hour. Steps that nobody wrote have none."""

    __slots__ = ("_last", "_values")

    def __init__(self) -> None:
        self._values = array("f", [math.nan]) * POINTS
        self._last: int | None = None

    @property
    def last(self) -> int | None:
        """The latest step that was written."""
        return self._last

    def add(self, step: int, value: float) -> None:
        slot = self._slot(step)
        if slot is not None:
            before = self._values[slot]
            self._values[slot] = value if math.isnan(before) else before + value

    def raise_to(self, step: int, value: float) -> None:
        slot = self._slot(step)
        if slot is not None:
            before = self._values[slot]
            self._values[slot] = value if math.isnan(before) else max(before, value)

    def _slot(self, step: int) -> int | None:
        """Where a step is written, after the steps that were passed over are emptied; None for one too old."""
        if self._last is None:
            self._last = step
        elif step > self._last:
            for passed in range(max(self._last + 1, step - POINTS + 1), step + 1):
                self._values[passed % POINTS] = math.nan
            self._last = step
        elif step <= self._last - POINTS:
            return None
        return step % POINTS

    def at(self, step: int) -> float | None:
        """The value of a step; None when there is none, or it is too old."""
        if self._last is None or step > self._last or step <= self._last - POINTS:
            return None
        value = self._values[step % POINTS]
        return None if math.isnan(value) else value


class PlottedSeries(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    labels: Mapping[str, str]
    values: list[float | None]


@dataclass(slots=True, kw_only=True)
class Rings:
    """All series. When there are too many, those without a point in the last hour make room."""

    rings: dict[SeriesKey, Ring] = field(default_factory=dict)
    heard: Ring = field(default_factory=Ring)
    """Steps in which a gateway reported: what gateways say nothing of is 0 there, and elsewhere unknown."""
    refused: set[SeriesKey] = field(default_factory=set)
    """Series that found no room."""
    tidied: int = 0
    """The last step in which room was looked for."""

    def add(self, key: SeriesKey, step: int, value: float) -> None:
        if (ring := self._ring(key, step)) is not None:
            ring.add(step, value)

    def raise_to(self, key: SeriesKey, step: int, value: float) -> None:
        if (ring := self._ring(key, step)) is not None:
            ring.raise_to(step, value)

    def _ring(self, key: SeriesKey, step: int) -> Ring | None:
        ring = self.rings.get(key)
        if ring is None:
            if len(self.rings) >= MOST_SERIES and not self._forget_old(step):
                if len(self.refused) < MOST_SERIES:
                    self.refused.add(key)
                return None
            ring = self.rings[key] = Ring()
            self.refused.discard(key)
        return ring

    def _forget_old(self, step: int) -> bool:
        """Drop what has no point in the last hour, at most once in a step; whether there is room now."""
        if step <= self.tidied:
            return False
        self.tidied = step
        old = [key for key, ring in self.rings.items() if ring.last is None or ring.last <= step - POINTS]
        for key in old:
            del self.rings[key]
        return len(self.rings) < MOST_SERIES

    def plotted(
        self, names: Iterable[SeriesName], *, now: int, points: int, only: Mapping[str, frozenset[str]]
    ) -> list[PlottedSeries]:
        """The last whole steps before `now`. `only` says which values of a label are wanted; series without that label
        are left out."""
        names_asked = set(names)
        steps = range(now - points, now)
        plots = [
            PlottedSeries(name=key.name.value, labels=dict(key.labels), values=self._values(key, ring, steps))
            for key, ring in self.rings.items()
            if key.name in names_asked and _is_meant(dict(key.labels), only)
        ]
        living = [series for series in plots if any(value is not None for value in series.values)]
        return sorted(living, key=lambda series: (series.name, sorted(series.labels.items())))

    def _values(self, key: SeriesKey, ring: Ring, steps: range) -> list[float | None]:
        if not key.name.is_of_gateways:
            return [_held(ring, step) for step in steps]
        per = STEP_SECONDS if key.name.is_counter else 1
        return [self._counted(ring, step, per) for step in steps]

    def _counted(self, ring: Ring, step: int, per: int) -> float | None:
        value = ring.at(step)
        if value is None:
            return None if self.heard.at(step) is None else 0.0
        return round(value / per, 3)


def _held(ring: Ring, step: int) -> float | None:
    for earlier in range(step, step - HELD_STEPS, -1):
        if (value := ring.at(earlier)) is not None:
            return round(value, 3)
    return None


def _is_meant(labels: Mapping[str, str], only: Mapping[str, frozenset[str]]) -> bool:
    return all(labels.get(label) in values for label, values in only.items())
