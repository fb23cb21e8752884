"""One bar per node: what a terminal shows while an operation is under way."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from corral.base.durations import format_duration
from corral.base.sizes import format_size
from corral.cli.operation_words import amount, counts, situation, step
from corral.cli.output import plain, printable, styled
from corral.protocol.operation_views import OperationView, TargetView

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR_WIDTH: Final = 24
_OTHER_LINES: Final = 3
_LEAST_ROWS: Final = 3
_NEWER_COUNTS: Final = 0.5
"""Of a speed that was just measured, against what was known before."""
_FIRST_SHOWN: Final = ("error", "blocked", "downloading", "running_on_worker", "queued")


class Speeds:
    """How fast bytes arrive at each node, from looks that are some time apart."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        self._speeds: dict[str, float] = {}

    def note(self, operation: OperationView, now: float) -> None:
        for target in operation.targets:
            self._note(target, now)

    def _note(self, target: TargetView, now: float) -> None:
        before = self._seen.get(target.node_id)
        self._seen[target.node_id] = (now, target.current_bytes)
        if before is None or now <= before[0] or target.current_bytes < before[1]:
            self._speeds.pop(target.node_id, None)  # begun, or begun anew
            return
        measured = (target.current_bytes - before[1]) / (now - before[0])
        known = self._speeds.get(target.node_id, measured)
        self._speeds[target.node_id] = known + (measured - known) * _NEWER_COUNTS

    def told(self, target: TargetView) -> str:
        """`3.1 MiB/s, 12s left`; empty where nothing moves."""
        speed = self._speeds.get(target.node_id, 0.0)
        left = target.total_bytes - target.current_bytes
        if target.status != "downloading" or speed < 1 or left <= 0:
            return ""
        return f"{format_size(int(speed))}/s, {format_duration(timedelta(seconds=left / speed))} left"


def bars(operation: OperationView, speeds: Speeds, *, height: int) -> "RenderableType":
    """As many nodes as fit, those first that are not done, and how many there are of each kind."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    rows = shown(operation, max(height - _OTHER_LINES, _LEAST_ROWS))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        grid.add_column(no_wrap=True)
    grid.add_column()  # the only one that gives way where there is little room
    for target in rows:
        bar = ProgressBar(total=100, completed=target.percentage, width=_BAR_WIDTH)
        detail = Text(printable(_detail(target, operation.verb, speeds)), no_wrap=True, overflow="ellipsis")
        grid.add_row(plain(target.node_name), bar, f"{target.percentage:.0f} %", styled(target.status), detail)
    hidden = len(operation.targets) - len(rows)
    more = f"{hidden} more nodes; " if hidden else ""
    return Group(grid, Text(f"{more}all together {operation.progress:.0f} %: {counts(operation)}", style="dim"))


def _detail(target: TargetView, verb: str, speeds: Speeds) -> str:
    """What moves comes first: the rest is long, and cut where there is little room."""
    if target.status != "downloading" or not target.total_bytes:
        return situation(target, verb)
    return "  ".join(filter(None, (amount(target), speeds.told(target), step(target))))


def shown(operation: OperationView, room: int) -> list[TargetView]:
    """All, in their order; where there is no room for all, those that are not done."""
    if len(operation.targets) <= room:
        return operation.targets
    order = {status: place for place, status in enumerate(_FIRST_SHOWN)}
    return sorted(operation.targets, key=lambda one: order.get(one.status, len(order)))[:room]
