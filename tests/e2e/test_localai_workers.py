"""Workers as LocalAI's are, which give no URL: a frontend asks their replicas through an adapter of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import pytest

from corral.base.tasks import end_tasks, start_task
from corral.bus.server import NatsServer
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.store.secrets import SecretsKey
from corral.wire.models import ModelView
from tests.kit.admin_api import open_session
from tests.kit.backend_scripts import Pipe, open_pipe, write_serving_backend
from tests.kit.databases import DatabaseSource
from tests.kit.inspection import environment_text
from tests.kit.load_clients import StreamRequest
from tests.kit.localai_worker import LocalAiWorker, localai_worker
from tests.kit.models import write_model
from tests.kit.ports import lasting_port
from tests.kit.processes import FrontendProcess, running_below
from tests.kit.waiting import eventually, within_timeout

TOKEN = "token-of-these-workers"
ADAPTER = "corral.processes.adapter"
ENDLESS = """
from corral_backend_sdk import Reply

async def predict_stream(self, request):
    try:
        for number in range(100_000):
            yield Reply(message=b"word ", tokens=number + 1)
            if number == 0:
                say("begun")
            await asyncio.sleep(0.01)
    except BaseException:
        say("cancelled")
        raise

Script.predict_stream = predict_stream
"""


@dataclass
class Site:
    """One or two frontends of a fleet whose workers are LocalAI's."""

    frontends: list[FrontendProcess]
    workers: list[LocalAiWorker]
    session: aiohttp.ClientSession
    folder: Path

    @property
    def frontend(self) -> FrontendProcess:
        return self.frontends[0]

    async def ask(self, path: str, body: object, *, number: int = 0) -> tuple[int, Any]:
        answer = await self.frontends[number].call("POST", path, body)
        return answer.status, answer.json()

    async def says(self, text: str, *, number: int = 0, model: str = "echo") -> str:
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        status, answer = await self.ask("/v1/chat/completions", body, number=number)
        assert status == 200, answer
        return str(answer["choices"][0]["message"]["content"])

    def stream(self, *, model: str = "echo", text: str = "a b c d", tokens: int = 100) -> StreamRequest:
        frontend = self.frontend
        return StreamRequest(
            session=self.session, url=frontend.url, key=frontend.admin_key, model=model, text=text, tokens=tokens
        )

    async def model(self, name: str = "echo") -> ModelView:
        answer = await self.frontend.call("GET", f"/api/v1/models/{name}")
        assert answer.status == 200, answer.body
        return msgspec.json.decode(answer.body, type=ModelView)

    def adapters(self, number: int = 0) -> list[psutil.Process]:
        return running_below(self.frontends[number].pid, ADAPTER)

    async def until_healthy(self, count: int) -> None:
        async def are_healthy() -> bool:
            nodes = await self.frontend.nodes()
            return [node.status for node in nodes.values()] == [NodeStatus.HEALTHY] * count

        await eventually(are_healthy, "the workers to be healthy")


async def open_site(stack: AsyncExitStack, folder: Path, *, frontends: int, workers: int, **more: str) -> Site:
    write_model(folder / "models", "echo", backend="echo", parameters={"model": "echo.bin"})
    (folder / "models" / "echo.bin").write_bytes(b"weights")
    nats = await stack.enter_async_context(NatsServer(folder / "nats", port=lasting_port()))
    session = await stack.enter_async_context(open_session())
    settings = {
        "CORRAL_MODELS_PATH": str(folder / "models"),
        **nats.frontend_environment,
        "CORRAL_REGISTRATION_TOKEN": TOKEN,
        "CORRAL_AUTO_APPROVE": "true",
        "CORRAL_ADMIN_KEYS": "key-of-these-tests-0123456789",
        "CORRAL_SECRETS_KEY": SecretsKey.generate().to_text(),
        **more,
    }
    site = Site(frontends=[], workers=[], session=session, folder=folder)
    for number in range(frontends):
        frontend = FrontendProcess(
            f"f{number}",
            session,
            {**settings, "CORRAL_DATA": str(folder / f"f{number}"), "CORRAL_INSTANCE_ID": f"f{number}"},
        )
        frontend.admin_key = "key-of-these-tests-0123456789"
        site.frontends.append(await stack.enter_async_context(frontend))
    for frontend in site.frontends:
        await frontend.until_ready()
    for number in range(workers):
        worker = localai_worker(
            f"l{number}",
            site.frontend.url,
            TOKEN,
            nats_url=nats.url,
            backends=folder / "backends",
            session=session,
        )
        site.workers.append(await stack.enter_async_context(worker))
    await site.until_healthy(workers)
    return site


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    with open_pipe(tmp_path / "said") as opened:
        yield opened


@pytest.fixture
async def site(tmp_path: Path, pipe: Pipe) -> AsyncIterator[Site]:
    """One frontend, one worker, the models `echo` and `endless`."""
    write_serving_backend(tmp_path / "backends", "endless", pipe=pipe.path, body=ENDLESS)
    write_model(tmp_path / "models", "endless", backend="endless", parameters={"model": "endless.bin"})
    async with AsyncExitStack() as stack:
        yield await open_site(stack, tmp_path, frontends=1, workers=1)


