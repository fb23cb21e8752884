"""Metrics as text, and the counters that gateways report to control."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

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


class RequestCount(msgspec.Struct, kw_only=True, array_like=True):
    """Requests that ended alike."""

    code: int
    """The status that the client got; 499 when it left before there was one."""
    outcome: str
    requests: int


class ModelCounts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sums of one model."""

    requests: list[RequestCount] = []
    prompt_tokens: int = 0
    completion_tokens: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
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
_INFO: Final = _gauge("info", "Where a gateway runs, and which version it is; always 1.", "host", "pid", "version")
_CONNECTIONS: Final = _counter("connections", "Client connections accepted.")
_OPEN: Final = _gauge("open_connections", "Client connections at the moment.")
_REQUESTS: Final = _counter(
    "requests",
    "Requests to models that ended, by the status that the client got and by how they ended.",
    "model",
    "code",
    "outcome",
)
_IN_FLIGHT: Final = _gauge("in_flight", "Requests at a replica at the moment, by model.", "model")
_WAITING: Final = _gauge("waiting", "Requests that wait for a replica at the moment, by model.", "model")
_WAITS: Final = _counter("waits", "Requests that got a replica only after they had waited.", "model")
_WAIT_SECONDS: Final = _counter("wait_seconds", "How long those requests waited, together.", "model")
_PROMPT: Final = _counter("prompt_tokens", "Tokens of prompts, where the engine told them.", "model")
_COMPLETION: Final = _counter("completion_tokens", "Tokens of answers, where the engine told them.", "model")
_REQUEST_BYTES: Final = _counter("request_bytes", "Bytes of request bodies that were sent to replicas.", "model")
_ANSWER_BYTES: Final = _counter("answer_bytes", "Bytes of answers that replicas gave, without their heads.", "model")
_REFUSALS: Final = _counter("refusals", "Requests that the gateway answered with an error itself, by its code.", "code")
_PASSED: Final = _counter("passed", "Requests that were passed to control, by the status that the client got.", "code")
_RETRIES: Final = _counter("upstream_retries", "Requests that were given to another replica after one failed.")
_RECONNECTS: Final = _counter("upstream_reconnects", "Requests sent again because a kept connection had been closed.")
_TIME_OUTS: Final = _counter("time_outs", "What took too long, by the name of the time-out.", "kind")
_UPSTREAM: Final = _gauge(
    "upstream_connections", "Connections to replicas and to control, by whether they are in use.", "state"
)
_BODY_BYTES: Final = _gauge("held_body_bytes", "Bytes of request bodies that are held at the moment.")
_VIEW_AGE: Final = _gauge("view_age_seconds", "Since the gateway last heard of control; absent before the first time.")
_MEMORY: Final = _gauge("resident_memory_bytes", "Memory of the gateway process.")
_CPU: Final = _counter("cpu_seconds", "Processor time of the gateway process.")

PER_GATEWAY: Final = (
    _INFO,
    _CONNECTIONS,
    _OPEN,
    _REQUESTS,
    _IN_FLIGHT,
    _WAITING,
    _WAITS,
    _WAIT_SECONDS,
    _PROMPT,
    _COMPLETION,
    _REQUEST_BYTES,
    _ANSWER_BYTES,
    _REFUSALS,
    _PASSED,
    _RETRIES,
    _RECONNECTS,
    _TIME_OUTS,
    _UPSTREAM,
    _BODY_BYTES,
    _VIEW_AGE,
    _MEMORY,
    _CPU,
)


def families(gateways: Mapping[str, GatewayCounts]) -> list[MetricFamily]:
    """The metrics of these gateways, each sample with the id of its gateway."""
    found = {description: description.family() for description in PER_GATEWAY}
    for id, counts in gateways.items():
        for description, labels, value in (*_process(counts), *_models(counts)):
            found[description].samples.append(Sample({"gateway": id, **labels}, value))
    return list(found.values())


_Line = tuple[MetricDescription, dict[str, str], float]


def _process(counts: GatewayCounts) -> Iterable[_Line]:
    yield _INFO, {"host": counts.host, "pid": str(counts.pid), "version": counts.version}, 1
    yield _CONNECTIONS, {}, counts.connections
    yield _OPEN, {}, counts.open_connections
    yield from ((_REFUSALS, {"code": code}, times) for code, times in sorted(counts.refusals.items()))
    yield from ((_PASSED, {"code": str(code)}, times) for code, times in sorted(counts.passed.items()))
    yield _RETRIES, {}, counts.retries
    yield _RECONNECTS, {}, counts.reconnects
    yield from ((_TIME_OUTS, {"kind": kind}, times) for kind, times in sorted(counts.time_outs.items()))
    yield _UPSTREAM, {"state": "idle"}, counts.upstream_idle
    yield _UPSTREAM, {"state": "used"}, counts.upstream_open - counts.upstream_idle
    yield _BODY_BYTES, {}, counts.body_bytes
    if counts.view_age_seconds is not None:
        yield _VIEW_AGE, {}, counts.view_age_seconds
    yield _MEMORY, {}, counts.memory_bytes
    yield _CPU, {}, counts.cpu_seconds


def _models(counts: GatewayCounts) -> Iterable[_Line]:
    for name, model in sorted(counts.models.items()):
        label = {"model": name}
        for line in model.requests:
            yield _REQUESTS, {**label, "code": str(line.code), "outcome": line.outcome}, line.requests
        yield _IN_FLIGHT, label, model.in_flight
        yield _WAITING, label, model.waiting
        yield _WAITS, label, model.waits
        yield _WAIT_SECONDS, label, model.wait_seconds
        yield _PROMPT, label, model.prompt_tokens
        yield _COMPLETION, label, model.completion_tokens
        yield _REQUEST_BYTES, label, model.request_bytes
        yield _ANSWER_BYTES, label, model.answer_bytes
