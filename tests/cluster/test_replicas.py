"""A model from its file to an answer and to its end: real control, real worker, real NATS, real echo and adapter."""

import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from corral.base.ids import NodeId
from corral.frontend.record.decide import EventKind
from corral.frontend.serving import unloading
from corral.frontend.serving.decide.replica import Replica
from tests.kit.backends import BACKENDS
from tests.kit.cluster import Cluster, RecordedEvent
from tests.kit.databases import DatabaseSource
from tests.kit.processes import running_below
from tests.kit.waiting import eventually

MODEL = """
name: parrot
backend: echo
parameters:
  model: any
template:
  use_tokenizer_template: true
"""
HELLO = {"model": "parrot", "messages": [{"role": "user", "content": "hello brave new world"}]}


@dataclass
class Fleet:
    """One frontend, one worker that has the echo backend, and a models directory."""

    cluster: Cluster
    node_id: NodeId
    models: Path
    session: aiohttp.ClientSession

    @property
    def control(self) -> Any:
        return self.cluster.frontend().control

    @property
    def worker(self) -> Any:
        return self.cluster.worker("w1")

    async def load(self) -> Replica:
        """As a gateway has it loaded."""
        await self.control.context.serving.loads.ensure("parrot")
        await self.cluster.until(RecordedEvent(EventKind.MODEL_LOADED))
        return await self.replica()

    async def replica(self) -> Replica:
        (found,) = await self.control.context.serving.replicas.living()
        assert isinstance(found, Replica)
        return found

    async def ask(self, replica: Replica) -> str:
        headers = {"Authorization": f"Bearer {replica.key}"}
        async with self.session.post(f"{replica.url}/v1/chat/completions", json=HELLO, headers=headers) as answer:
            answer.raise_for_status()
            content = (await answer.json())["choices"][0]["message"]["content"]
            return str(content)

    def backend_pid(self) -> int:
        (record,) = (self.worker.config.data_path / "processes").iterdir()
        return int(json.loads(record.read_text())["pid"])


def adapters() -> list[psutil.Process]:
    return running_below(os.getpid(), "corral.processes.adapter")


@pytest.fixture
async def fleet(tmp_path: Path, database_source: DatabaseSource) -> AsyncIterator[Fleet]:
    models = tmp_path / "models"
    models.mkdir()
    (models / "parrot.yaml").write_text(MODEL, encoding="utf-8")
    async with (
        database_source.fresh_url("sqlite") as url,
        Cluster(tmp_path, database_url=url, settings={"models_path": models}) as cluster,
        aiohttp.ClientSession() as session,
    ):
        worker = cluster.worker("w1")
        worker.config = replace(worker.config, system_backends=(BACKENDS,))
        yield Fleet(cluster, await cluster.healthy("w1"), models, session)


async def test_a_model_of_a_grpc_backend_is_answered_under_the_url_that_control_learned(fleet: Fleet) -> None:
    replica = await fleet.load()

    assert replica.url.startswith("http://127.0.0.1:")
    assert await fleet.ask(replica) == "hello brave new world"
    await fleet.control.context.serving.view.refresh()
    assert [one.url for one in fleet.control.context.serving.view.current.replicas.values()] == [replica.url]


async def test_the_death_of_a_backend_is_in_the_record_before_any_time_has_passed(fleet: Fleet) -> None:
    first = await fleet.load()
    os.kill(fleet.backend_pid(), signal.SIGKILL)
    lost = await fleet.cluster.until(RecordedEvent(EventKind.REPLICA_LOST, fleet.node_id))
    again = await fleet.load()

    assert lost.event.data["replica"] == first.id
    assert lost.event.data["why"] == "backend parrot#0 ended by itself (signal 9)"
    assert again.key != first.key
    assert await fleet.ask(again) == "hello brave new world"


async def test_a_killed_adapter_loses_no_replica(fleet: Fleet) -> None:
    replica = await fleet.load()
    (adapter,) = adapters()
    adapter.kill()

    async def answers() -> bool:
        await fleet.cluster.advance(timedelta(seconds=1))
        try:
            return await fleet.ask(replica) == "hello brave new world"
        except aiohttp.ClientError:
            return False

    await eventually(answers, "the adapter to be back")
    assert await fleet.replica() == replica


async def test_a_changed_file_is_loaded_anew_and_a_deleted_one_is_stopped(fleet: Fleet) -> None:
    first = await fleet.load()
    (fleet.models / "parrot.yaml").write_text(MODEL + "options: ['tokens:2']\n", encoding="utf-8")
    wait = unloading.SETTLED_AFTER + unloading.HEARD_AFTER + unloading.PERIOD * 4
    await fleet.cluster.advance(wait)
    await fleet.cluster.until(RecordedEvent(EventKind.REPLICA_UNLOADED), RecordedEvent(EventKind.MODEL_LOADED))
    second = await fleet.replica()
    assert await fleet.ask(second) == "hello brave"
    (fleet.models / "parrot.yaml").unlink()
    await fleet.cluster.advance(wait)
    await fleet.cluster.until(RecordedEvent(EventKind.REPLICA_UNLOADED))

    assert first.revision != second.revision
    assert await fleet.control.context.serving.replicas.living() == []


async def test_a_worker_that_leaves_leaves_no_process(fleet: Fleet) -> None:
    replica = await fleet.load()
    assert await fleet.ask(replica) == "hello brave new world"
    await fleet.worker.stop()

    assert adapters() == []
    assert list((fleet.worker.config.data_path / "processes").iterdir()) == []
