"""What is reported to control: sums of what ended, and failures of replicas.

A batch is sent unchanged until it is acknowledged, under one number, so that nothing is lost and nothing counts twice.
"""

from collections import Counter
from typing import Final

from corral.gateway.usage import Usage
from corral.wire.view import Failure, Finished, GatewayReport

_MAX_LINES: Final = 10_000
"""Distinct sums and failures in one batch. Beyond it, while control is away, everything further is one line."""
OTHERS: Final = "others"


class Ledger:
    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        """Who reports: new at every start."""
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
        """The batch that is to be sent now: the last one again unless it was acknowledged."""
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
