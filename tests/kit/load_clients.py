"""Clients of a fleet: one question and what became of it, or several clients that ask at a steady pace."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import msgspec

from corral.base.tasks import task_group

_DONE: Final = b"data: [DONE]"
_EVENT: Final = b"data: "
ANSWER_TIMEOUT_SECONDS: Final = 60.0
_BEAT_SECONDS: Final = 0.5
"""All clients ask at each beat, together. Clients that ask again at once would take the machine from the processes that
they are to watch, and count nothing but their own speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOutcome:
    """One streamed question, and what became of it."""

    began: float
    seconds: float
    status: int
    """0 when there was no answer at all."""
    events: int = 0
    is_done: bool = False
    """Whether the stream said itself that it was at its end."""
    problem: str = ""
    """What the connection broke with, or what an error said."""

    @property
    def ended(self) -> float:
        return self.began + self.seconds

    @property
    def is_served(self) -> bool:
        return self.status == 200 and self.is_done and not self.problem

    @property
    def is_cut_off(self) -> bool:
        """Whether it had begun, and the client could see that it broke off."""
        return self.status == 200 and not self.is_done and bool(self.problem)

    @property
    def label(self) -> str:
        """How it ended, in one word, for counting."""
        if self.is_served:
            return "served"
        return "cut off" if self.status == 200 else str(self.status or "no answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """A streamed chat request to a frontend."""

    session: aiohttp.ClientSession
    url: str
    key: str = field(repr=False)
    model: str
    text: str = "Tell me a long story."
    tokens: int = 2

    async def ask(self, *, on_event: Callable[[], None] = lambda: None) -> StreamOutcome:
        """Ask, and read to whatever end comes."""
        began = time.monotonic()
        status = events = 0
        is_done = False
        problem = ""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS), self._post() as response:
                status = response.status
                if status != 200:
                    problem = (await response.read()).decode(errors="replace")
                async for line in response.content:
                    is_done = is_done or line.startswith(_DONE)
                    if line.startswith(_EVENT) and not is_done:
                        events += 1
                        on_event()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            problem = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        return StreamOutcome(
            began=began, seconds=seconds, status=status, events=events, is_done=is_done, problem=problem
        )

    def _post(self) -> "aiohttp.client._RequestContextManager":
        body = {
            "model": self.model,
            "stream": True,
            "temperature": 0,
            "max_tokens": self.tokens,
            "messages": [{"role": "user", "content": self.text}],
        }
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        return self.session.post(f"{self.url}/v1/chat/completions", data=msgspec.json.encode(body), headers=headers)


@dataclass(slots=True)
class Load:
    """Clients that ask at each beat until the end; whoever has no answer yet misses beats."""

    answers: list[StreamOutcome] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _under_way: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _ending: asyncio.Event = field(default_factory=asyncio.Event)

    async def client(self, question: StreamRequest) -> None:
        while not self._ending.is_set():
            await self._count(+1)
            self.answers.append(await question.ask())
            await self._count(-1)
            await self._until_next_beat()

    def end(self) -> None:
        """Ask nothing more; answers under way still come."""
        self._ending.set()

    async def until_answered(self, count: int) -> None:
        """Wait until so many answers have come, of any kind."""
        await self._until(lambda: len(self.answers) >= count)

    async def until_under_way(self, count: int) -> None:
        """Wait until so many questions are being answered at once."""
        await self._until(lambda: self._under_way >= count)

    async def until_served(self, *, since: float) -> StreamOutcome:
        """The first whole answer that ended after this moment."""
        await self._until(lambda: bool(self._served_after(since)))
        return min(self._served_after(since), key=lambda answer: answer.ended)

    async def _count(self, change: int) -> None:
        async with self._changed:
            self._under_way += change
            self._changed.notify_all()

    async def _until_next_beat(self) -> None:
        past = (time.monotonic() - self._began) % _BEAT_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEAT_SECONDS - past):
                await self._ending.wait()

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS), self._changed:
            await self._changed.wait_for(condition)

    def _served_after(self, moment: float) -> list[StreamOutcome]:
        return [answer for answer in self.answers if answer.is_served and answer.ended > moment]


@asynccontextmanager
async def under_load(question: StreamRequest, *, clients: int) -> AsyncIterator[Load]:
    """So many clients ask at each beat while the block runs; afterwards all answers are there."""
    load = Load()
    async with task_group() as group:
        for number in range(clients):
            group.create_task(load.client(question), name=f"client {number}")
        try:
            yield load
        finally:
            load.end()


def counted(answers: Sequence[StreamOutcome]) -> str:
    """A sentence with how many ended in which way."""
    return (
        ", ".join(f"{count} {how}" for how, count in Counter(answer.label for answer in answers).most_common())
        or "none"
    )
