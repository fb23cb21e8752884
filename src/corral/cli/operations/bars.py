"""How far an operation is, as bars: one for each node, or for each file of a model that is being pulled."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from corral.base.words import format_duration, format_size, printable
from corral.cli.operations.words import amount, counts, situation, step
from corral.cli.output import plain, state_text, word_text
from corral.wire.operation_views import FileShareView, OperationView, TargetView
from corral.wire.state_words import Subject, target_word

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_BAR_WIDTH: Final = 24
_NAME_WIDTH: Final = 40
_OTHER_LINES: Final = 3
_LEAST_ROWS: Final = 3
_SHOWN_FIRST: Final = ("error", "blocked", "downloading", "running_on_worker", "queued")
_FILES_FIRST: Final = ("fetching", "checking", "waiting", "done")
_LEAST_SECONDS: Final = 0.5
"""Between two readings of a speed; shorter times say little."""
_NEW_SHARE: Final = 0.3
"""How much the newest reading counts: a speed that jumps cannot be read."""


@dataclass(slots=True)
class _ByteReading:
    at: float
    bytes: int
    per_second: float = 0.0


@dataclass(slots=True)
class FileSpeeds:
    """How fast each file of an operation comes, from one look at it to the next."""

    _readings: dict[str, _ByteReading] = field(default_factory=dict)

    def look(self, operation: OperationView, now: float) -> None:
        for file in files_of(operation):
            last = self._readings.setdefault(file.name, _ByteReading(now, file.current_bytes))
            passed = now - last.at
            if passed >= _LEAST_SECONDS:
                newest = max(file.current_bytes - last.bytes, 0) / passed
                smooth = newest if not last.per_second else last.per_second + _NEW_SHARE * (newest - last.per_second)
                self._readings[file.name] = _ByteReading(now, file.current_bytes, smooth)

    def of(self, file: FileShareView) -> float:
        """Bytes per second; 0 when the speed is not known yet."""
        reading = self._readings.get(file.name)
        return reading.per_second if reading is not None and file.state == "fetching" else 0.0


def files_of(operation: OperationView) -> Iterator[FileShareView]:
    for target in operation.targets:
        yield from target.files


def bars(operation: OperationView, speeds: FileSpeeds, *, height: int) -> "RenderableType":
    """A bar for each file or target, unfinished ones first, as many as fit the height, and a line about the whole."""
    from rich.console import Group
    from rich.text import Text

    room = max(height - _OTHER_LINES, _LEAST_ROWS)
    files = list(files_of(operation))
    if files:
        rows = files if len(files) <= room else sorted(files, key=lambda file: _place(file.state, _FILES_FIRST))[:room]
        grid, hidden, noun = _file_grid(rows, speeds), len(files) - len(rows), "files"
    else:
        targets = targets_to_show(operation, room)
        grid, hidden, noun = _target_grid(targets, operation.verb), len(operation.targets) - len(targets), "nodes"
    more = f"{hidden} more {noun}; " if hidden else ""
    moving = speed(operation)
    totals = f"{more}all together {operation.progress:.0f} %{f', {moving}' if moving else ''}: {counts(operation)}"
    return Group(grid, Text(totals, style="dim"))


def _file_grid(files: Sequence[FileShareView], speeds: FileSpeeds) -> "Table":
    """A row for each file. On a narrow terminal only the column of names is cut."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(max_width=_NAME_WIDTH)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    ends = Counter(_last_part(file) for file in files)
    for file in files:
        end = _last_part(file)
        grid.add_row(
            Text(printable(end if ends[end] == 1 else file.name), no_wrap=True, overflow="ellipsis"),
            ProgressBar(total=100, completed=percentage(file), width=_BAR_WIDTH),
            f"{percentage(file):.0f} %",
            f"{'' if file.state == 'fetching' else state_text(Subject.FILE, file.state) + '  '}"
            f"{file_amount(file, speeds.of(file))}",
        )
    return grid


def _last_part(file: FileShareView) -> str:
    return file.name.rpartition("/")[2]


def percentage(file: FileShareView) -> float:
    if file.state == "done":
        return 100.0
    return 100 * min(file.current_bytes / file.total_bytes, 1) if file.total_bytes else 0.0


def file_amount(file: FileShareView, per_second: float) -> str:
    """Bytes, speed and time left as `1.2 GiB of 2.9 GiB  98 MiB/s, 17s left`."""
    total = f" of {format_size(file.total_bytes)}" if file.total_bytes else ""
    amounts = f"{format_size(file.current_bytes)}{total}"
    return f"{amounts}  {_pace(per_second, file.total_bytes - file.current_bytes)}" if per_second >= 1 else amounts


def _pace(per_second: float, remaining_bytes: int) -> str:
    duration = (
        f", {format_duration(timedelta(seconds=remaining_bytes / per_second))} left" if remaining_bytes > 0 else ""
    )
    return f"{format_size(int(per_second))}/s{duration}"


def _target_grid(targets: Sequence[TargetView], verb: str) -> "Table":
    """A row for each target. On a narrow terminal only the last column is cut."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        grid.add_column(no_wrap=True)
    grid.add_column()
    for target in targets:
        words = situation(target, verb)
        if target.status == "downloading" and target.total_bytes:  # progress first: a narrow terminal cuts off the end
            words = "  ".join(filter(None, (amount(target), speed(target), step(target))))
        grid.add_row(
            plain(target.node_name),
            ProgressBar(total=100, completed=target_percentage(target), width=_BAR_WIDTH),
            f"{target_percentage(target):.0f} %",
            word_text(target_word(target.status, verb)),
            Text(printable(words), no_wrap=True, overflow="ellipsis"),
        )
    return grid


def target_percentage(target: TargetView) -> float:
    """How far a node is. While it downloads, of the bytes that are shown beside it: the node's own figure also counts
    the unpacking."""
    if target.status != "downloading" or not target.total_bytes:
        return target.percentage
    return min(100.0, 100 * target.current_bytes / target.total_bytes)


def speed(moving: TargetView | OperationView) -> str:
    """Speed and time left as `3.1 MiB/s, 12s left`; empty when nothing is transferred."""
    if not moving.bytes_per_second:
        return ""
    seconds = moving.seconds_left
    duration = "" if seconds is None else f", {format_duration(timedelta(seconds=seconds))} left"
    return f"{format_size(moving.bytes_per_second)}/s{duration}"


def targets_to_show(operation: OperationView, room: int) -> list[TargetView]:
    """All targets in their order, or the unfinished ones when there is no room for all."""
    if len(operation.targets) <= room:
        return operation.targets
    return sorted(operation.targets, key=lambda target: _place(target.status, _SHOWN_FIRST))[:room]


def _place(word: str, order: Sequence[str]) -> int:
    return order.index(word) if word in order else len(order)
