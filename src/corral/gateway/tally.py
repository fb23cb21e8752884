"""What the gateway counts: a `Tally` for its metrics, and a `Ledger` that is reported to control in batches."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from corral.gateway.usage import Usage
from corral.wire.metrics import ModelCounts
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
    requests: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Number of requests by status and outcome."""
    sums: ModelCounts = field(default_factory=ModelCounts)
    """All other sums, as they are reported."""

    def waited(self, seconds: float) -> None:
        """Count a request that has waited for a replica."""
        self.sums.waits += 1
        self.sums.wait_seconds += seconds

    def ended(self, status: int, outcome: str, *, answer_bytes: int, usage: Usage | None, seconds: float) -> None:
        """Count the end of a request that had reached this model. `seconds` is how long its answer took."""
        self.requests[status or CLIENT_LEFT, outcome] += 1
        sums = self.sums
        sums.answer_bytes += answer_bytes
        if usage is not None:
            sums.prompt_tokens += usage.prompt_tokens
            sums.completion_tokens += usage.completion_tokens
            sums.answer_seconds += seconds


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


class Ledger:
    """Sums of ended requests and failures of replicas, collected for reports to control.

    A batch has a number and is sent unchanged until control acknowledges it: nothing is lost and nothing counts twice.
    """

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        """Id of this gateway process; new at every start."""
        self._sequence = 1
        self._finished: dict[tuple[str, str, str, str], Finished] = {}
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
            line = self._finished.setdefault(
                name, Finished(replica=name[0], model=name[1], key=name[2], outcome=outcome)
            )
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
            self._sending = list(self._finished.values()), failures
            self._finished, self._failures = {}, Counter()
        finished, failures = self._sending
        return GatewayReport(gateway=self.gateway, sequence=self._sequence, finished=finished, failures=failures)

    def acknowledged(self) -> None:
        self._sending = None
        self._sequence += 1
