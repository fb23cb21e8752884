"""Metrics as Prometheus reads them: families of samples, and their text.

Small on purpose: a gateway tells its own series too, and a client library would be a part of its memory that it needs
nowhere else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Sample:
    labels: Mapping[str, str]
    value: float


@dataclass(slots=True, kw_only=True)
class MetricFamily:
    """All samples of one name. The name of a counter ends with `_total`."""

    name: str
    kind: MetricKind
    help: str
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """A metric without its samples; the reference is made of these."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    def family(self) -> MetricFamily:
        return MetricFamily(name=self.name, kind=self.kind, help=self.help)

    def with_values(self, values: Mapping[str, float]) -> MetricFamily:
        """One sample for each value of its only label."""
        (label,) = self.labels
        family = self.family()
        family.samples = [Sample({label: value}, number) for value, number in values.items()]
        return family

    def with_value(self, number: float) -> MetricFamily:
        family = self.family()
        family.samples = [Sample({}, number)]
        return family


def render(families: Iterable[MetricFamily]) -> str:
    """Families without samples are left out: nothing is known of them."""
    return "".join(_family(family) for family in families if family.samples)


def _family(family: MetricFamily) -> str:
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind.value}"]
    lines += (f"{family.name}{_labels(sample.labels)} {_number(sample.value)}" for sample in family.samples)
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
