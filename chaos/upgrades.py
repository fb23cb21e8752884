"""A fleet of the tree before is upgraded, one process after the other, while people ask: nothing may get lost.

The tree before is the last commit with an older schema of the database; git has it. Workers go first, then the
frontend, as the guide says. Every node keeps its id and its approval, the model keeps its replicas, and what was asked
of a node that is away is done when it comes back.
"""

import asyncio
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from chaos.round import Workshop
from corral.base.ids import NodeId, new_secret
from corral.base.processes import ChildCommand, ChildProcess, Output, start_process
from corral.bus.server import find_nats_server
from corral.frontend.nodes.decide.node import NodeStatus
from tests.kit.admin_api import open_session
from tests.kit.load_clients import StreamRequest, counted, under_load
from tests.kit.models import write_model
from tests.kit.ports import lasting_port
from tests.kit.processes import CorralProcess, FrontendProcess, WorkerProcess, said_once
from tests.kit.waiting import eventually

_ROOT: Final = Path(__file__).parents[1]
_MIGRATIONS: Final = "src/corral/frontend/store/migrations/versions"
_MODEL: Final = "words"
_SERVING: Final = ("w1", "w2")
_AWAY: Final = "w3"
_GHOST: Final = "a-backend-that-nobody-has"
_PATIENCE_SECONDS: Final = 120.0
_PATH: Final = "PYTHONPATH"
_CLIENTS: Final = 2


async def one_by_one(workshop: Workshop) -> None:
    """Start the tree before, then replace each process by one of this tree, and judge."""
    commit = await asyncio.to_thread(commit_before)
    before = workshop.directory / "before"
    await asyncio.to_thread(check_out, commit, before)
    workshop.story.tell(f"the tree before is {commit[:12]}")
    async with AsyncExitStack() as stack:
        fleet = await _start(workshop, stack, before)
        known = await fleet.settle()
        for worker in fleet.workers.values():
            if worker.name == _AWAY:
                continue
            async with under_load(fleet.question(), clients=_CLIENTS) as load:
                await fleet.upgrade(worker)
                await fleet.until_serving_everywhere()
            failed = [answer for answer in load.answers if not answer.is_served]
            assert not failed, f"requests failed while {worker.name} was upgraded: {counted(failed)}"
            workshop.story.measure(f"{worker.name} upgraded: {len(load.answers)} requests, none failed")
        replicas, schema = await fleet.until_serving_everywhere(), await _schema(workshop)
        await fleet.upgrade(fleet.frontend)
        await fleet.frontend.until_ready()
        assert schema != await _schema(workshop), "the frontend before had this tree's schema"
        assert await fleet.until_serving_everywhere() == replicas, "replicas outlive the frontend"
        await fleet.judge(known)
        workshop.story.measure("the frontend upgraded: all nodes, replicas and intents are there")


def commit_before() -> str:
    """The commit before the one that added the newest migration. AssertionError in a clone without history."""
    newest = max(path.name for path in (_ROOT / _MIGRATIONS).glob("r[0-9]*.py"))
    added = _git("log", "--diff-filter=A", "--format=%H", "-1", "--", f"{_MIGRATIONS}/{newest}")
    assert added, f"this clone does not have the commit that added {newest}: fetch the whole history"
    return _git("rev-parse", "--verify", f"{added}^")


def check_out(commit: str, folder: Path) -> None:
    """Put the sources of a commit there."""
    folder.mkdir()
    archive = folder / "sources.tar"
    _git("archive", "--output", str(archive), commit, "src", "backends")
    subprocess.run(["tar", "-x", "-f", archive, "-C", folder], check=True)


