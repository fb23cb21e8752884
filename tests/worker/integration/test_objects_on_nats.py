"""A whole worker that gets files from a real object storage, asked over a real NATS server."""

import io
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.confining import landlock_version
from corral.base.errors import NoResponders
from corral.base.ids import NodeId
from corral.bus.client import NatsBus
from corral.files.s3 import S3Objects
from corral.processes.worker_backends import open_confiner
from corral.wire import subjects
from corral.wire.replicas import ProcessKey
from corral.worker.config import WorkerConfig
from corral.worker.confinement.config import ConfinementConfig
from corral.worker.installing.backend_directory import Home
from corral.worker.processes.process import Launch
from tests.kit.ports import lasting_port
from tests.kit.s3 import S3Server

GOLDEN_ID = NodeId("11111111-2222-4333-8444-555555555555")


async def ask(control: NatsBus, subject: str, request: dict[str, Any]) -> Any:
    answer = await control.request(subject, json.dumps(request).encode(), timeout=timedelta(seconds=30))
    return json.loads(answer)


def write(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


async def test_a_model_comes_and_an_output_goes(
    worker: Any, on_nats: WorkerConfig, control: NatsBus, s3_server: S3Server, tmp_path: Path
) -> None:
    objects = S3Objects(s3_server.config())
    await objects.upload(io.BytesIO(b"weights"), "models/mymodel/m.bin", created_at="2026-01-02T03:04:05Z")

    async with worker(replace(on_nats, storage=s3_server.config())) as running:
        await running.clock.until_sleeping(1)
        fetched = await ask(control, subjects.files_ensure(GOLDEN_ID), {"key": "models/mymodel/m.bin"})
        made = await ask(control, subjects.files_temp(GOLDEN_ID), {})
        write(made["local_path"], b"spoken")
        key = f"ephemeral/fetch/{made['local_path']}/output"
        staged = await ask(control, subjects.files_stage(GOLDEN_ID), {**made, "key": key})
        listed = await ask(control, subjects.files_list(GOLDEN_ID), {"key_prefix": "models/mymodel"})
        cached = await ask(control, subjects.files_list(GOLDEN_ID), {"key_prefix": ""})

    assert read(fetched["local_path"]) == b"weights"
    assert staged == {"key": key}
    assert "//" in key
    output = io.BytesIO()
    await objects.download(key, output)
    assert output.getvalue() == b"spoken"
    assert "error" in listed
    assert "models/mymodel/m.bin" in cached["files"]


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


class _WithLocalAI:
    """As much of a worker's presence as a confiner asks."""

    def __init__(self, is_with_localai: bool) -> None:
        self.is_with_localai = is_with_localai


@pytest.mark.skipif(not landlock_version(), reason="the kernel has no Landlock")
@pytest.mark.parametrize("is_with_localai", [True, False])
async def test_a_backend_that_starts_first_may_use_what_comes_later(
    is_with_localai: bool, on_nats: WorkerConfig, s3_server: S3Server, tmp_path: Path
) -> None:
    """A LocalAI frontend has the process started before it asks for the first file. Landlock only knows directories
    that exist by then."""
    config = replace(on_nats, storage=s3_server.config(), confinement=ConfinementConfig())
    presence: Any = _WithLocalAI(is_with_localai)
    confiner = await open_confiner(config, presence)
    executable = tmp_path / "backends/echo/run.sh"
    executable.parent.mkdir(parents=True)
    home = Home(name="echo", executable=executable, names=frozenset({"echo"}))

    async with confiner.around(launch_of(home, confiner.scratch_of("mark"))) as order:
        assert order is not None
        granted = {path: rights for path, rights in json.loads(order)["landlock"]["path_rules"]}

    cache = config.models_path.parent / "cache"
    models, inputs, outputs = (str(cache / name) for name in ("models", "ephemeral", "staging-tmp"))
    assert {"models", "ephemeral", "staging-tmp"} <= names_in(cache)
    assert granted[models] == granted[str(config.models_path)]
    for path in (inputs, outputs):
        assert (path in granted) is is_with_localai
        assert not is_with_localai or granted[path] == granted["/dev/shm"]


def launch_of(home: Home, scratch: Path | None) -> Launch:
    return Launch(
        key=ProcessKey("m", 0),
        backend="echo",
        home=home,
        model_id="m",
        bind_host="127.0.0.1",
        port=1,
        http_port=None,
        token="",
        http_key="",
        mark="mark",
        environment={},
        scratch=scratch,
    )


async def test_a_storage_that_is_away_stops_nothing_else(
    worker: Any, on_nats: WorkerConfig, frontend: Any, control: NatsBus, s3_server: S3Server
) -> None:
    nobody = replace(s3_server.config(), url=f"http://127.0.0.1:{lasting_port()}")

    async with worker(replace(on_nats, storage=nobody)) as running:
        await running.clock.until_sleeping(1)
        answer = await ask(control, subjects.files_ensure(GOLDEN_ID), {"key": "models/mymodel/m.bin"})
        await running.pass_time(seconds=10)
        await frontend.until_received("heartbeat")

    assert answer.keys() == {"error"}


async def test_without_a_storage_nobody_listens(worker: Any, on_nats: WorkerConfig, control: NatsBus) -> None:
    async with worker(on_nats) as running:
        await running.clock.until_sleeping(1)
        with pytest.raises(NoResponders):
            await ask(control, subjects.files_ensure(GOLDEN_ID), {"key": "models/x"})
