"""Whatever a fleet consists of is killed and started again, one after another, while clients ask many times a second.

Workers with models directories of their own, backends, adapters, one of two frontends, NATS and PostgreSQL. Every
question has a word of its own, and each model repeats it as often as only this model does: so an answer shows who gave
it, and to what. No answer may be wrong, everything must serve again after each kill, and in the end there runs what
replicas explain, and nothing else.
"""

import asyncio
import itertools
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import aiohttp
import msgspec
import psutil

from chaos.databases import mortal_postgres
from chaos.round import Workshop
from corral.base.tasks import running, task_group
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.serving.decide.replica import LIVE, ReplicaState
from corral.frontend.store.secrets import SecretsKey
from corral.wire.models import ModelView
from corral.wire.replicas import ReplicaView
from tests.kit.admin_api import open_session
from tests.kit.models import write_model
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.postgres import PostgresServer
from tests.kit.processes import FrontendProcess, WorkerProcess, ready_together, running_below, words_of
from tests.kit.waiting import eventually

WORKERS: Final = ("w1", "w2", "w3")
REPEATS: Final = {"red": 5, "green": 7, "blue": 11}
"""How often each model says what it is told."""
_PER_SECOND: Final = 50.0
_MOST_OPEN: Final = 400
_ANSWER_SECONDS: Final = 60.0
_BACK_SECONDS: Final = 90.0
_ADAPTER: Final = "corral.processes.adapter"
_ADDRESS: Final = "--addr"
"""The argument that workers pass to every backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    model: str
    began: float
    ended: float
    problem: str = ""
    """Why it is none; empty for one that is right."""
    is_wrong: bool = False
    """It was given, and is not the answer to the question."""

    @property
    def is_served(self) -> bool:
        return not self.problem


@dataclass(slots=True, kw_only=True)
class Site:
    frontends: list[FrontendProcess]
    workers: list[WorkerProcess]
    nats: PlainNats
    postgres: PostgresServer
    session: aiohttp.ClientSession
    random: Random
    answers: list[Answer] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def backends(self) -> list[psutil.Process]:
        return [
            process
            for worker in self.workers
            if worker.is_running
            for process in worker.started()
            if _ADDRESS in words_of(process)
        ]


async def one_after_another(workshop: Workshop) -> None:
    """Each step is one kill."""
    async with AsyncExitStack() as stack:
        site = await _open(workshop, stack)
        async with _asked(site):
            await _until_all_answer(site, since=time.monotonic())
            tally: defaultdict[str, list[float]] = defaultdict(list)
            kinds: list[str] = []
            for _ in range(workshop.steps):
                kinds = kinds or workshop.random.sample(list(_KILLS), len(_KILLS))
                name = kinds.pop()
                killed = time.monotonic()
                workshop.story.tell(await _KILLS[name](site))
                tally[name].append(await _until_all_answer(site, since=time.monotonic()) - killed)
        _judge_answers(workshop, site, tally)
        await _judge_replicas(workshop, site)


# The fleet.


async def _open(workshop: Workshop, stack: AsyncExitStack) -> Site:
    models = workshop.directory / "models"
    for name, count in REPEATS.items():
        _write_model(models, name, count)
    url, postgres = await stack.enter_async_context(mortal_postgres(workshop.databases))
    nats = await stack.enter_async_context(PlainNats(workshop.directory / "nats", port=lasting_port()))
    session = await stack.enter_async_context(open_session())
    shared = {
        "CORRAL_DATABASE": url,
        "CORRAL_NATS_URL": nats.frontend_url,
        "CORRAL_SECRETS_KEY": SecretsKey.generate().to_text(),
        "CORRAL_MODELS_PATH": str(models),
        "CORRAL_AUTO_APPROVE": "true",
    }
    frontends = [
        await stack.enter_async_context(
            FrontendProcess(name, session, {**shared, "CORRAL_DATA": str(workshop.directory / name)})
        )
        for name in ("f1", "f2")
    ]
    token = await ready_together(frontends)
    of_workers = {
        "CORRAL_REGISTER_TO": ",".join(frontend.url for frontend in frontends),
        "CORRAL_REGISTRATION_TOKEN": token,
        "CORRAL_NATS_URL": nats.worker_url,
        "CORRAL_HEARTBEAT_INTERVAL": "1s",
        "CORRAL_REGISTRATION_RETRY": "500ms",
    }
    workers = [
        await stack.enter_async_context(WorkerProcess(name, workshop.directory / name, of_workers)) for name in WORKERS
    ]
    site = Site(
        frontends=frontends, workers=workers, nats=nats, postgres=postgres, session=session, random=workshop.random
    )
    await _until_healthy(site)
    return site


def _write_model(models: Path, name: str, count: int) -> None:
    models.mkdir(exist_ok=True)
    weights = f"{name}.bin"
    (models / weights).write_bytes(name.encode() * 1000)
    write_model(models, name, backend="echo", parameters={"model": weights}, options=[f"tokens:{count}"])


async def _until_healthy(site: Site) -> None:
    async def are_healthy() -> bool:
        seen = {node.name: node.status for node in (await site.frontends[0].nodes()).values()}
        return all(seen.get(name) == NodeStatus.HEALTHY for name in WORKERS)

    await eventually(are_healthy, "all workers to be healthy", seconds=_BACK_SECONDS)


# The clients.


@asynccontextmanager
async def _asked(site: Site) -> AsyncIterator[None]:
    """Questions begin at a steady rate, whether or not earlier ones were answered; afterwards all answers are there."""
    async with task_group() as group, running(_ask_on(site, group), name="clients"):
        yield


async def _ask_on(site: Site, group: asyncio.TaskGroup) -> None:
    slots = asyncio.Semaphore(_MOST_OPEN)

    async def ask(model: str) -> None:
        try:
            site.answers.append(await _ask(site, model))
        finally:
            slots.release()

    for model in itertools.cycle(REPEATS):
        await slots.acquire()
        group.create_task(ask(model), name=f"ask {model}")
        await asyncio.sleep(1 / _PER_SECOND)


async def _ask(site: Site, model: str) -> Answer:
    """A client that knows both frontends: it asks the second when the first does not even answer."""
    began, word = time.monotonic(), f"n{next(site.numbers)}."
    streams = site.random.random() < 0.5
    problem, said = "", ""
    for frontend in site.random.sample(site.frontends, len(site.frontends)):
        try:
            said = await _said(site, frontend, model, word, streams=streams)
            problem = ""
            break
        except _NotReached as error:
            problem = str(error)
        except _Refused as error:
            problem = str(error)
            break
    ended = time.monotonic()
    if not problem and said != word * REPEATS[model]:
        problem = f"{model} was told {word} and said {said!r}"
        return Answer(model=model, began=began, ended=ended, problem=problem, is_wrong=True)
    return Answer(model=model, began=began, ended=ended, problem=problem)


class _NotReached(Exception):
    """No answer came at all."""


class _Refused(Exception):
    """An error came, or an answer that broke off."""


async def _said(site: Site, frontend: FrontendProcess, model: str, word: str, *, streams: bool) -> str:
    body = {"model": model, "stream": streams, "messages": [{"role": "user", "content": word}]}
    headers = {"Authorization": f"Bearer {frontend.admin_key}", "Content-Type": "application/json"}
    has_begun = False
    try:
        async with (
            asyncio.timeout(_ANSWER_SECONDS),
            site.session.post(
                f"{frontend.url}/v1/chat/completions", data=msgspec.json.encode(body), headers=headers
            ) as response,
        ):
            has_begun = True
            whole = await response.read()
            if response.status == 503 and b"has not heard from control" in whole:
                raise _NotReached("a frontend that is starting")  # what a balancer sees at /readyz
            if response.status != 200:
                raise _Refused(f"{response.status} {whole[:200].decode(errors='replace')}")
            return _streamed(whole) if streams else _whole(whole, model)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise (_Refused if has_begun else _NotReached)(problem) from error


def _whole(body: bytes, model: str) -> str:
    answer = msgspec.json.decode(body)
    if answer["model"] != model:
        return f"as {answer['model']}"
    return str(answer["choices"][0]["message"]["content"])


def _streamed(body: bytes) -> str:
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: ")]
    if not lines or lines[-1] != b"[DONE]":
        raise _Refused("the stream broke off")
    said = []
    for line in lines[:-1]:
        chunk = msgspec.json.decode(line)
        if "error" in chunk:
            raise _Refused(f"in the stream: {chunk['error']}")
        said += [choice["delta"].get("content") or "" for choice in chunk.get("choices", [])]
    return "".join(said)


async def _until_all_answer(site: Site, *, since: float) -> float:
    """When the last of the models gave its first answer to a question from after this moment."""

    async def all_answered() -> float | None:
        first: dict[str, float] = {}
        for answer in site.answers:
            if answer.is_served and answer.began >= since:
                first[answer.model] = min(answer.ended, first.get(answer.model, answer.ended))
        return max(first.values()) if len(first) == len(REPEATS) else None

    try:
        found = await eventually(all_answered, "every model to answer again", seconds=_BACK_SECONDS)
    except AssertionError as error:
        late = Counter((answer.model, answer.problem[:300]) for answer in site.answers if answer.began >= since)
        raise AssertionError(f"not all answer again: {late.most_common(6)}") from error
    assert found is not None
    return found


# The kills.


async def _pause(site: Site) -> None:
    """How long something stays dead."""
    await asyncio.sleep(site.random.choice([0.0, 0.2, 1.0]))


async def _kill_worker(site: Site) -> str:
    worker = site.random.choice(site.workers)
    await worker.kill()
    await _pause(site)
    worker.start()
    return f"{worker.name} is killed"


async def _kill_backend(site: Site) -> str:
    backends = await eventually(_async(site.backends), "a backend", seconds=_BACK_SECONDS)
    return _end(site.random.choice(backends), "a backend")


async def _kill_adapter(site: Site) -> str:
    def adapters() -> list[psutil.Process]:
        running_workers = [worker for worker in site.workers if worker.is_running]
        return [process for worker in running_workers for process in running_below(worker.pid, _ADAPTER)]

    found = await eventually(_async(adapters), "an adapter", seconds=_BACK_SECONDS)
    return _end(site.random.choice(found), "an adapter")


async def _kill_frontend(site: Site) -> str:
    frontend, other = site.random.sample(site.frontends, 2)
    await other.until_ready()
    await frontend.kill()
    await _pause(site)
    frontend.start()
    return f"{frontend.name} is killed"


async def _kill_nats(site: Site) -> str:
    await site.nats.kill()
    await _pause(site)
    await site.nats.start()
    return "NATS is killed"


async def _kill_postgres(site: Site) -> str:
    await asyncio.to_thread(site.postgres.kill)
    await _pause(site)
    site.postgres.start()  # in this thread: the kernel ends the server with the thread that started it
    return "PostgreSQL is killed"


def _async(look: Callable[[], list[psutil.Process]]) -> Callable[[], Awaitable[list[psutil.Process]]]:
    async def found() -> list[psutil.Process]:
        return look()

    return found


def _end(process: psutil.Process, what: str) -> str:
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    return f"{what} is killed"


_KILLS: Final[Mapping[str, Callable[[Site], Awaitable[str]]]] = {
    "worker": _kill_worker,
    "backend": _kill_backend,
    "adapter": _kill_adapter,
    "frontend": _kill_frontend,
    "NATS": _kill_nats,
    "PostgreSQL": _kill_postgres,
}


# What must hold.


def _judge_answers(workshop: Workshop, site: Site, tally: Mapping[str, Sequence[float]]) -> None:
    answers = site.answers
    wrong = [answer.problem for answer in answers if answer.is_wrong]
    failed = [answer for answer in answers if not answer.is_served and not answer.is_wrong]
    seconds = max(answer.ended for answer in answers) - min(answer.began for answer in answers)
    workshop.story.measure(
        f"{len(answers)} requests in {seconds:.0f} s, {len(failed)} failed"
        f" ({100 * len(failed) / len(answers):.2f} %), {len(wrong)} wrong"
    )
    for name, took in sorted(tally.items()):
        ordered = sorted(took)
        workshop.story.measure(
            f"{name}: {len(took)} kills, all models answered again after {ordered[len(ordered) // 2]:.1f} s"
            f" (the slowest {ordered[-1]:.1f} s)"
        )
    reasons = Counter(answer.problem[:90] for answer in failed)
    for reason, count in reasons.most_common(5):
        workshop.story.measure(f"{count} failed with: {reason}")
    assert not wrong, wrong[:5]


async def _judge_replicas(workshop: Workshop, site: Site) -> None:
    """Every process is explained by a replica, and no model has more of them than were asked for."""
    for frontend in site.frontends:
        await frontend.until_ready()  # gateways answer before their control is back
    await _until_healthy(site)

    async def are_explained() -> bool:
        loaded = [replica for replica in await _replicas(site) if replica.state == ReplicaState.LOADED]
        return len(loaded) == len(site.backends()) == len(REPEATS)

    try:
        await eventually(are_explained, "as many processes as models", seconds=_BACK_SECONDS)
    except AssertionError as error:
        living = [
            f"{replica.model}#{replica.index} {replica.state} on {replica.node}" for replica in await _replicas(site)
        ]
        raise AssertionError(f"{living}, and {len(site.backends())} processes") from error
    workshop.story.measure(f"{len(REPEATS)} models, {len(REPEATS)} replicas, {len(site.backends())} processes")


async def _replicas(site: Site) -> list[ReplicaView]:
    found = []
    for name in REPEATS:
        answer = await site.frontends[0].call("GET", f"/api/v1/models/{name}")
        model = msgspec.json.decode(answer.body, type=ModelView)
        found += [replica for replica in model.replicas if replica.state in LIVE]
    return found
