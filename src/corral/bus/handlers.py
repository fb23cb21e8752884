"""Running the handlers of one subscription: a task for each message, a bound on them, and a bounded end."""

import asyncio
import logging
from datetime import timedelta
from typing import Final

from corral.base.tasks import start_task
from corral.bus.port import Handler, Message

log = logging.getLogger(__name__)

_CANCEL_SECONDS: Final = 2.0


class Handlers:
    """Owns the tasks that it starts: `finish` awaits every one of them."""

    def __init__(self, subject: str, handler: Handler, concurrency: int) -> None:
        self._subject = subject
        self._handler = handler
        self._slots = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()

    async def dispatch(self, message: Message) -> None:
        """Start handling. Waits only while the bound is reached, and so holds back the messages behind this one."""
        await self._slots.acquire()
        task = start_task(self._handle(message), name=f"bus handler {self._subject}")
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def finish(self, within: timedelta, *, apart_from: asyncio.Task[object] | None) -> None:
        """Wait for the running handlers, then cancel the rest; but not the one that called for the end itself."""
        others = {task for task in self._running if task is not apart_from}
        try:
            if others:
                await asyncio.wait(others, timeout=within.total_seconds())
        finally:
            await self._cancel({task for task in others if not task.done()})

    async def _cancel(self, late: set[asyncio.Task[None]]) -> None:
        if not late:
            return
        log.warning(
            "handlers cancelled",
            extra={"event": "bus.handlers_cancelled", "subject": self._subject, "handlers": len(late)},
        )
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=_CANCEL_SECONDS)

    async def _handle(self, message: Message) -> None:
        try:
            await self._handler(message)
        except Exception:
            log.exception("handler failed", extra={"event": "bus.handler_failed", "subject": message.subject})

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._slots.release()
