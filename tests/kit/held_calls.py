"""Functions that stop in the middle of what they are part of, until a test lets them go on."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest


class HeldCall:
    """Stops whoever comes by, in a thread, until it may go on."""

    def __init__(self, work: Callable[..., object]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self.go_on = threading.Event()

    def __call__(self, *arguments: object, **named: object) -> object:
        self._loop.call_soon_threadsafe(self.begun.set)
        self.go_on.wait()
        return self._work(*arguments, **named)


@contextmanager
def held(module: ModuleType, name: str) -> Iterator[HeldCall]:
    """Whatever happens, it goes on in the end: nobody could stop the thread."""
    with pytest.MonkeyPatch.context() as patch:
        holding = HeldCall(getattr(module, name))
        patch.setattr(module, name, holding)
        try:
            yield holding
        finally:
            holding.go_on.set()
