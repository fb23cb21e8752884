"""Pulls of two frontends on one database: with one models directory they share every file, with two they leave each
other's pulls alone."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from corral.bus.port import Bus
from corral.frontend.app import build_app
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.models.decide.pulling import PullPolicy
from corral.frontend.store.db import Database
from corral.hubs.access import HubAccess
from corral.hubs.config import HubsConfig
from corral.processes.control import Control, build_control
from corral.wire.operation_views import OperationView
from tests.kit.asgi import call
from tests.kit.clock import ManualClock
from tests.kit.frontend import frontend_config
from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import HuggingFaceServer
from tests.kit.waiting import eventually
from tests.kit.world import World, open_world

pytestmark = [pytest.mark.parametrize("database", ["postgres"], indirect=True), pytest.mark.postgres]

CHAT = gguf(**LLAMA, tokenizer__chat_template="{{ messages }}") + bytes(800_000)
FILE = "chat-Q4_K_M.gguf"
HELD_AT = 24
"""Chunks after which the server stops."""


@pytest.fixture
def server() -> Iterator[HuggingFaceServer]:
    with HuggingFaceServer() as server:
        server.add_repository("org/Chat-GGUF", {FILE: CHAT})
        yield server


class HeldServer:
    """Stops after some chunks until it is let go."""

    def __init__(self, server: HuggingFaceServer) -> None:
        self._gate = threading.Event()
        self._sent = 0
        server.before_chunk = self._hold

    def _hold(self, _: object) -> None:
        self._sent += 1
        if self._sent == HELD_AT:
            self._gate.wait(60)

    async def until_held(self) -> None:
        async def is_held() -> bool:
            return self._sent >= HELD_AT

        await eventually(is_held, "the server to stop")

    def let_go(self) -> None:
        self._gate.set()


@dataclass(kw_only=True)
class TwoPullers:
    world: World
    other: Control

    @property
    def controls(self) -> tuple[Control, Control]:
        return self.world.control, self.other

    async def ask(self) -> str:
        answer = await self.world.frontend.call("POST", "/api/v1/pulls", {"reference": "hf://org/Chat-GGUF"})
        assert answer.status == 202, answer.body
        for control in self.controls:
            await control.context.pulls.stores.look()
        return msgspec.json.decode(answer.body, type=OperationView).id

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for control in self.controls:
                group.create_task(control.context.operations.dispatcher.tick())

    async def shown(self, id: str) -> list[OperationView]:
        """By both."""
        headers = {"authorization": f"Bearer {self.world.frontend.admin_key}"}
        answers = [
            await call(build_app(control.context), "GET", f"/api/v1/operations/{id}", headers=headers)
            for control in self.controls
        ]
        return [msgspec.json.decode(answer.body, type=OperationView) for answer in answers]

    async def until_some_are_kept(self, id: str) -> None:
        """What the server sent may be on its way: wait until the frontend that fetches has written bytes down."""

        async def are_kept() -> bool:
            return (await self.shown(id))[0].targets[0].current_bytes > 0

        await eventually(are_kept, "bytes on the disk")


async def two_pullers(
    stack: AsyncExitStack, server: HuggingFaceServer, world_of: tuple[Database, ManualClock, Bus, Path], models: Path
) -> TwoPullers:
    database, clock, bus, folder = world_of
    hub = await stack.enter_async_context(HubAccess.open(HubsConfig(hf_url=server.base)))
    policy, lookups = PullPolicy(free_bytes=0, connections=1), Lookups(hub=hub)
    world = await stack.enter_async_context(open_world(database, clock, bus, folder, lookups=lookups, pulls=policy))
    config = frontend_config(folder, models_path=models, pulls=policy)
    other = await build_control(config, clock, world.stores, bus, lookups=lookups)
    return TwoPullers(world=world, other=other)


@pytest.fixture
async def sharing(
    server: HuggingFaceServer, database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> AsyncIterator[TwoPullers]:
    async with AsyncExitStack() as stack:
        yield await two_pullers(stack, server, (database, clock, bus, tmp_path), tmp_path / "models")


@pytest.fixture
async def apart(
    server: HuggingFaceServer, database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> AsyncIterator[TwoPullers]:
    (tmp_path / "other").mkdir()
    async with AsyncExitStack() as stack:
        yield await two_pullers(stack, server, (database, clock, bus, tmp_path), tmp_path / "other")


async def test_who_shares_a_directory_fetches_a_file_once(sharing: TwoPullers, server: HuggingFaceServer) -> None:
    id = await sharing.ask()
    planned = server.sent
    await sharing.work()
    assert [(view.state, view.targets[0].message) for view in await sharing.shown(id)] == [("done", "by digest")] * 2
    assert server.sent - planned == len(CHAT)


async def test_another_frontend_goes_on_with_the_bytes_that_are_there(
    sharing: TwoPullers, server: HuggingFaceServer
) -> None:
    id = await sharing.ask()
    held = HeldServer(server)
    first, second = sharing.controls
    dying = asyncio.ensure_future(first.context.operations.dispatcher.tick())
    await held.until_held()
    await sharing.until_some_are_kept(id)
    dying.cancel()
    await asyncio.wait([dying])
    held.let_go()
    await sharing.world.clock.advance(timedelta(seconds=10))
    before = server.sent
    await second.context.operations.dispatcher.tick()
    assert [view.state for view in await sharing.shown(id)] == ["done", "done"]
    assert 0 < server.sent - before < len(CHAT)


async def test_a_cancel_at_one_frontend_ends_the_download_of_the_other(
    sharing: TwoPullers, server: HuggingFaceServer
) -> None:
    id = await sharing.ask()
    held = HeldServer(server)
    first, second = sharing.controls
    work = asyncio.ensure_future(second.context.operations.dispatcher.tick())
    try:
        await held.until_held()
        await first.context.operations.service.cancel(id, by="me")  # type: ignore[arg-type]
        while not work.done():
            await sharing.world.clock.advance(timedelta(seconds=1))
            await asyncio.wait([work], timeout=0.05)
    finally:
        held.let_go()
        await work
    assert [view.state for view in await sharing.shown(id)] == ["cancelled", "cancelled"]


async def test_progress_is_seen_at_both(sharing: TwoPullers, server: HuggingFaceServer) -> None:
    id = await sharing.ask()
    held = HeldServer(server)
    first, second = sharing.controls
    await sharing.shown(id)  # who looks is listened for
    await second.context.operations.progress.tend()
    work = asyncio.ensure_future(first.context.operations.dispatcher.tick())
    try:

        async def is_moving() -> bool:
            return all(view.targets[0].current_bytes > 0 for view in await sharing.shown(id))

        await eventually(is_moving, "bytes")
        targets = [view.targets[0] for view in await sharing.shown(id)]
    finally:
        held.let_go()
        await work
    assert [[file.name for file in target.files] for target in targets] == [[f"chat/{FILE}"]] * 2
    assert targets[0].current_bytes == targets[1].current_bytes


async def test_a_pull_is_left_to_who_has_the_directory_and_waits_when_nobody_has(
    apart: TwoPullers, server: HuggingFaceServer
) -> None:
    id = await apart.ask()
    first, second = apart.controls
    await second.context.operations.dispatcher.tick()
    assert [view.state for view in await apart.shown(id)] == ["running", "running"]
    await apart.world.clock.advance(timedelta(minutes=1))  # the first one is not heard of any more
    await second.context.pulls.stores.look()
    await second.context.operations.dispatcher.tick()
    views = await apart.shown(id)
    assert [view.state for view in views] == ["waiting", "waiting"]
    assert "waits for a frontend that has this models directory" in views[0].targets[0].message
    await apart.world.clock.advance(timedelta(minutes=1))
    await first.context.operations.dispatcher.tick()
    assert [view.state for view in await apart.shown(id)] == ["done", "done"]
    assert not list((second.context.pulls.stores.directory).glob("chat*"))
