"""Cold loads and what gateways are told of them, on a bus in memory and on both databases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from corral.app.control import Control, Stores, wire
from corral.base.errors import NotFound
from corral.base.ids import NodeId
from corral.bus.port import Bus, Message
from corral.control.load_jobs import Loads
from corral.domain.event import EventKind
from corral.domain.key import Scope
from corral.protocol import subjects
from corral.protocol.install import InstallReply, InstallRequest
from corral.protocol.registration import FEATURES, CorralHello
from corral.protocol.replica import ReplicaAccess, RunningModel, RunningReply
from corral.protocol.view import Beat, View, ViewChange
from corral.rpc.errors import LoadFailed
from corral.rpc.messages import ModelOptions
from corral.state.db import Database
from corral.state.secrets import Secrets
from corral.state.secrets_key import SecretsKey
from corral.testing.clock import ManualClock
from corral.testing.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend

MODEL = "name: small\nbackend: echo\nparameters:\n  model: small.gguf\n"
SECRET = "s" * 40


class FakeLoader:
    """Backends that load, or not."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str, str]] = []
        self.error: str = ""

    async def load(self, address: str, *, token: str, options: ModelOptions, timeout: timedelta) -> None:
        self.loads.append((address, token, options.Model))
        if self.error:
            raise LoadFailed(address, self.error)


@dataclass
class FakeNode:
    """A worker as its messages."""

    id: NodeId
    installs: list[InstallRequest] = field(default_factory=list)
    stops: list[bytes] = field(default_factory=list)
    running: list[RunningModel] = field(default_factory=list)
    error: str = ""

    async def on_install(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=InstallRequest)
        self.installs.append(request)
        if self.error:
            reply = InstallReply(success=False, error=self.error)
        else:
            access = ReplicaAccess(url="http://127.0.0.1:7001", key="k1")
            reply = InstallReply(success=True, address="127.0.0.1:7000", corral=access)
            self.running = [
                RunningModel(model_id=request.model_id, replica_index=0, address="127.0.0.1:7000", corral=access)
            ]
        await message.respond(msgspec.json.encode(reply))

    async def on_running(self, message: Message) -> None:
        await message.respond(msgspec.json.encode(RunningReply(models=self.running)))

    async def on_stop(self, message: Message) -> None:
        self.stops.append(message.data)


@dataclass(kw_only=True)
class World:
    frontend: Frontend
    control: Control
    loader: FakeLoader
    bus: Bus
    clock: ManualClock
    stores: Stores
    models: Path
    stack: AsyncExitStack

    @property
    def loads(self) -> Loads:
        return self.control.context.loads

    async def node(self, name: str) -> FakeNode:
        hello = CorralHello(version="1", features=list(FEATURES), secret=SECRET + name, incarnation="1")
        body = {"name": name, "address": "127.0.0.1:50051", "corral": msgspec.to_builtins(hello)}
        answer = await self.frontend.register(body, token=TRUSTED_TOKEN)
        node = FakeNode(NodeId(msgspec.json.decode(answer.body)["id"]))
        for subject, handler in (
            (subjects.backend_install(node.id), node.on_install),
            (subjects.models_running(node.id), node.on_running),
            (subjects.backend_stop(node.id), node.on_stop),
        ):
            subscription = await self.bus.subscribe(subject, handler)
            self.stack.push_async_callback(subscription.close)
        return node

    async def again(self) -> Control:
        """A control that starts anew on the same database."""
        control = await wire(self.control.context.config, self.clock, self.stores, self.bus, loader=self.loader)
        await control.context.hearing.tick()
        return control


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    models = tmp_path / "models"
    models.mkdir()
    (models / "small.yaml").write_text(MODEL, encoding="utf-8")
    key, loader = SecretsKey(bytes(32)), FakeLoader()
    config = frontend_config(tmp_path, gateway_key="key-of-the-gateways")
    stores = Stores(database, await Secrets.open(database, key, at=clock.now()))
    async with AsyncExitStack() as stack:
        frontend = await stack.enter_async_context(open_frontend(database, clock, bus, config, key=key, loader=loader))
        yield World(
            frontend=frontend,
            control=frontend.control,
            loader=loader,
            bus=bus,
            clock=clock,
            stores=stores,
            models=models,
            stack=stack,
        )


