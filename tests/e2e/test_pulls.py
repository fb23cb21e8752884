"""A pull at a real frontend without NATS: control is killed in its midst, and the next one goes on at the byte."""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import HuggingFaceServer
from tests.kit.processes import running_below
from tests.kit.waiting import wait_until

CHAT = gguf(**LLAMA, tokenizer__chat_template="{{ messages }}") + bytes(3_000_000)
HELD_AFTER = 1_000_000
"""Bytes after which the server waits until control is dead."""


@pytest.fixture
def server() -> Iterator[HuggingFaceServer]:
    with HuggingFaceServer() as server:
        server.add_repository("org/Chat-GGUF", {"chat-Q4_K_M.gguf": CHAT})
        yield server


def test_a_pull_survives_the_death_of_control(
    start_process: Any, call: Any, tmp_path: Path, server: HuggingFaceServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    arguments = ["frontend", "--data", str(tmp_path / "data"), "--nats", "nats://127.0.0.1:9", "--port", str(port)]
    settings = {"CORRAL_HF_URL": server.base, "CORRAL_MODELS_MIN_FREE": "0", "CORRAL_DOWNLOAD_CONNECTIONS": "1"}
    with start_process(arguments, **settings) as running:
        wait_until(lambda: call("GET", f"{url}/").status == 200, "the frontend to serve")
        key = json.loads((tmp_path / "data" / "credentials.json").read_text())["admin"]
        answer = call("POST", f"{url}/api/v1/pulls", {"reference": "hf://org/Chat-GGUF", "dry_run": True}, key=key)
        assert answer.status == 200, answer.body
        gate, planned = threading.Event(), server.sent

        def hold(_: HuggingFaceServer) -> None:
            if server.sent - planned > len(CHAT) + HELD_AFTER:  # planning reads the small file once more
                gate.wait(60)

        server.before_chunk = hold  # type: ignore[assignment]
        answer = call("POST", f"{url}/api/v1/pulls", {"reference": "hf://org/Chat-GGUF"}, key=key)
        assert answer.status == 202, answer.body
        id = answer.json()["id"]
        wait_until(lambda: server.sent - planned > len(CHAT) + HELD_AFTER, "the middle of the download")
        children = running_below(running.process.pid, "control")[0].children(recursive=True)
        running_below(running.process.pid, "control")[0].kill()
        gate.set()
        wait_until(lambda: not any(psutil.pid_exists(child.pid) for child in children), "the end of the download")
        before = server.sent

        def state() -> str:
            answer = call("GET", f"{url}/api/v1/operations/{id}", key=key)
            return str(answer.json()["state"]) if answer.status == 200 else ""

        wait_until(lambda: state() == "done", "the pull")
        assert server.sent - before < len(CHAT)
        assert (tmp_path / "data" / "models" / "chat" / "chat-Q4_K_M.gguf").read_bytes() == CHAT
        models = call("GET", f"{url}/api/v1/models", key=key).json()["items"]
        assert [model["name"] for model in models] == ["chat"]
        running.look()
        assert running.stop(signal.SIGTERM) == 0
