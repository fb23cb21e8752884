"""An adapter process before an `echo` process."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from corral.rpc.backend import Backend
from corral.rpc.messages import ModelOptions
from corral.wire.adapter import AdapterModel, AdapterReplica
from tests.kit.adapters import RunningAdapter, running_adapter
from tests.kit.backends import SOON, TOKEN, RunningBackend, running_backend
from tests.kit.loop_thread import LoopThread

MODEL = AdapterModel(name="echo-model", identity="m.bin", use_tokenizer_template=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a client sees, and what is behind it."""

    adapter: RunningAdapter
    echo: RunningBackend
    session: aiohttp.ClientSession

    async def load(self, *options: str) -> None:
        await self.echo.client.load(ModelOptions(Model="m.bin", Options=options), timeout=SOON)

    async def tell(self, key: str, model: AdapterModel = MODEL, *, token: str = TOKEN) -> None:
        replica = AdapterReplica(key=key, address=self.echo.address, token=token, model=model)
        await self.adapter.link.serve(replica)

    def post(self, path: str, body: Any, *, key: str = "k1") -> Any:
        """An answer under way; use it as an asynchronous context."""
        given = {"data": body} if isinstance(body, bytes) else {"json": body}
        return self.session.post(self.adapter.url + path, headers={"Authorization": f"Bearer {key}"}, **given)

    async def ask(self, path: str, body: Any, *, key: str = "k1") -> tuple[int, Any]:
        async with self.post(path, body, key=key) as answer:
            return answer.status, await answer.json()

    async def in_flight(self) -> int:
        async with self.session.get(self.adapter.url + "/healthz") as answer:
            return int((await answer.json())["in_flight"])


@pytest.fixture(scope="module")
def shared_echo() -> Iterator[RunningBackend]:
    """One process for all tests of a module: a load replaces whatever was loaded before, with its options."""
    with LoopThread() as loop:
        yield loop.enter(running_backend("echo"))


@asynccontextmanager
async def served_before(echo: RunningBackend) -> AsyncIterator[Served]:
    async with running_adapter() as adapter, aiohttp.ClientSession() as session:
        served = Served(adapter=adapter, echo=echo, session=session)
        await served.load()
        await served.tell("k1")
        yield served


@pytest.fixture
async def served(shared_echo: RunningBackend) -> AsyncIterator[Served]:
    """Loaded, and served under the key `k1`."""
    async with (
        Backend(shared_echo.address, token=TOKEN) as client,
        served_before(RunningBackend(process=shared_echo.process, client=client)) as served,
    ):
        yield served


@pytest.fixture
async def served_alone() -> AsyncIterator[Served]:
    """The same before a process of its own, for a test that ends it."""
    async with running_backend("echo") as echo, served_before(echo) as served:
        yield served
