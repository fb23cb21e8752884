"""Engines that somebody else runs, as processes of their own: asked, killed, replaced, and asked again."""

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit.certificates import Authority
from tests.kit.models import write_model
from tests.kit.openai_server import MODEL
from tests.kit.ports import lasting_port
from tests.kit.up import RunningUp, running_up
from tests.kit.waiting import wait_until

ROOT = Path(__file__).parents[2]
KEY = "sk-of-the-engine"
StartEngine = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start_engine() -> Iterator[StartEngine]:
    """Starts an engine; whatever is left of it afterwards is killed."""
    with ExitStack() as stack:

        def start(port: int, name: str, *files: Path) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "tests.kit.openai_server", str(port), name, *map(str, files)]
            process = stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, env={**os.environ, "ENGINE_KEY": KEY}, stdin=subprocess.DEVNULL)
            )
            stack.callback(process.kill)
            wait_until(lambda: is_listening(port), f"the engine {name}", seconds=60)
            return process

        yield start


@pytest.fixture(scope="module")
def fleet_without_workers(module_folder: Path) -> Iterator[RunningUp]:
    with running_up(module_folder, "--workers", "0") as running:
        running.until_ready()
        yield running


@pytest.fixture
def up(fleet_without_workers: RunningUp) -> Iterator[RunningUp]:
    """A fleet that knows no engine; afterwards its gateway has forgotten those of the test, too."""
    up = fleet_without_workers
    yield up
    for engine in up.api("GET", "/api/v1/external-engines").json():
        assert up.api("DELETE", f"/api/v1/external-engines/{engine['id']}").status < 300
    wait_until(lambda: "far" not in listed(up), "the gateway to forget the engines", seconds=60)


def listed(up: RunningUp) -> dict[str, str]:
    """The models that clients are shown, with their owners."""
    return {model["id"]: model["owned_by"] for model in up.api("GET", "/v1/models").json()["data"]}


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask(up: Any, text: str, *, model: str = "far") -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    return up.api("POST", "/v1/chat/completions", body)


def says(up: Any, text: str, *, model: str = "far") -> str:
    answer = ask(up, text, model=model)
    return str(answer.json()["choices"][0]["message"]["content"]) if answer.status == 200 else f"{answer.status}"


def add(
    up: Any, tmp_path: Path, name: str, url: str, *options: str, key: str = KEY
) -> subprocess.CompletedProcess[str]:
    file = tmp_path / f"{name}.key"
    file.write_text(key)
    arguments = ["far", name, url, "--remote-model", MODEL, "--engine-key-file", str(file), *options]
    done: subprocess.CompletedProcess[str] = up.corral("engines", "add", *arguments)
    return done


def states(up: Any) -> dict[str, str]:
    return {engine["name"]: engine["state"] for engine in up.api("GET", "/api/v1/external-engines").json()}


def test_an_engine_is_registered_asked_killed_replaced_and_back(
    up: RunningUp, start_engine: StartEngine, tmp_path: Path
) -> None:
    ports = [lasting_port(), lasting_port()]
    first, _ = start_engine(ports[0], "first"), start_engine(ports[1], "second")
    for order, (name, port) in enumerate(zip(("first", "second"), ports, strict=True)):
        added = add(up, tmp_path, name, f"http://127.0.0.1:{port}", "--fallback-order", str(order))
        assert added.returncode == 0, added.stdout + added.stderr
    wait_until(lambda: says(up, "hello there") == "first hello there", "the first answer", seconds=60)
    assert listed(up)["far"] == "external"

    first.kill()
    first.wait()
    assert [says(up, "one"), says(up, "two")] == ["second one", "second two"]  # nobody notices
    wait_until(lambda: states(up)["first"] == "down", "the look at a dead engine", seconds=60)
    assert says(up, "three") == "second three"

    start_engine(ports[0], "first")
    wait_until(lambda: states(up)["first"] == "up", "the look at an engine that is back", seconds=60)
    wait_until(lambda: says(up, "again") == "first again", "its answers", seconds=60)
    shown = up.corral("engines", "show", "far/first")
    assert shown.returncode == 0
    assert KEY not in shown.stdout + up.output
    assert up.left() is not None


