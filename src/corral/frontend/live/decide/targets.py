"""Targets as readers see them one after the other: the share of one never goes back within an attempt."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from corral.frontend.operations.decide.operation import TargetStatus
from corral.wire.operation_views import TargetView

_MOVING: Final = (TargetStatus.DOWNLOADING.value, TargetStatus.RUNNING_ON_WORKER.value)


def forward(before: TargetView | None, now: TargetView) -> TargetView:
    """The target as it is now, with the largest share that was shown of the same attempt.

    A frontend that hears of an attempt later than another one, or asks the node again, knows less of it for a moment.
    """
    if before is None or before.percentage <= now.percentage:
        return now
    is_same = before.status in _MOVING and now.status in _MOVING and before.attempts == now.attempts
    return replace(now, percentage=before.percentage) if is_same else now


def all_forward(before: Mapping[str, object], now: list[TargetView]) -> dict[str, TargetView]:
    """All targets of an operation by their nodes; `before` are those that were shown last."""
    shown = {key: value for key, value in before.items() if isinstance(value, TargetView)}
    return {target.node_id: forward(shown.get(target.node_id), target) for target in now}
