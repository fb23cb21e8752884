"""One adapter for all replicas of a node that only speak gRPC: real backends, real adapter processes, real HTTP."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from corral.base.errors import ChildFailed, Conflict, InvalidInput
from corral.base.processes import ChildCommand
from corral.rpc.adapter_keeper import AdapterConfig, Adapters
from corral.rpc.backend import Backend
from corral.rpc.messages import ModelOptions
from corral.wire.adapter import ORDER_BYTES, AdapterModel, AdapterReplica
from corral.wire.backends import CorralInstall, InstallRequest
from corral.worker.membership.addresses import HostPort
from corral.worker.processes.ports import Ports, PortsExhausted
from corral.worker.processes.process import Launch
from tests.kit.adapters import adapter_command, adapters_on
from tests.kit.backend_node import BackendNode
from tests.kit.backend_scripts import write_serving_backend
from tests.kit.clock import ManualClock
from tests.kit.inspection import environment_text
from tests.kit.loop_time import let_loop_time_pass
from tests.kit.ports import lasting_port
from tests.kit.processes import running_below
from tests.kit.waiting import eventually

TOKEN = "secret-of-the-node"
SOON = timedelta(seconds=30)
LONG = timedelta(minutes=1)
CHAT = "/v1/chat/completions"
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello brave new world"}]}
LOADED = AdapterModel(name="m1", identity="m.bin", use_tokenizer_template=True)


@dataclass
class Rig:
    """What a worker has around its adapter, on ports of its own."""

    folder: Path
    clock: ManualClock
    session: aiohttp.ClientSession
    config: AdapterConfig = field(default_factory=AdapterConfig)
    size: int = 6
    broken: bool = False
    started: list[int] = field(default_factory=list)
    """Where adapters were told to listen."""

    def __post_init__(self) -> None:
        self.numbers = [lasting_port() for _ in range(self.size)]
        ranges = [range(port, port + 1) for port in self.numbers]
        self.node = BackendNode(
            folder=self.folder, clock=self.clock, ranges=ranges, token=TOKEN, adapters=self.adapters_on
        )
        self.supervisor, self.backends = self.node.supervisor, self.node.backends

    def adapters_on(self, ports: Ports) -> Adapters:
        self.adapters = adapters_on(ports, self.clock, self.config, command=self.command)
        return self.adapters

    def command(self, descriptor: int, place: HostPort) -> ChildCommand:
        self.started.append(place.port)
        if self.broken:
            return ChildCommand(argv=["/bin/false"], env={}, handed_over=[descriptor])
        return adapter_command(descriptor, place)

    async def install(self, model: str, told: AdapterModel | None = LOADED, *, backend: str = "echo") -> Launch:
        request = InstallRequest(backend=backend, model_id=model)
        if told is not None:
            request.corral = CorralInstall(model=told)
        return await self.node.deliver(request)

    async def loaded(self, model: str, *options: str, told: AdapterModel = LOADED) -> Launch:
        launch = await self.install(model, told)
        await self.load(launch, *options)
        return launch

    async def load(self, launch: Launch, *options: str) -> None:
        async with Backend(launch.address, token=TOKEN) as backend:
            await backend.load(ModelOptions(Model="m.bin", Options=options), timeout=SOON)

    def url(self, launch: Launch) -> str:
        port = self.backends.http_port(launch)
        assert port is not None
        return f"http://127.0.0.1:{port}"

    def post(self, launch: Launch, body: Any = HELLO, *, path: str = CHAT, key: str = "") -> Any:
        headers = {"Authorization": f"Bearer {key or launch.http_key}"}
        return self.session.post(self.url(launch) + path, json=body, headers=headers)

    async def ask(self, launch: Launch, body: Any = HELLO, *, path: str = CHAT, key: str = "") -> tuple[int, Any]:
        async with self.post(launch, body, path=path, key=key) as answer:
            return answer.status, await answer.json()

    async def says(self, launch: Launch) -> str:
        status, answer = await self.ask(launch)
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])

    def adapter(self) -> psutil.Process:
        (found,) = adapter_processes()
        return found

    async def kill_adapter(self) -> None:
        """As the kernel would; returns when the keeper waits for the next start."""
        self.adapter().send_signal(signal.SIGKILL)
        await self.clock.until_sleeping(1)

    async def revived(self, launch: Launch) -> None:
        """Let the pause before the next start pass, and wait until it serves."""

        async def answers() -> bool:
            try:
                return (await self.ask(launch))[0] == 200
            except aiohttp.ClientError:
                return False

        await self.clock.until_sleeping(1)
        await self.clock.advance(self.config.backoff.cap * 2)
        await eventually(answers, "the adapter to be back")


def adapter_processes() -> list[psutil.Process]:
    return running_below(os.getpid(), "corral.processes.adapter")


def pids(rig: Rig) -> dict[str, int]:
    records = [json.loads(file.read_text()) for file in (rig.folder / "processes").glob("*.json")]
    return {record["key"]: record["pid"] for record in records}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def rig(tmp_path: Path, clock: ManualClock, session: aiohttp.ClientSession) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path, clock, session)
    async with rig.adapters, rig.supervisor:
        yield rig


async def test_a_replica_gets_a_url_that_answers(rig: Rig) -> None:
    launch = await rig.loaded("m1")

    assert await rig.says(launch) == "hello brave new world"
    async with rig.post(launch, HELLO | {"stream": True}) as answer:
        text = await answer.text()
    assert (text.count("data: "), text.endswith("data: [DONE]\n\n")) == (7, True)
    status, embedded = await rig.ask(launch, {"model": "m", "input": ["a", "b"]}, path="/v1/embeddings")
    assert (status, len(embedded["data"])) == (200, 2)
    status, refused = await rig.ask(launch, {"model": "m", "messages": []})
    assert (status, refused["error"]["type"]) == (400, "invalid_request_error")


async def test_without_a_word_about_the_model_there_is_no_url_and_no_adapter(rig: Rig) -> None:
    launch = await rig.install("m1", None)

    assert rig.backends.http_port(launch) is None
    assert adapter_processes() == []


async def test_replicas_share_the_adapter_and_have_keys_of_their_own(rig: Rig) -> None:
    first = await rig.loaded("m1")
    second = await rig.loaded("m2", told=AdapterModel(name="m2", identity="m.bin", use_tokenizer_template=True))

    assert len(adapter_processes()) == 1
    assert rig.url(first) == rig.url(second)
    assert first.http_key != second.http_key
    assert [(await rig.ask(one))[1]["model"] for one in (first, second)] == ["m1", "m2"]
    assert (await rig.ask(first, key="somebody else's"))[0] == 401


async def test_the_tokens_travel_neither_in_the_arguments_nor_in_the_environment(rig: Rig) -> None:
    launch = await rig.loaded("m1")

    shown = " ".join(rig.adapter().cmdline()) + environment_text(rig.adapter().pid)
    assert TOKEN not in shown
    assert launch.http_key not in shown


async def test_an_install_with_other_words_about_the_model_replaces_them(rig: Rig) -> None:
    launch = await rig.loaded("m1")
    again = await rig.install("m1", AdapterModel(name="renamed", identity="m.bin", use_tokenizer_template=True))

    assert again is launch
    assert (await rig.ask(launch))[1]["model"] == "renamed"
    await rig.install("m1", None)
    assert (await rig.ask(launch))[1]["model"] == "renamed"


async def test_the_death_of_the_adapter_touches_no_replica_and_is_mended(rig: Rig) -> None:
    engine = write_serving_backend(rig.folder / "backends", "engine")
    (engine / "corral.json").write_text('{"http": {"protocol": "openai"}}')
    own_port = await rig.install("m2", backend="engine")
    launch = await rig.loaded("m1", "hang_after:1")
    url, before = rig.url(launch), pids(rig)
    async with rig.post(launch, HELLO | {"stream": True}) as stream:
        await stream.content.readline()
        await rig.kill_adapter()
        with pytest.raises(aiohttp.ClientError):
            await stream.read()

    assert rig.url(launch) == url
    assert [rig.supervisor.runs(one) for one in (launch, own_port)] == [True, True]
    await rig.load(launch)
    await rig.revived(launch)
    assert (rig.url(launch), pids(rig)) == (url, before)
    assert (await rig.ask(launch, key=own_port.http_key))[0] == 401


async def test_an_install_meanwhile_waits_for_the_next_adapter(rig: Rig) -> None:
    first = await rig.loaded("m1")
    await rig.kill_adapter()
    async with asyncio.TaskGroup() as group:
        install = group.create_task(rig.loaded("m2"))
        await rig.revived(first)

    assert await rig.says(install.result()) == "hello brave new world"


async def test_a_port_that_was_taken_meanwhile_becomes_another_one(rig: Rig) -> None:
    launch = await rig.loaded("m1")
    url = rig.url(launch)
    await rig.kill_adapter()
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", int(url.rpartition(":")[2])))
        stranger.listen()
        await rig.clock.advance(rig.config.backoff.cap * 2)
        await eventually(lambda: _answers(rig, launch, elsewhere_than=url), "another URL")

    assert rig.url(launch) != url


async def _answers(rig: Rig, launch: Launch, *, elsewhere_than: str) -> bool:
    try:
        return rig.url(launch) != elsewhere_than and (await rig.ask(launch))[0] == 200
    except aiohttp.ClientError:
        return False


async def test_the_end_of_a_replica_is_the_end_of_its_key(rig: Rig) -> None:
    first, second = await rig.loaded("m1"), await rig.loaded("m2")
    url = rig.url(first)
    await rig.backends.stop("m1", force=False)

    assert rig.backends.http_port(first) is None

    async def status() -> bool:
        headers = {"Authorization": f"Bearer {first.http_key}"}
        async with rig.session.post(url + CHAT, json=HELLO, headers=headers) as answer:
            return answer.status == 401

    await eventually(status, "the key to be forgotten")
    assert await rig.says(second) == "hello brave new world"


async def test_the_adapter_lingers_and_ends_when_nobody_needs_it(rig: Rig) -> None:
    launch = await rig.loaded("m1")
    process = rig.adapter()
    await rig.backends.stop("m1", force=False)
    await rig.clock.until_sleeping(1)
    again = await rig.loaded("m1")
    assert rig.adapter() == process
    await rig.backends.stop("m1", force=False)
    await rig.clock.until_sleeping(1)
    await rig.clock.advance(rig.config.linger)
    await eventually(_no_adapter, "the adapter to end")

    assert launch.http_key != again.http_key
    assert rig.backends.http_port(again) is None


async def _no_adapter() -> bool:
    return not adapter_processes()


async def test_no_port_for_the_adapter_fails_the_install_and_leaves_nothing(
    tmp_path: Path, clock: ManualClock, session: aiohttp.ClientSession
) -> None:
    rig = Rig(tmp_path, clock, session, size=1)
    async with rig.adapters, rig.supervisor:
        with pytest.raises(PortsExhausted) as failed:
            await rig.install("m1")

        assert "no port is left for adapter" in failed.value.message
        assert "LOCALAI_GRPC_MAX_PORT" in failed.value.message
        assert (rig.supervisor.launches(), adapter_processes()) == ([], [])


async def test_an_adapter_that_does_not_start_fails_the_install_and_leaves_nothing(rig: Rig) -> None:
    rig.broken = True
    with pytest.raises(ChildFailed) as failed:
        await rig.install("m1")

    assert "the adapter ended before it was ready (exit code 1)" in failed.value.message
    assert rig.supervisor.launches() == []
    rig.broken = False
    await rig.clock.until_sleeping(1)
    await rig.clock.advance(LONG)
    assert await rig.says(await rig.loaded("m1")) == "hello brave new world"


async def test_what_ran_before_is_not_stopped_for_want_of_an_adapter(rig: Rig) -> None:
    launch = await rig.install("m1", None)
    rig.broken = True
    with pytest.raises(ChildFailed):
        await rig.install("m1")

    assert rig.supervisor.runs(launch)
    await rig.clock.until_sleeping(1)
    await rig.clock.advance(LONG)
    assert len(rig.started) == 1


async def test_an_adapter_that_hangs_is_started_again(rig: Rig) -> None:
    first = await rig.loaded("m1")
    rig.adapter().suspend()
    async with asyncio.TaskGroup() as group:
        second = group.create_task(rig.loaded("m2"))
        await eventually(lambda: _wants(rig, 2), "the second to be wanted")
        for _ in range(20):  # until the adapter is told of it
            await asyncio.sleep(0)
        let_loop_time_pass(rig.config.obey_within)
        await rig.revived(first)

    assert await rig.says(second.result()) == "hello brave new world"


async def test_a_replica_that_ends_while_it_waits_for_its_url_is_told(rig: Rig) -> None:
    first = await rig.loaded("m1")
    await rig.kill_adapter()
    async with asyncio.TaskGroup() as group:
        install = group.create_task(_expect_conflict(rig))
        await eventually(lambda: _wants(rig, 2), "the second to wait")
        await rig.backends.stop("m2", force=True)

    assert "ended before it had a URL" in install.result()
    await rig.revived(first)


async def _expect_conflict(rig: Rig) -> str:
    with pytest.raises(Conflict) as conflict:
        await rig.install("m2")
    return conflict.value.message


async def _wants(rig: Rig, count: int) -> bool:
    return len(rig.adapters._demanded) == count


async def test_a_model_too_large_to_tell_fails_alone(rig: Rig) -> None:
    first = await rig.loaded("m1")
    process = rig.adapter()
    huge = AdapterModel(name="m2", system_prompt="x" * ORDER_BYTES)
    with pytest.raises(InvalidInput):
        await rig.adapters.serve(AdapterReplica(key="k2", address="127.0.0.1:1", model=huge))

    assert await rig.says(first) == "hello brave new world"
    assert rig.adapter() == process


async def test_a_client_that_goes_ends_its_call_at_the_backend(rig: Rig) -> None:
    launch = await rig.loaded("m1", "hang_after:1")
    async with rig.post(launch, HELLO | {"stream": True}) as stream:
        await stream.content.readline()
        stream.close()

    async def is_idle() -> bool:
        async with rig.session.get(rig.url(launch) + "/healthz") as answer:
            return bool((await answer.json())["in_flight"] == 0)

    await eventually(is_idle, "the call to end")