async def said(pipe: Pipe) -> str:
    return await within_timeout(pipe.line(), lambda: "a word of the backend")


async def test_replicas_there_answer_as_all_others_do(site: Site) -> None:
    assert site.adapters() == [], "nobody needs one yet"

    assert await site.says("hello brave new world") == "hello brave new world"
    streamed = await site.stream().ask()
    assert (streamed.is_served, streamed.problem) == (True, "")
    assert streamed.events >= 4
    status, vectors = await site.ask("/v1/embeddings", {"model": "echo", "input": ["one", "two"]})
    assert (status, [len(entry["embedding"]) for entry in vectors["data"]]) == (200, [8, 8])
    status, refused = await site.ask("/v1/chat/completions", {"model": "echo", "messages": []})
    assert (status, refused["error"]["param"]) == (400, "messages")

    (replica,) = (await site.model()).replicas
    assert (replica.state, replica.url, replica.node) == ("loaded", "", "l0"), "the URL is the frontend's own"
    assert [path.read_bytes() for path in (site.folder / "l0" / "models").rglob("echo.bin")] == [b"weights"]
    (adapter,) = site.adapters()
    assert TOKEN not in " ".join(adapter.cmdline()) + environment_text(adapter.pid)
    assert adapter.memory_info().rss < 120 * 2**20


async def test_a_client_that_leaves_ends_its_call_at_the_backend(site: Site, pipe: Pipe) -> None:
    stream = start_task(site.stream(model="endless", tokens=100_000).ask(), name="stream")
    assert await said(pipe) == "begun"

    async def in_flight() -> int | None:
        (replica,) = (await site.model("endless")).replicas
        return replica.in_flight

    await eventually(in_flight, "the request to be counted")
    await end_tasks(stream)
    assert await said(pipe) == "cancelled"

    async def is_idle() -> bool:
        return await in_flight() == 0

    await eventually(is_idle, "the request to be counted no more")


async def test_an_adapter_that_dies_is_back_with_all_its_replicas(site: Site, pipe: Pipe) -> None:
    await site.says("before")
    begun = asyncio.Event()
    stream = start_task(site.stream(model="endless", tokens=100_000).ask(on_event=begun.set), name="stream")
    await within_timeout(begun.wait(), lambda: "the first event")
    assert await said(pipe) == "begun"
    (adapter,) = site.adapters()

    adapter.kill()

    cut = await within_timeout(stream, lambda: "the end of the stream")
    assert (cut.status, cut.is_done) == (200, False), "what broke off is not taken for whole"
    assert await said(pipe) == "cancelled"
    assert await site.says("after") == "after"
    (new,) = site.adapters()
    assert new.pid != adapter.pid
    assert [replica.state for replica in (await site.model()).replicas] == ["loaded"], "nobody loaded it again"
    assert site.workers[0].starts == ["echo#0", "endless#0"]


async def test_a_stream_goes_on_while_control_dies_and_comes_back(site: Site, pipe: Pipe) -> None:
    stream = start_task(site.stream(model="endless", tokens=100_000).ask(), name="stream")
    assert await said(pipe) == "begun"
    (adapter,) = site.adapters()
    (control,) = running_below(site.frontend.pid, "control")

    control.kill()

    await eventually(lambda: is_another(site, control.pid), "another control")
    await site.frontend.until_ready()
    assert await site.says("hello") == "hello"
    assert site.adapters() == [adapter]
    assert not stream.done()
    await end_tasks(stream)
    assert await said(pipe) == "cancelled"


async def is_another(site: Site, pid: int) -> bool:
    return any(process.pid != pid for process in running_below(site.frontend.pid, "control"))


async def test_a_backend_that_died_is_never_asked_for_another_model(site: Site) -> None:
    await site.says("hello")
    site.workers[0].processes["echo#0"].kill()

    async def answers() -> bool:
        status, _ = await site.ask(
            "/v1/chat/completions", {"model": "echo", "messages": [{"role": "user", "content": "x"}]}
        )
        assert status in (200, 502, 503), status
        return status == 200

    await eventually(answers, "the model to be loaded again")


@pytest.mark.postgres
async def test_each_frontend_has_its_own_adapter_and_survives_a_node(
    tmp_path: Path, database_source: DatabaseSource
) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database_source.blank_url("postgres"))
        site = await open_site(stack, tmp_path, frontends=2, workers=2, CORRAL_DATABASE=url)
        assert [await site.says(f"hello {number}", number=number) for number in (0, 1)] == ["hello 0", "hello 1"]
        assert [len(site.adapters(number)) for number in (0, 1)] == [1, 1]
        (replica,) = [replica for replica in (await site.model()).replicas if replica.state == "loaded"]
        dying, other = sorted(site.workers, key=lambda worker: worker.name != replica.node)

        await dying.die()

        async def both_answer() -> bool:
            body = {"model": "echo", "messages": [{"role": "user", "content": "again"}]}
            answers = [await site.ask("/v1/chat/completions", body, number=number) for number in (0, 1)]
            assert all(status in (200, 502, 503) for status, _ in answers), answers
            return [status for status, _ in answers] == [200, 200]

        await eventually(both_answer, "both frontends to answer")
        assert other.starts == ["echo#0"]
