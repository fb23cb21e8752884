"""What the gateway counts: a `Tally` for its metrics, and a `Ledger` that is reported to control in batches."""

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import Final

from corral.gateway.usage import Usage
from corral.wire.metrics import HistogramCounts
from corral.wire.view import Finished, GatewayReport, ReplicaFailure

_MOST_MODELS: Final = 10_000
OTHERS: Final = "others"
"""Name under which everything beyond a limit is counted together."""
_MAX_LINES: Final = 10_000
"""Distinct sums and failures in one batch. When control is away for long, everything beyond is summed in one line."""
CLIENT_LEFT: Final = 499
"""Status that is counted when the client left before there was a response."""


@dataclass(slots=True)
class ModelTally:
    """The sums of one model, which `wire.metrics.ModelCounts` explains. They become one when they are reported, because
    it costs several times as much to change a field of a message."""

    requests: defaultdict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    """Number of requests by status and outcome. No counter, whose items cost ten times as much to set."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    waits: int = 0
    wait_seconds: float = 0.0
    first_byte: HistogramCounts = field(default_factory=HistogramCounts)
    answer_seconds: float = 0.0

    def waited(self, seconds: float) -> None:
        """Count a request that has waited for a replica."""
        self.waits += 1
        self.wait_seconds += seconds

    def ended(self, status: int, outcome: str, *, answer_bytes: int, usage: Usage | None, seconds: float) -> None:
        """Count the end of a request that had reached this model. `seconds` is how long its answer took."""
        self.requests[status or CLIENT_LEFT, outcome] += 1
        self.answer_bytes += answer_bytes
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens
            self.answer_seconds += seconds


@dataclass(slots=True)
class Tally:
    """Counters of this process since its start. They only grow, except `open_connections`."""

    models: dict[str, ModelTally] = field(default_factory=dict)
    connections: int = 0
    open_connections: int = 0
    """Currently open client connections."""
    retries: int = 0
    reconnects: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    passed: Counter[int] = field(default_factory=Counter)
    time_outs: Counter[str] = field(default_factory=Counter)

    def of(self, model: str) -> ModelTally:
        """Return what is counted of a model. It stays the same for as long as the process runs."""
        tally = self.models.get(model)
        if tally is None:
            name = model if len(self.models) < _MOST_MODELS else OTHERS
            tally = self.models.setdefault(name, ModelTally())
        return tally


@dataclass(slots=True)
class _EndedRequests:
    """The sums of a `wire.view.Finished`, which is made of them once it is reported."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usage_unknown: int = 0
    answer_seconds: float = 0.0


class Ledger:
    """Sums of ended requests and failures of replicas, collected for reports to control.

    A batch has a number and is sent unchanged until control acknowledges it: nothing is lost and nothing counts twice.
    """

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        """Id of this gateway process; new at every start."""
        self._sequence = 1
        self._finished: dict[tuple[str, str, str, str], _EndedRequests] = {}
        """By replica, model, key and outcome."""
        self._failures: Counter[tuple[str, str]] = Counter()
        self._sending: tuple[list[Finished], list[ReplicaFailure]] | None = None

    def ended(
        self, replica: str, model: str, key: str, outcome: str, usage: Usage | None, seconds: float = 0.0
    ) -> None:
        name = (replica, model, key, outcome)
        line = self._finished.get(name)
        if line is None:
            if len(self._finished) >= _MAX_LINES:
                name = (OTHERS, OTHERS, OTHERS, outcome)
            line = self._finished.setdefault(name, _EndedRequests())
        line.requests += 1
        if usage is None:
            line.usage_unknown += 1
        else:
            line.prompt_tokens += usage.prompt_tokens
            line.completion_tokens += usage.completion_tokens
            line.answer_seconds += seconds

    def failed(self, replica: str, reason: str) -> None:
        if len(self._failures) < _MAX_LINES or (replica, reason) in self._failures:
            self._failures[replica, reason] += 1

    def report(self) -> GatewayReport:
        """Return the batch to send: the previous one again unless it was acknowledged."""
        if self._sending is None:
            failures = [ReplicaFailure(replica=name, reason=why, times=n) for (name, why), n in self._failures.items()]
            self._sending = [_finished(*name, line) for name, line in self._finished.items()], failures
            self._finished, self._failures = {}, Counter()
        finished, failures = self._sending
        return GatewayReport(gateway=self.gateway, sequence=self._sequence, finished=finished, failures=failures)

    def acknowledged(self) -> None:
        self._sending = None
        self._sequence += 1


def _finished(replica: str, model: str, key: str, outcome: str, line: _EndedRequests) -> Finished:
    return Finished(replica=replica, model=model, key=key, outcome=outcome, **asdict(line))
