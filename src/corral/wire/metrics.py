"""Metrics as text, and the counters that gateways report to control."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Sample(msgspec.Struct, frozen=True):
    labels: Mapping[str, str]
    value: float
    suffix: str = ""
    """What follows the name of the family: only in histograms, which consist of several series."""


@dataclass(slots=True, kw_only=True)
class MetricFamily:
    """All samples of one name. The name of a counter ends with `_total`."""

    name: str
    kind: MetricKind
    help: str
    samples: list[Sample] = field(default_factory=list)


class MetricDescription(msgspec.Struct, frozen=True):
    """A metric without its samples; the reference is made of these."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    def family(self, samples: Iterable[Sample] = ()) -> MetricFamily:
        return MetricFamily(name=self.name, kind=self.kind, help=self.help, samples=list(samples))

    def with_values(self, values: Mapping[str, float]) -> MetricFamily:
        """One sample for each value of its only label."""
        (label,) = self.labels
        return self.family(Sample({label: value}, number) for value, number in values.items())

    def with_value(self, number: float) -> MetricFamily:
        return self.family([Sample({}, number)])


def render(families: Iterable[MetricFamily]) -> str:
    """Families without samples are left out: nothing is known of them."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind.value}"]
        for sample in family.samples:
            labels = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sample.labels.items())
            number = str(sample.value) if isinstance(sample.value, int) else repr(float(sample.value))
            name = family.name + sample.suffix
            lines.append(f"{name}{{{labels}}} {number}" if labels else f"{name} {number}")
    return "".join(f"{line}\n" for line in lines)


class HistogramCounts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How often a time was up to each of some bounds, and longer than all."""

    counts: list[int] = []
    """One number per bound: the times up to it and above the one before. The last number counts the times above all."""
    sum: float = 0.0

    def add(self, value: float, bounds: Sequence[float]) -> None:
        if not self.counts:
            self.counts = [0] * (len(bounds) + 1)
        self.counts[bisect_left(bounds, value)] += 1
        self.sum += value

    def samples(self, bounds: Sequence[float], labels: Mapping[str, str]) -> Iterator[Sample]:
        """In the form of Prometheus, where each bound counts all that is below it."""
        if not self.counts:
            return
        so_far = 0
        for bound, count in zip([*map(repr, map(float, bounds)), "+Inf"], self.counts, strict=False):
            so_far += count
            yield Sample({**labels, "le": bound}, so_far, "_bucket")
        yield Sample(labels, round(self.sum, 3), "_sum")
        yield Sample(labels, so_far, "_count")


FIRST_BYTE_BOUNDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds to the first byte of an answer."""


class RequestCount(msgspec.Struct, kw_only=True, array_like=True):
    """How many requests of one model ended with the same status and outcome."""

    code: int
    """The status that the client got; 499 when it left before there was one."""
    outcome: str
    requests: int


class ModelCounts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a gateway counted for one model."""

    requests: list[RequestCount] = []
    prompt_tokens: int = 0
    completion_tokens: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    first_byte: HistogramCounts = msgspec.field(default_factory=HistogramCounts)
    """Seconds from a request to the first byte of its answer, with all waiting in between."""
    answer_seconds: float = 0.0
    """Time from the first byte of answers to their end, for answers that stated their tokens. Those in one piece count
    from the moment at which the replica was asked."""
    in_flight: int = 0
    """At the moment, as the next one."""
    waiting: int = 0