def test_an_engine_behind_tls_with_its_own_authority(up: RunningUp, start_engine: StartEngine, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    port = lasting_port()
    start_engine(port, "secure", *authority.issue("engine"))
    url = f"https://127.0.0.1:{port}/v1"
    untrusted = add(up, tmp_path, "untrusted", url, "--fallback-order", "2")
    assert untrusted.returncode == 1
    assert "its certificate is not trusted" in untrusted.stdout
    trusted = add(up, tmp_path, "trusted", url, "--ca-file", str(authority.file))
    assert trusted.returncode == 0, trusted.stderr
    wait_until(lambda: says(up, "hello") == "secure hello", "an answer over TLS", seconds=60)


def test_a_wrong_key_is_told_and_mended(up: RunningUp, start_engine: StartEngine, tmp_path: Path) -> None:
    port = lasting_port()
    start_engine(port, "keyed")
    added = add(up, tmp_path, "desk", f"http://127.0.0.1:{port}", key="wrong")
    assert added.returncode == 1
    assert "misconfigured: it does not take its key (401)" in added.stdout
    wait_until(lambda: ask(up, "hello").status == 503, "the refusal of clients", seconds=60)
    refused = ask(up, "hello").json()["error"]
    assert "desk is misconfigured" in refused["message"]
    (tmp_path / "right.key").write_text(KEY)
    assert up.corral("engines", "set", "desk", "--engine-key-file", str(tmp_path / "right.key")).returncode == 0
    assert up.corral("engines", "test", "desk").returncode == 0
    wait_until(lambda: says(up, "hello") == "keyed hello", "an answer", seconds=60)


def test_a_stream_whose_engine_dies_breaks_off_and_the_next_is_whole(
    up: RunningUp, start_engine: StartEngine, tmp_path: Path
) -> None:
    ports = [lasting_port(), lasting_port()]
    start_engine(ports[0], "first")
    start_engine(ports[1], "second")
    state = up.state()
    for order, (name, port) in enumerate(zip(("first", "second"), ports, strict=True)):
        assert add(up, tmp_path, name, f"http://127.0.0.1:{port}", "--fallback-order", str(order)).returncode == 0
    wait_until(lambda: says(up, "hello") == "first hello", "the first answer", seconds=60)

    def stream(text: str) -> bytes:
        connection = http.client.HTTPConnection(state["url"].removeprefix("http://"), timeout=60)
        body = {"model": "far", "stream": True, "messages": [{"role": "user", "content": text}]}
        headers = {"Authorization": f"Bearer {state['keys']['admin']}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        try:
            return connection.getresponse().read()
        finally:
            connection.close()

    assert stream("please answer slowly").endswith(b"[DONE]\n\n")
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        stream("please die")
    assert b"second " in stream("go on")


def test_a_fallback_answers_while_the_fleet_loads_and_then_the_fleet_does(
    start_up: Any, start_engine: StartEngine, tmp_path: Path
) -> None:
    port = lasting_port()
    start_engine(port, "spare")
    write_model(tmp_path / "models", "chat", parameters={"model": "chat.gguf", "max_tokens": 8})
    up = start_up("--workers", "1", CORRAL_MODELS_PATH=str(tmp_path / "models"))
    up.until_ready()
    up.until_healthy("worker-1")
    (tmp_path / "key").write_text(KEY)
    options = ["--remote-model", MODEL, "--engine-key-file", str(tmp_path / "key"), "--fallback-order", "1"]
    added = up.corral("engines", "add", "chat", "spare", f"http://127.0.0.1:{port}", *options)
    assert added.returncode == 0, added.stderr
    wait_until(lambda: says(up, "hello", model="chat") == "spare hello", "the fallback's answer", seconds=60)

    def is_from_the_fleet() -> bool:
        words = says(up, "hello", model="chat")
        assert not words.isdecimal(), words  # nobody is ever refused
        return not words.startswith("spare")

    wait_until(is_from_the_fleet, "the fleet's own answer", seconds=180)
    (replica,) = up.api("GET", "/api/v1/models/chat").json()["replicas"]
    assert replica["state"] == "loaded"
