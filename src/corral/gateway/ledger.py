"""Sums of ended requests and failures of replicas, collected for reports to control.

A batch has a number and is sent unchanged until control acknowledges it: nothing is lost and nothing counts twice.
"""

from collections import Counter
from typing import Final

from corral.gateway.usage import Usage
from corral.wire.view import Failure, Finished, GatewayReport

_MAX_LINES: Final = 10_000
"""Distinct sums and failures in one batch. When control is away for long, everything beyond is summed in one line."""
OTHERS: Final = "others"


class Ledger:
    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        """Id of this gateway process; new at every start."""
        self._sequence = 1
        self._finished: dict[tuple[str, str, str, str], Finished] = {}
        self._failures: Counter[tuple[str, str]] = Counter()
        self._sending: tuple[list[Finished], list[Failure]] | None = None

    def ended(self, replica: str, model: str, key: str, outcome: str, usage: Usage | None) -> None:
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

    def failed(self, replica: str, reason: str) -> None:
        if len(self._failures) < _MAX_LINES or (replica, reason) in self._failures:
            self._failures[replica, reason] += 1

    def report(self) -> GatewayReport:
        """Return the batch to send: the previous one again unless it was acknowledged."""
        if self._sending is None:
            failures = [Failure(replica=name, reason=why, times=n) for (name, why), n in self._failures.items()]
            self._sending = list(self._finished.values()), failures
            self._finished, self._failures = {}, Counter()
        finished, failures = self._sending
        return GatewayReport(
            gateway=self.gateway,
            sequence=self._sequence,
            finished=finished,
            failures=failures,
        )

    def acknowledged(self) -> None:
        self._sending = None
        self._sequence += 1