async def view_of(control: Control) -> View:
    await control.context.view.refresh()
    assert control.context.view.current is not None
    return control.context.view.current


async def test_a_hundred_who_ask_share_one_load(world: World) -> None:
    node = await world.node("w1")
    asked = await asyncio.gather(*(world.loads.ensure("small") for _ in range(100)))
    await asyncio.gather(*(world.loads.tick() for _ in range(5)))

    assert {status.state for status in asked} == {"pending"}
    assert [(one.backend, one.model_id, one.replica_index) for one in node.installs] == [("echo", "small", 0)]
    assert world.loader.loads == [("127.0.0.1:7000", SECRET + "w1", "small.gguf")]
    assert (await world.loads.ensure("small")).state == "loaded"


async def test_gateways_are_told_of_the_model_its_replica_and_the_keys(world: World) -> None:
    await world.node("w1")
    before = await view_of(world.control)
    await world.loads.ensure("small")
    await world.loads.tick()
    after = await view_of(world.control)

    assert list(before.models) == ["small"]
    assert before.replicas == {}
    (replica,) = after.replicas.values()
    assert (replica.url, replica.key, replica.node_name, replica.rank) == ("http://127.0.0.1:7001", "k1", "w1", 0)
    assert after.version == before.version + 1
    assert [entry.scopes for entry in after.keys.values()] == [("admin",)]


async def test_who_follows_gets_the_view_then_changes_and_beats(world: World) -> None:
    await world.node("w1")
    await view_of(world.control)
    async with aclosing(world.control.context.view.follow()) as messages:
        assert isinstance(await anext(messages), View)
        (world.models / "more.yaml").write_text(MODEL.replace("small", "more"), encoding="utf-8")
        await world.control.context.models.look()
        await world.control.context.view.refresh()
        change = await anext(messages)
        assert isinstance(change, ViewChange)
        assert [entry.name for entry in change.models] == ["more"]
        world.control.context.view.ring()
        assert isinstance(await anext(messages), Beat)


async def test_keys_of_every_scope_are_told_so_that_a_gateway_can_say_which_one_is_missing(world: World) -> None:
    new = await world.control.context.key_ring.create("g", [Scope.GATEWAY], by="test", lifetime=None)

    entry = (await view_of(world.control)).keys[new.record.hash]

    assert entry.scopes == ("gateway",)


async def test_a_revoked_key_leaves_the_view(world: World) -> None:
    (key,) = [one for one in await world.control.context.key_ring.list()]
    assert key.hash in (await view_of(world.control)).keys
    await world.control.context.key_ring.revoke(key.id, by="test")

    assert (await view_of(world.control)).keys == {}


async def test_a_model_without_a_node_waits_and_says_for_what(world: World) -> None:
    await world.loads.ensure("small")
    await world.loads.tick()

    status = await world.loads.ensure("small")
    assert (status.state, status.message) == ("pending", "no node has joined yet")
    node = await world.node("w1")
    await world.clock.advance(timedelta(seconds=2))
    await world.loads.tick()
    assert len(node.installs) == 1


async def test_a_model_that_cannot_be_loaded_fails_with_its_reason_and_cools_down(world: World) -> None:
    node = await world.node("w1")
    world.loader.error = "no such file"
    await world.loads.ensure("small")
    await world.loads.tick()

    failed = await world.loads.ensure("small")
    assert failed.state == "failed"
    assert "no such file" in failed.message
    assert node.stops
    await world.loads.tick()
    assert len(node.installs) == 1
    world.loader.error = ""
    await world.clock.advance(timedelta(seconds=5))
    assert (await world.loads.ensure("small")).state == "pending"
    await world.loads.tick()
    assert (await world.loads.ensure("small")).state == "loaded"


