"""A whole worker that gets files from a real object storage, asked over a real NATS server."""

import io
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import NoResponders
from corral.base.ids import NodeId
from corral.bus.client import NatsBus
from corral.files.s3 import S3Objects
from corral.wire import subjects
from corral.worker.config import WorkerConfig
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
