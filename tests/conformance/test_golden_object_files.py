"""The subjects `files.*` as LocalAI's worker answers them."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.base.ids import NodeId
from corral.bus.port import Message
from corral.worker.config import FilesConfig
from corral.worker.files.object_cache import ObjectPlaces
from corral.worker.files.object_files import ObjectFetches, ObjectFiles, object_handlers
from corral.worker.files.serving import FileServing
from tests.kit.clock import ManualClock
from tests.kit.objects import MemoryStorage

RECORDED_HOME = "/srv/w5"
PREFIXES = ("invalid request", "path outside allowed directories", "invalid key prefix")
"""Beginnings of refusals that the protocol quotes."""

VECTORS: list[tuple[str, str, dict[str, Any]]] = [
    ("files.ensure", '{"key":"models/qwen/q.gguf"}', {"local_path": "HOME/cache/models/qwen/q.gguf"}),
    ("files.ensure", '{"KEY":"models/qwen/q.gguf","x":1}', {"local_path": "HOME/cache/models/qwen/q.gguf"}),
    ("files.ensure", '{"key":"models/none"}', {"error": "any"}),
    ("files.ensure", '{"key":"../x"}', {"error": "any"}),
    *[("files.ensure", data, {"error": "invalid request"}) for data in ("", "{", "[]", "5", '{"key":5}')],
    ("files.ensure", "null", {"error": "any"}),
    ("files.temp", "%%", {"local_path": "HOME/cache/staging-tmp/localai-staging-1.tmp"}),
    ("files.stage", '{"local_path":"HOME/models/exp/a.bin","key":"ephemeral//x"}', {"key": "ephemeral//x"}),
    ("files.stage", '{"local_path":"/etc/hostname","key":"k"}', {"error": "path outside allowed directories"}),
    ("files.stage", "null", {"error": "path outside allowed directories"}),
    ("files.stage", "{", {"error": "invalid request"}),
    ("files.listdir", '{"key_prefix":"models/exp"}', {"files": ["a.bin", "sub/b"]}),
    ("files.listdir", '{"key_prefix":"data/"}', {"files": None}),
    ("files.listdir", '{"key_prefix":"models/none"}', {"error": "any"}),
    ("files.listdir", '{"key_prefix":"../"}', {"error": "invalid key prefix"}),
    ("files.listdir", "[]", {"error": "invalid request"}),
]


class Worker:
    def __init__(self, home: Path) -> None:
        storage = MemoryStorage()
        for key in ("models/qwen/q.gguf", "models/mymodel/m.bin", "ephemeral/inputs/d3ac29c5/in.wav"):
            storage.objects[key] = b"content"
        self.home = home
        self.files = ObjectFiles(storage, ObjectPlaces.beside(home / "models"), ManualClock())
        serving = FileServing(FilesConfig(), models=home / "models", clock=ManualClock())
        handlers = object_handlers(self.files, ObjectFetches(storage, serving.store, serving.threads))
        self._handlers = {
            subject(NodeId("n")).removeprefix("nodes.n."): handler for subject, handler in handlers.items()
        }

    async def ask(self, subject: str, data: str) -> dict[str, Any]:
        answers: list[bytes] = []

        async def reply(_: str, answer: bytes) -> None:
            answers.append(answer)

        message = Message(subject=subject, data=data.encode(), reply_to="inbox", reply=reply)
        await self._handlers[subject](message)
        answer: dict[str, Any] = json.loads(answers[0])
        return answer


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    """With everything that the recorded one had."""
    for folder in ("models/exp/sub", "cache/staging-tmp", "data"):
        (tmp_path / folder).mkdir(parents=True)
    for file in (
        "models/exp/a.bin",
        "models/exp/sub/b",
        "cache/staging-tmp/localai-staging-2074188018.tmp",
        "cache/staging-tmp/localai-staging-1183583976.tmp",
        "data/x",
    ):
        (tmp_path / file).write_bytes(b"")
    (tmp_path / "data" / "x").unlink()
    worker = Worker(tmp_path)
    yield worker
    await worker.files.close()


def alike(wanted: dict[str, Any], got: dict[str, Any], home: Path) -> bool:
    """The same fields of the same types; paths by their form, refusals up to what the protocol quotes."""
    if wanted.keys() != got.keys():
        return False
    if "error" in wanted:
        return isinstance(got["error"], str) and all(
            got["error"].startswith(prefix) for prefix in PREFIXES if wanted["error"].startswith(prefix)
        )
    if "local_path" in wanted:
        return form(wanted["local_path"]) == form(got["local_path"].replace(str(home), "HOME"))
    return type(wanted.get("files")) is type(got.get("files")) and wanted.get("key") == got.get("key")


def form(path: str) -> str:
    return re.sub(r"localai-staging-\w+", "localai-staging-N", path)


async def test_our_own_vectors_are_answered_alike(worker: Worker) -> None:
    different = []
    for subject, data, wanted in VECTORS:
        got = await worker.ask(subject, data.replace("HOME", str(worker.home)))
        if not alike(wanted, got, worker.home):
            different.append((subject, data, wanted, got))
    assert different == []


async def test_every_recorded_message_is_answered_alike(worker: Worker, golden: Path) -> None:
    """None differs on purpose."""
    messages = json.loads((golden / "nats_files_s3.json").read_text(encoding="utf-8"))["messages"]
    assert len(messages) == 36
    different = []
    for message in messages:
        subject = message["subject"].split(".", 2)[2]
        text = json.dumps(message["reply"]).replace(
            RECORDED_HOME, str(worker.home) if subject == "files.stage" else "HOME"
        )
        data = message["bytes"].replace(RECORDED_HOME, str(worker.home))
        got = await worker.ask(subject, data)
        if not alike(json.loads(text), got, worker.home):
            different.append((subject, data, message["reply"], got))
    assert different == []