async def test_a_node_that_refuses_is_passed_over_for_another(world: World) -> None:
    first, second = await world.node("w1"), await world.node("w2")
    first.error = "backend not found"
    await world.loads.ensure("small")
    await world.loads.tick()

    assert (len(first.installs), len(second.installs)) == (1, 1)
    assert (await world.loads.ensure("small")).node == "w2"


async def test_a_control_that_starts_anew_knows_what_is_loaded_before_any_node_speaks(world: World) -> None:
    await world.node("w1")
    await world.loads.ensure("small")
    await world.loads.tick()
    known = await view_of(world.control)

    assert (await view_of(await world.again())).replicas == known.replicas


async def test_a_replica_is_not_lost_by_one_report_without_it_and_is_by_two(world: World) -> None:
    node = await world.node("w1")
    await world.loads.ensure("small")
    await world.loads.tick()
    await world.control.replica_health.sweep()
    node.running, before = [], node.running
    await world.control.replica_health.sweep()
    assert (await view_of(world.control)).replicas
    node.running = before
    await world.control.replica_health.sweep()
    node.running = []
    await world.control.replica_health.sweep()
    await world.control.replica_health.sweep()

    assert (await view_of(world.control)).replicas == {}
    events = await world.control.context.events.after(0, limit=99)
    assert events[-1].event.kind is EventKind.REPLICA_LOST


async def test_another_process_in_its_place_ends_a_replica_at_once(world: World) -> None:
    node = await world.node("w1")
    await world.loads.ensure("small")
    await world.loads.tick()
    (process,) = node.running
    node.running = [msgspec.structs.replace(process, corral=ReplicaAccess(url="http://127.0.0.1:7001", key="k2"))]
    await world.control.replica_health.sweep()

    assert (await view_of(world.control)).replicas == {}


async def test_an_unknown_model_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await world.loads.ensure("nobody")


async def test_a_bad_file_is_named_and_the_others_still_serve(world: World) -> None:
    (world.models / "bad.yaml").write_text("name: [", encoding="utf-8")
    (world.models / "loop.yaml").write_text("&a\nname: x\nself: *a\n", encoding="utf-8")
    (world.models / "typed.yaml").write_text(MODEL.replace("small", "typed") + "threads: many\n", encoding="utf-8")
    (world.models / ".hidden.yaml").write_text("[", encoding="utf-8")
    await world.control.context.models.look()

    answer = await world.frontend.call("GET", "/api/v1/models")
    shown = msgspec.json.decode(answer.body)
    assert [one["name"] for one in shown["items"]] == ["small"]
    assert [one["source"] for one in shown["problems"]] == ["bad.yaml", "loop.yaml", "typed.yaml"]


async def test_gateway_routes_want_the_scope_gateway(world: World) -> None:
    calls = [("POST", "/api/v1/gateway/report"), ("POST", "/api/v1/gateway/ensure"), ("GET", "/api/v1/gateway/view")]
    for method, path in calls:
        assert (await world.frontend.call(method, path, {})).status == 403
        assert (await world.frontend.call(method, path, {}, key="wrong")).status == 401


async def test_a_gateway_reports_and_asks_over_http(world: World) -> None:
    await world.node("w1")
    own = "key-of-the-gateways"
    asked = await world.frontend.call("POST", "/api/v1/gateway/ensure", {"model": "small"}, key=own)
    await world.loads.tick()
    report = {"gateway": "g", "sequence": 1, "in_flight": {"r": 2}}
    told = await world.frontend.call("POST", "/api/v1/gateway/report", report, key=own)

    assert msgspec.json.decode(asked.body)["state"] == "pending"
    assert told.status == 204
    assert world.control.context.gateways.in_flight() == {"r": 2}
    assert (await world.frontend.call("POST", "/api/v1/gateway/report", b"{", key=own)).status == 400
    assert (await world.frontend.call("POST", "/api/v1/gateway/ensure", {"model": "x"}, key=own)).status == 404
    shown = msgspec.json.decode((await world.frontend.call("GET", "/api/v1/models/small")).body)
    assert (shown["state"], shown["replicas"][0]["node"]) == ("loaded", "w1")
