"""How far an install is, on the terminal. Programs that read our output see nothing of it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from corral.cli.output import printable

if TYPE_CHECKING:
    from corral.worker.installing.progress import InstallStep, Report


@contextmanager
def install_bar(name: str) -> "Iterator[Report]":
    """A bar for one backend, on standard error; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield _unseen
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from corral.worker.installing.progress import Onward

    words = TextColumn("{task.fields[phase]:<11} {task.description}", markup=False)
    columns = (words, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task, onward = bar.add_task(printable(name), phase="resolving", total=None), Onward()

        def report(step: "InstallStep") -> None:
            told = onward.after(step)
            bar.update(task, completed=told.done, total=told.total or None, phase=told.phase.value)

        yield report


def _unseen(_: "InstallStep") -> None:
    """Nobody looks."""
