"""One bar per node: what a terminal shows while an operation is under way."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from corral.base.durations import format_duration
from corral.base.sizes import format_size
from corral.cli.operation_words import amount, counts, shown_status, situation, step
from corral.cli.output import plain, printable, styled
from corral.wire.operation_views import OperationView, TargetView

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR_WIDTH: Final = 24
_OTHER_LINES: Final = 3
_LEAST_ROWS: Final = 3
_FIRST_SHOWN: Final = ("error", "blocked", "downloading", "running_on_worker", "queued")


def bars(operation: OperationView, *, height: int) -> "RenderableType":
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
        detail = Text(printable(_detail(target, operation.verb)), no_wrap=True, overflow="ellipsis")
        grid.add_row(
            plain(target.node_name),
            bar,
            f"{target.percentage:.0f} %",
            styled(shown_status(target, operation.verb)),
            detail,
        )
    hidden = len(operation.targets) - len(rows)
    more = f"{hidden} more nodes; " if hidden else ""
    moving = speed(operation)
    told = f"{more}all together {operation.progress:.0f} %{f', {moving}' if moving else ''}: {counts(operation)}"
    return Group(grid, Text(told, style="dim"))


def speed(moving: TargetView | OperationView) -> str:
    """`3.1 MiB/s, 12s left`; empty where nothing moves."""
    if not moving.bytes_per_second:
        return ""
    left = moving.seconds_left
    duration = "" if left is None else f", {format_duration(timedelta(seconds=left))} left"
    return f"{format_size(moving.bytes_per_second)}/s{duration}"


def _detail(target: TargetView, verb: str) -> str:
    """What moves comes first: the rest is long, and cut where there is little room."""
    if target.status != "downloading" or not target.total_bytes:
        return situation(target, verb)
    return "  ".join(filter(None, (amount(target), speed(target), step(target))))


def shown(operation: OperationView, room: int) -> list[TargetView]:
    """All, in their order; where there is no room for all, those that are not done."""
    if len(operation.targets) <= room:
        return operation.targets
    order = {status: place for place, status in enumerate(_FIRST_SHOWN)}
    return sorted(operation.targets, key=lambda one: order.get(one.status, len(order)))[:room]
