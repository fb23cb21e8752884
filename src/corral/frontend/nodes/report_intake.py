"""How much nodes may report by themselves: decided before a report is parsed, by its bytes alone.

Anybody with a NATS login can send a report under any node's id, so there is a limit for each node and one for all.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from corral.base.clock import Clock
from corral.base.ids import NodeId
from corral.frontend.nodes.client import MOST_BYTES, too_much


class ReportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many reports of one kind are taken within one window. The reader of the reports decides how it learns about
    dropped ones."""

    reports_per_node: int
    reports_in_all: int | None
    """None where only bytes count."""
    window: timedelta = timedelta(seconds=10)
    bytes_per_node: int = 2 * MOST_BYTES
    bytes_in_all: int = 32 * MOST_BYTES
    """Parsing this takes less than a second."""


class ReportIntake:
    """Counts what came in the running window."""

    def __init__(self, clock: Clock, limits: ReportLimits, warn: Callable[[NodeId, str], None]) -> None:
        """`warn` is called with the first node of a window whose report is dropped, and why."""
        self._clock = clock
        self._limits = limits
        self._warn = warn
        self._ends_at = clock.now()
        self._begin(self._ends_at)

    def _begin(self, now: datetime) -> None:
        self._ends_at = now + self._limits.window
        self._counts: dict[NodeId, int] = {}
        self._bytes: dict[NodeId, int] = {}
        self._total_count = 0
        self._total_bytes = 0
        self._has_warned = False

    def takes(self, node_id: NodeId, report: bytes) -> bool:
        """Whether this report may be parsed."""
        now, size = self._clock.now(), len(report)
        if not self._ends_at - self._limits.window <= now < self._ends_at:
            self._begin(now)
        why = too_much(report) or self._why_not(node_id, size)
        if not why:
            self._counts[node_id] = self._counts.get(node_id, 0) + 1
            self._bytes[node_id] = self._bytes.get(node_id, 0) + size
            self._total_count += 1
            self._total_bytes += size
            return True
        if not self._has_warned:
            self._has_warned = True
            self._warn(node_id, f"{why}; others may be dropped until {self._ends_at}")
        return False

    def _why_not(self, node_id: NodeId, size: int) -> str:
        limits, seconds = self._limits, f"{self._limits.window.total_seconds():.0f} s"
        if self._counts.get(node_id, 0) >= limits.reports_per_node:
            return f"a node reports at most {limits.reports_per_node} times in {seconds}"
        if limits.reports_in_all is not None and self._total_count >= limits.reports_in_all:
            return f"at most {limits.reports_in_all} reports are read in {seconds}"
        if self._bytes.get(node_id, 0) + size > limits.bytes_per_node:
            return f"a node sends at most {limits.bytes_per_node} bytes in {seconds}"
        if self._total_bytes + size > limits.bytes_in_all:
            return f"at most {limits.bytes_in_all} bytes are read in {seconds}"
        return ""