def _git(*words: str) -> str:
    command = ["git", "-C", str(_ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFleet:
    """What must be there after the upgrade."""

    ids: Mapping[str, NodeId]
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradedFleet:
    frontend: FrontendProcess
    workers: Mapping[str, WorkerProcess]
    session: aiohttp.ClientSession

    def question(self) -> StreamRequest:
        frontend = self.frontend
        return StreamRequest(session=self.session, url=frontend.url, key=frontend.admin_key, model=_MODEL, tokens=4)

    async def settle(self) -> KnownFleet:
        """All joined, the model serves on two nodes, and one node is away that something was asked of."""
        await self._until_healthy(*self.workers)
        await self.workers[_AWAY].stop()
        await self._until_status(_AWAY, NodeStatus.OFFLINE)
        ids = {node.name: id for id, node in (await self.frontend.nodes()).items()}
        rule = {"min_replicas": len(_SERVING), "max_replicas": len(_SERVING)}
        assert (await self._asked("PUT", f"/api/v1/scheduling/{_MODEL}", rule)) is not None
        ask = {"verb": "delete", "backend": _GHOST, "nodes": [ids[_AWAY]]}
        operation = (await self._asked("POST", "/api/v1/operations", ask))["id"]
        await self.until_serving_everywhere()
        return KnownFleet(ids=ids, operation=operation)

    async def upgrade(self, process: CorralProcess) -> None:
        """Stop a process in good order, and start it from this tree."""
        await process.stop()
        process.set_variable(_PATH, None)
        process.start()

    async def until_serving_everywhere(self) -> frozenset[str]:
        """Wait for a loaded replica on each node that should have one; their ids."""
        found: dict[str, str] = {}

        async def is_so() -> bool:
            try:
                model = await self._asked("GET", f"/api/v1/models/{_MODEL}")
            except (aiohttp.ClientError, OSError):
                return False
            loaded = {each["node"]: each["id"] for each in model["replicas"] if each["state"] == "loaded"}
            found.clear()
            found.update(loaded)
            return loaded.keys() == set(_SERVING)

        await eventually(is_so, f"{_MODEL} to be loaded on {', '.join(_SERVING)}", seconds=_PATIENCE_SECONDS)
        return frozenset(found.values())

    async def judge(self, known: KnownFleet) -> None:
        """Nodes, replicas and intents are what they were; what was asked of the node that was away is done."""
        await self._until_healthy(*_SERVING)
        await self.until_serving_everywhere()
        answer = await self.question().ask()
        assert answer.is_served, answer
        operation = await self._asked("GET", f"/api/v1/operations/{known.operation}")
        assert operation["state"] == "waiting", operation
        await self.upgrade(self.workers[_AWAY])
        await self._until_healthy(*self.workers)

        async def is_done() -> bool:
            return bool((await self._asked("GET", f"/api/v1/operations/{known.operation}"))["state"] == "done")

        await eventually(is_done, "what was asked of the node that was away", seconds=_PATIENCE_SECONDS)
        nodes = await self.frontend.nodes()
        assert {node.name: id for id, node in nodes.items()} == known.ids
        assert all(node.approved for node in nodes.values())

    async def _until_healthy(self, *names: str) -> None:
        for name in names:
            await self._until_status(name, NodeStatus.HEALTHY)

    async def _until_status(self, name: str, status: NodeStatus) -> None:
        async def has_it() -> bool:
            worker = self.workers[name]
            if status is NodeStatus.HEALTHY and not worker.is_running:
                raise AssertionError(f"{name} ended:\n{worker.output}")
            seen = {node.name: node.status for node in (await self.frontend.nodes()).values()}
            return seen.get(name) == status

        await eventually(has_it, f"{name} to be {status}", seconds=_PATIENCE_SECONDS)

    async def _asked(self, method: str, path: str, body: object = None) -> Any:
        answer = await self.frontend.call(method, path, body)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.body!r}"
        return answer.json()


async def _start(workshop: Workshop, stack: AsyncExitStack, before: Path) -> UpgradedFleet:
    """Everything runs from the tree before, on a NATS server without users and SQLite."""
    folder, token, old = workshop.directory, new_secret(), {_PATH: str(before / "src")}
    write_model(folder / "models", _MODEL, backend="echo")
    nats_url = await _nats(stack)
    session = await stack.enter_async_context(open_session())
    shared = {
        "CORRAL_MODELS_PATH": str(folder / "models"),
        "CORRAL_REGISTRATION_TOKEN": token,
        "CORRAL_NATS_URL": nats_url,
        **old,
    }
    of_frontend = {**shared, "CORRAL_DATA": str(folder / "frontend"), "CORRAL_AUTO_APPROVE": "true"}
    frontend = await stack.enter_async_context(FrontendProcess("frontend", session, of_frontend))
    await frontend.until_ready()
    frontend.admin_key = said_once([frontend], lambda process: process.new_keys)
    of_workers = {
        **shared,
        "CORRAL_REGISTER_TO": frontend.url,
        "CORRAL_HEARTBEAT_INTERVAL": "500ms",
        "CORRAL_REGISTRATION_RETRY": "500ms",
    }
    workers = {name: WorkerProcess(name, folder / name, of_workers) for name in (*_SERVING, _AWAY)}
    for worker in workers.values():
        await stack.enter_async_context(worker)
    return UpgradedFleet(frontend=frontend, workers=workers, session=session)


async def _schema(workshop: Workshop) -> str:
    """The schema of the database."""

    def read() -> str:
        with closing(sqlite3.connect(workshop.directory / "frontend" / "corral.db")) as connection:
            return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])

    return await asyncio.to_thread(read)


async def _nats(stack: AsyncExitStack) -> str:
    port = lasting_port()
    argv = [str(find_nats_server()), "--addr", "127.0.0.1", "--port", str(port)]
    server: ChildProcess = start_process(ChildCommand(argv=argv, env={}, output=Output.TAIL))

    async def end() -> None:
        server.kill()
        await server.wait()

    stack.push_async_callback(end)
    return f"nats://127.0.0.1:{port}"
