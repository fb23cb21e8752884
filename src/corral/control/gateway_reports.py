"""What gateways report: requests under way, what ended, and what could not be reached. Kept in memory only."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.control.replica_health import ReplicaHealth
from corral.protocol.view import GatewayReport

SILENT_AFTER: Final = timedelta(seconds=5)
"""What a gateway said longer ago counts as unknown."""
FORGOTTEN_AFTER: Final = timedelta(minutes=10)


@dataclass(slots=True, kw_only=True)
class _Gateway:
    heard_at: datetime
    sequence: int = 0
    in_flight: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What finished requests are summed by."""

    model: str
    outcome: str


class GatewayReports:
    def __init__(self, health: ReplicaHealth, clock: Clock) -> None:
        self._health = health
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}
        self.requests: Counter[Outcome] = Counter()
        self.prompt_tokens: Counter[str] = Counter()
        self.completion_tokens: Counter[str] = Counter()

    def take(self, report: GatewayReport) -> None:
        """A report that came before is acknowledged again, and not counted again."""
        now = self._clock.now()
        known = self._gateways.setdefault(report.gateway, _Gateway(heard_at=now))
        known.heard_at, known.in_flight = now, report.in_flight
        if report.sequence > known.sequence:
            known.sequence = report.sequence
            self._count(report)
        self._forget_silent(now)

    def in_flight(self) -> Counter[str]:
        """Requests under way by replica, as far as gateways were heard lately."""
        now = self._clock.now()
        total: Counter[str] = Counter()
        for gateway in self._gateways.values():
            if now - gateway.heard_at <= SILENT_AFTER:
                total.update(gateway.in_flight)
        return total

    def silent(self) -> int:
        """How many gateways' share is unknown."""
        now = self._clock.now()
        return sum(now - gateway.heard_at > SILENT_AFTER for gateway in self._gateways.values())

    def _count(self, report: GatewayReport) -> None:
        for finished in report.finished:
            self.requests[Outcome(finished.model, finished.outcome)] += finished.requests
            self.prompt_tokens[finished.model] += finished.prompt_tokens
            self.completion_tokens[finished.model] += finished.completion_tokens
        self._health.suspect(failure.replica for failure in report.failures)

    def _forget_silent(self, now: datetime) -> None:
        gone = [name for name, gateway in self._gateways.items() if now - gateway.heard_at > FORGOTTEN_AFTER]
        for name in gone:
            del self._gateways[name]
