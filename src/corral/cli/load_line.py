"""One line on the terminal that says how far a model's load is, while somebody waits for its first answer."""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import click

from corral.base.errors import CorralError
from corral.cli.humane import size
from corral.cli.output import printable

if TYPE_CHECKING:
    from corral.cli.client import ApiClient
    from corral.wire.model_views import LoadJobView, ModelView

_FIRST_LOOK_SECONDS: Final = 0.7
"""A loaded model answers sooner, and nobody asks."""
_PERIOD_SECONDS: Final = 0.5
_CLEAR: Final = "\r\x1b[2K"


class _StatusLine:
    """A line of standard error that can be written over until it is ended, by whichever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._has_text = False

    def has_ended_within(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def write(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        with self._lock:
            if not self._ended.is_set():
                click.echo(f"{_CLEAR}{click.style(printable(text)[:width], dim=True)}", nl=False, err=True)
                self._has_text = True

    def end(self) -> None:
        """Take away what was written; what comes later is not shown."""
        with self._lock:
            if self._has_text and not self._ended.is_set():
                click.echo(_CLEAR, nl=False, err=True)
            self._ended.set()


@contextmanager
def load_shown(client: "ApiClient", model: str) -> Iterator[Callable[[], None]]:
    """Show the load on standard error until the given function is called, or the block ends.

    Nothing is shown where standard error is no terminal, or where the key may not see models. Nobody waits for a
    frontend that does not say how far the load is.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    line = _StatusLine()
    threading.Thread(target=_watch, args=(client, model, line), daemon=True).start()
    try:
        yield line.end
    finally:
        line.end()


def _watch(client: "ApiClient", model: str, line: _StatusLine) -> None:
    from corral.wire.model_views import ModelView

    pause = _FIRST_LOOK_SECONDS
    try:
        while not line.has_ended_within(pause):
            pause = _PERIOD_SECONDS
            if text := load_text(client.get(f"/api/v1/models/{quote(model, safe='')}", ModelView)):
                line.write(text)
    except CorralError:
        pass  # whoever waits for the answer is told what is wrong
    finally:
        line.end()


def load_text(model: "ModelView") -> str:
    """What is being done, in a few words; empty when there is nothing to wait for."""
    job = model.load_job
    if job is None or model.state == "loaded":
        return ""
    if job.state == "pending":
        return f"{model.name} waits" + (f": {job.message}" if job.message else "")
    where = next((f" on {one.node}" for one in model.replicas if one.state in ("reserved", "staging", "loading")), "")
    return f"{model.name} is {job.phase or job.state}{where}{_amounts(job)}"


def _amounts(job: "LoadJobView") -> str:
    if not job.total_bytes:
        return ""
    if job.current_bytes is None:
        return f", {size(job.total_bytes)}"
    left = f", {job.eta_seconds:.0f} s left" if job.eta_seconds is not None else ""
    return f", {size(job.current_bytes)} of {size(job.total_bytes)}{left}"