class GatewayCounts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sums since the start of the process, and what is true at the moment of sending."""

    host: str = ""
    pid: int = 0
    version: str = ""
    models: dict[str, ModelCounts] = {}
    connections: int = 0
    refusals: dict[str, int] = {}
    passed: dict[int, int] = {}
    time_outs: dict[str, int] = {}
    retries: int = 0
    reconnects: int = 0
    cpu_seconds: float = 0.0
    open_connections: int = 0
    upstream_open: int = 0
    upstream_idle: int = 0
    body_bytes: int = 0
    view_age_seconds: float | None = None
    memory_bytes: int = 0


def _counter(name: str, help: str, *labels: str) -> MetricDescription:
    return MetricDescription(f"corral_gateway_{name}_total", MetricKind.COUNTER, help, ("gateway", *labels))


def _gauge(name: str, help: str, *labels: str) -> MetricDescription:
    return MetricDescription(f"corral_gateway_{name}", MetricKind.GAUGE, help, ("gateway", *labels))


UP: Final = _gauge("up", "1 for a gateway that reported lately; 0 for one that is silent, whose other series are gone.")
REPORT_AGE: Final = _gauge("report_age_seconds", "Since the gateway's last report.")

_Values = Iterable[tuple[dict[str, str], float]]
"""Values with the labels that they have besides that of the gateway."""


def _single(value: float | None) -> _Values:
    return [] if value is None else [({}, value)]


def _by(label: str, values: Mapping[str, int]) -> _Values:
    return [({label: key}, number) for key, number in sorted(values.items())]


def _by_model(read: Callable[[ModelCounts], float]) -> Callable[[GatewayCounts], _Values]:
    return lambda counts: [({"model": name}, read(model)) for name, model in sorted(counts.models.items())]


def _requests(counts: GatewayCounts) -> _Values:
    for name, model in sorted(counts.models.items()):
        for count in model.requests:
            yield {"model": name, "code": str(count.code), "outcome": count.outcome}, count.requests


_READERS: Final[Mapping[MetricDescription, Callable[[GatewayCounts], _Values]]] = {
    _gauge("info", "Where a gateway runs, and which version it is; always 1.", "host", "pid", "version"): (
        lambda counts: [({"host": counts.host, "pid": str(counts.pid), "version": counts.version}, 1)]
    ),
    _counter("connections", "Client connections accepted."): lambda counts: _single(counts.connections),
    _gauge("open_connections", "Client connections at the moment."): lambda counts: _single(counts.open_connections),
    _counter(
        "requests",
        "Requests to models that ended, by the status that the client got and by how they ended.",
        "model",
        "code",
        "outcome",
    ): _requests,
    _gauge("in_flight", "Requests at a replica at the moment, by model.", "model"): (
        _by_model(lambda model: model.in_flight)
    ),
    _gauge("waiting", "Requests that wait for a replica at the moment, by model.", "model"): (
        _by_model(lambda model: model.waiting)
    ),
    _counter("waits", "Requests that got a replica only after they had waited.", "model"): (
        _by_model(lambda model: model.waits)
    ),
    _counter("wait_seconds", "How long those requests waited, together.", "model"): (
        _by_model(lambda model: model.wait_seconds)
    ),
    _counter("prompt_tokens", "Tokens of prompts, where the engine states them.", "model"): (
        _by_model(lambda model: model.prompt_tokens)
    ),
    _counter("completion_tokens", "Tokens of answers, where the engine states them.", "model"): (
        _by_model(lambda model: model.completion_tokens)
    ),
    _counter(
        "answer_seconds",
        "How long the answers took that stated their tokens, from their first byte to their end; tokens by seconds are "
        "the speed of one answer.",
        "model",
    ): _by_model(lambda model: model.answer_seconds),
    _counter("request_bytes", "Bytes of request bodies that were sent to replicas.", "model"): (
        _by_model(lambda model: model.request_bytes)
    ),
    _counter("answer_bytes", "Bytes of answers that replicas gave, without their heads.", "model"): (
        _by_model(lambda model: model.answer_bytes)
    ),
    _counter("refusals", "Requests that the gateway answered with an error itself, by its code.", "code"): (
        lambda counts: _by("code", counts.refusals)
    ),
    _counter("passed", "Requests that were passed to control, by the status that the client got.", "code"): (
        lambda counts: _by("code", {str(code): times for code, times in counts.passed.items()})
    ),
    _counter("upstream_retries", "Requests that were given to another replica after one failed."): (
        lambda counts: _single(counts.retries)
    ),
    _counter("upstream_reconnects", "Requests sent again because a kept connection had been closed."): (
        lambda counts: _single(counts.reconnects)
    ),
    _counter("time_outs", "What took too long, by the name of the time-out.", "kind"): (
        lambda counts: _by("kind", counts.time_outs)
    ),
    _gauge("upstream_connections", "Connections to replicas and to control, by whether they are in use.", "state"): (
        lambda counts: _by("state", {"idle": counts.upstream_idle, "used": counts.upstream_open - counts.upstream_idle})
    ),
    _gauge("held_body_bytes", "Bytes of request bodies that are held at the moment."): (
        lambda counts: _single(counts.body_bytes)
    ),
    _gauge("view_age_seconds", "Since the gateway last heard of control; absent before the first time."): (
        lambda counts: _single(counts.view_age_seconds)
    ),
    _gauge("resident_memory_bytes", "Memory of the gateway process."): lambda counts: _single(counts.memory_bytes),
    _counter("cpu_seconds", "Processor time of the gateway process."): lambda counts: _single(counts.cpu_seconds),
}
"""What each gateway reports, and where it is among its counts."""
_FIRST_BYTE: Final = MetricDescription(
    "corral_gateway_first_byte_seconds",
    MetricKind.HISTOGRAM,
    "From a request to the first byte of its answer, with all waiting for a replica.",
    ("gateway", "model"),
)
PER_GATEWAY: Final = (*_READERS, _FIRST_BYTE)


def families(gateways: Mapping[str, GatewayCounts]) -> list[MetricFamily]:
    """The metrics of these gateways, each sample with the id of its gateway."""
    metric_families = [
        description.family(
            Sample({"gateway": id, **labels}, value)
            for id, counts in gateways.items()
            for labels, value in read(counts)
        )
        for description, read in _READERS.items()
    ]
    first_bytes = _FIRST_BYTE.family(
        sample
        for id, counts in gateways.items()
        for name, model in sorted(counts.models.items())
        for sample in model.first_byte.samples(FIRST_BYTE_BOUNDS, {"gateway": id, "model": name})
    )
    return [*metric_families, first_bytes]
