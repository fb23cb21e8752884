"""Clients ask together at each beat, and end when they are told."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from tests.kit.load_clients import StreamOutcome, StreamRequest, under_load

SERVED = StreamOutcome(began=0.0, seconds=0.0, status=200, is_done=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRequest(StreamRequest):
    """A request that is answered when the test permits it."""

    permits: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def ask(self, *, on_event: Callable[[], None] = lambda: None) -> StreamOutcome:
        await self.permits.acquire()
        return SERVED

    def answer(self, count: int) -> None:
        for _ in range(count):
            self.permits.release()


async def test_all_clients_are_under_way_at_once_and_ask_again_at_the_next_beat() -> None:
    async with aiohttp.ClientSession() as session:
        question = HeldRequest(session=session, url="http://nowhere", key="", model="none")
        async with under_load(question, clients=3) as load:
            await load.until_under_way(3)
            assert load.answers == []
            question.answer(3)
            await load.until_answered(3)
            await load.until_under_way(3)
            assert load.answers == [SERVED] * 3
            question.answer(3)
    assert load.answers == [SERVED] * 6
