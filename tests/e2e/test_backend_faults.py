"""Backends that cannot be had: what the client is told, and that nothing is left of them."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kit.backend_scripts import IGNORES_SIGTERM, write_backend, write_serving_backend
from tests.kit.backends import BACKENDS
from tests.kit.models import chat_model, write_model
from tests.kit.processes import words_of
from tests.kit.waiting import wait_until

FAULTS = {"dies": "echo no such library >&2; exit 3", "hangs": "exec sleep 1000"}
AT_LOAD = ("crash_at_load", "error_at_load")
CROWDED = """
from corral_backend_sdk import PortTaken

async def load(self, options):
    with open({seen!r}, "a+") as seen:
        seen.seek(0)
        if not seen.read():
            seen.write(self.launch.address)
            raise PortTaken("cannot listen at " + self.launch.address)
    return "loaded"

Script.load = load
"""
"""Part of a serving backend whose first process finds another program at a port that it was promised."""


@pytest.fixture(scope="module")
def faulty(module_folder: Path, run_up: Any) -> Iterator[Any]:
    """A fleet whose models have backends that fail, each in one way."""
    folder = module_folder
    for name, shell in FAULTS.items():
        write_backend(folder / "backends", name, shell=shell)
        write_model(folder / "models", name, backend=name)
    (folder / "models" / "corrupt.gguf").write_bytes(chat_model().read_bytes()[:4_000_000])
    write_model(folder / "models", "corrupt", parameters={"model": "corrupt.gguf"})
    for option in AT_LOAD:
        write_model(folder / "models", option, backend="echo", options=[option])
    (folder / "seen").touch(mode=0o666)
    (folder / "seen").chmod(0o666)
    write_serving_backend(folder / "backends", "crowded", body=CROWDED.format(seen=str(folder / "seen")))
    write_model(folder / "models", "crowded", backend="crowded")
    paths = {"CORRAL_MODELS_PATH": "models", "CORRAL_SYSTEM_BACKENDS_PATH": "backends"}
    settings = {variable: str(folder / path) for variable, path in paths.items()}
    settings |= {"CORRAL_BACKEND_READ_PATHS": str(BACKENDS), "CORRAL_BACKEND_WRITE_PATHS": str(folder / "seen")}
    with run_up(folder, **settings, CORRAL_LOAD_WAIT="18s") as up:
        up.until_ready()
        yield up


def refused(up: Any, model: str, key: str = "") -> tuple[int, dict[str, str], Any]:
    """The answer to a chat with this model, which is none; to an administrator, if no other key is given."""
    state = up.state()
    request = urllib.request.Request(
        state["url"] + "/v1/chat/completions",
        data=json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode(),
        headers={"Authorization": f"Bearer {key or state['keys']['admin']}"},
    )
    with pytest.raises(urllib.error.HTTPError) as error, urllib.request.urlopen(request, timeout=90):
        pass
    with error.value as answer:
        return answer.code, dict(answer.headers), json.load(answer)


def backends_of(up: Any) -> list[str]:
    """What runs below the workers; their adapters are none, and stay for a while after the last replica."""
    lines = [
        " ".join(words_of(process))
        for worker in up.state()["pids"]["workers"]
        for process in psutil.Process(worker).children(recursive=True)
    ]
    return [line for line in lines if line and "corral.processes.adapter" not in line]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("dies", "no such library"),
        ("crash_at_load", "cannot be reached"),
        ("error_at_load", "told to fail by error_at_load"),
    ],
)
def test_a_backend_that_fails_is_told_with_its_reason_and_leaves_nothing(faulty: Any, model: str, reason: str) -> None:
    status, headers, body = refused(faulty, model)

    assert status == 503
    assert int(headers["Retry-After"]) >= 1
    assert (body["error"]["type"], body["error"]["code"]) == ("model_load_failed", "model_load_failed")
    assert reason in body["error"]["message"]
    assert (body["loading"]["model"], body["loading"]["state"]) == (model, "failed")
    assert faulty.api("GET", f"/api/v1/models/{model}").json()["state"] == "failed"
    wait_until(lambda: not [line for line in backends_of(faulty) if "sleep 1000" not in line], "its end")


def test_a_corrupt_gguf_says_why_to_administrators_and_only_that_it_failed_to_others(
    faulty: Any, start_process: Any
) -> None:
    _, _, body = refused(faulty, "corrupt")

    message = body["error"]["message"]
    assert "The engine's last lines:\n" in message
    assert "corrupted or incomplete" in message, message
    assert any("corrupted or incomplete" in line for line in body["loading"]["engine_lines"])
    shown = faulty.corral("models", "show", "corrupt").stdout
    assert "corrupted or incomplete" in shown

    assert "corrupted or incomplete" in faulty.corral("logs", "corrupt").stdout
    with start_process(["logs", "corrupt", "-f", "--data", str(faulty.data)]) as following:
        wait_until(lambda: "corrupted or incomplete" in following.output, "the past lines")
        assert following.stop(signal.SIGINT) == 0

    created = faulty.corral("keys", "create", "app", "--scope", "inference")
    status, _, body = refused(faulty, "corrupt", created.stdout.strip())
    assert (status, body["error"]["code"]) == (503, "model_load_failed")
    assert body["error"]["message"] == (
        "model corrupt cannot be loaded: its engine could not load it; this does not pass by itself: the model, its "
        "files or its engine have to be changed"
    )
    assert body["loading"] == {
        "model": "corrupt",
        "state": "failed",
        "reason": "refused_by_engine",
        "message": "its engine could not load it",
        "is_permanent": True,
    }


def test_a_port_that_is_taken_between_start_and_load_costs_a_process_and_not_the_model(
    faulty: Any, module_folder: Path
) -> None:
    loaded = faulty.corral("models", "load", "crowded")

    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    assert faulty.api("GET", "/api/v1/models/crowded").json()["state"] == "loaded"
    [process] = [line for line in backends_of(faulty) if "crowded" in line]
    assert (module_folder / "seen").read_text() not in process


def test_a_backend_that_never_becomes_ready_is_told_to_load_and_ends_with_the_fleet(faulty: Any) -> None:
    """The worker gives it half a minute; the client is told after its own budget."""
    status, headers, body = refused(faulty, "hangs")

    assert status == 503
    assert int(headers["Retry-After"]) >= 1
    assert body["error"]["code"] == "model_loading"
    loading = body["loading"]
    assert (loading["model"], loading["state"]) == ("hangs", "starting")
    assert loading["node"] in ("worker-1", "worker-2")
    assert body["error"]["message"] == f"model hangs is starting on node {loading['node']}"
    assert [line for line in backends_of(faulty) if "sleep 1000" in line]
    faulty.look()  # so that the end of the fleet waits for it


def test_a_backend_that_ignores_sigterm_is_gone_after_ctrl_c(start_up: Any, tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.touch()
    said.chmod(0o666)
    write_serving_backend(tmp_path / "backends", "stubborn", pipe=said, body=IGNORES_SIGTERM)
    write_model(tmp_path / "models", "stubborn", backend="stubborn")
    up = start_up(
        "--workers",
        "1",
        CORRAL_MODELS_PATH=str(tmp_path / "models"),
        CORRAL_SYSTEM_BACKENDS_PATH=str(tmp_path / "backends"),
        CORRAL_BACKEND_READ_PATHS=str(BACKENDS),
        CORRAL_BACKEND_WRITE_PATHS=str(said),
        CORRAL_LOAD_WAIT="0s",
    )
    up.until_ready()
    refused(up, "stubborn")
    wait_until(lambda: up.api("GET", "/api/v1/models/stubborn").json()["state"] == "loaded", "the model")
    up.look()

    assert up.stop(signal.SIGINT) == 0

    assert said.read_text() == "SIGTERM\n"
    assert up.left() == []
