"""Counters of this process since its start. They only grow, except `open_connections`."""

from collections import Counter
from typing import Final

from corral.gateway.usage import Usage

_MOST_MODELS: Final = 10_000
OTHERS: Final = "others"
"""Name under which models beyond the limit are counted together."""
CLIENT_LEFT: Final = 499
"""Status that is counted when the client left before there was a response."""


class ModelTally:
    __slots__ = (
        "answer_bytes",
        "completion_tokens",
        "prompt_tokens",
        "request_bytes",
        "requests",
        "wait_seconds",
        "waits",
    )

    def __init__(self) -> None:
        self.requests: Counter[tuple[int, str]] = Counter()
        """Number of requests by status and outcome."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.request_bytes = 0
        self.answer_bytes = 0
        self.waits = 0
        self.wait_seconds = 0.0


class Tally:
    __slots__ = (
        "connections",
        "models",
        "open_connections",
        "passed",
        "reconnects",
        "refusals",
        "retries",
        "time_outs",
    )

    def __init__(self) -> None:
        self.models: dict[str, ModelTally] = {}
        self.connections = 0
        self.open_connections = 0
        """Currently open client connections."""
        self.retries = 0
        self.reconnects = 0
        self.refusals: Counter[str] = Counter()
        self.passed: Counter[int] = Counter()
        self.time_outs: Counter[str] = Counter()

    def of(self, model: str) -> ModelTally:
        found = self.models.get(model)
        if found is None:
            name = model if len(self.models) < _MOST_MODELS else OTHERS
            found = self.models.setdefault(name, ModelTally())
        return found

    def ended(self, model: str, status: int, outcome: str, *, answer_bytes: int, usage: Usage | None) -> None:
        """Count the end of a request that had reached a model."""
        tally = self.of(model)
        tally.requests[status or CLIENT_LEFT, outcome] += 1
        tally.answer_bytes += answer_bytes
        if usage is not None:
            tally.prompt_tokens += usage.prompt_tokens
            tally.completion_tokens += usage.completion_tokens

    def sent(self, model: str, size: int) -> None:
        """Count the bytes of a body that is sent to a replica."""
        self.of(model).request_bytes += size

    def waited(self, model: str, seconds: float) -> None:
        tally = self.of(model)
        tally.waits += 1
        tally.wait_seconds += seconds
