"""Results of an engine that blocks, brought into the event loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

Part = TypeVar("Part")


class _End:
    def __init__(self, failure: BaseException | None) -> None:
        self.failure = failure


async def stream_from_thread(work: Callable[[Callable[[Part], bool]], None]) -> AsyncIterator[Part]:
    """Run `work` in a thread of its own and yield what it emits.

    `work` calls `emit(part)` and must end soon after that returned True: nobody listens any more. The end of the
    iterator waits for the thread, so that no engine is freed under it.
    """
    loop = asyncio.get_running_loop()
    parts: asyncio.Queue[Part | _End] = asyncio.Queue()
    unwanted = threading.Event()

    def emit(part: Part) -> bool:
        if not unwanted.is_set():
            loop.call_soon_threadsafe(parts.put_nowait, part)
        return unwanted.is_set()

    def run() -> None:
        failure: BaseException | None = None
        try:
            work(emit)
        except BaseException as error:  # noqa: BLE001 - raised again in the loop
            failure = error
        loop.call_soon_threadsafe(parts.put_nowait, _End(failure))

    thread = threading.Thread(target=run, name="engine", daemon=True)
    thread.start()
    try:
        while not isinstance(part := await parts.get(), _End):
            yield part
        if part.failure is not None:
            raise part.failure
    finally:
        unwanted.set()
        await asyncio.to_thread(thread.join)
