"""Signals that ask a process to end."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGINT)


def _wait() -> object:
    """The end is under way; a second signal does not hurry it."""


@contextmanager
def stop_on_signals(stop: asyncio.Event, *, hurry: Callable[[], object] = _wait) -> Iterator[None]:
    """Set `stop` at SIGTERM and SIGINT, which then no longer end the process by themselves; the next calls `hurry`."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            hurry()
        stop.set()

    for number in _ENDING:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in _ENDING:
            loop.remove_signal_handler(number)
