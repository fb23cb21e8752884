"""Long work in a thread of its own: its outcome comes back, and a cancelled caller leaves none behind."""

import asyncio
import threading

import pytest

from corral.base.tasks import CancelSignal, in_own_thread


async def test_what_the_work_returns_or_raises_comes_back() -> None:
    assert await in_own_thread(lambda _: threading.current_thread().name, name="mine") == "mine"
    with pytest.raises(ZeroDivisionError):
        await in_own_thread(lambda _: 1 // 0, name="broken")


async def test_a_cancelled_caller_ends_the_work_and_waits_for_it() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(wanted: CancelSignal) -> None:
        begun.set()
        try:
            while True:
                wanted.check()
        finally:
            ended.set()

    task = asyncio.create_task(in_own_thread(work, name="long"))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
