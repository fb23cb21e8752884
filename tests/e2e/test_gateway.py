"""`corral gateway` alone, as a real process beside a frontend."""

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit.certificates import Authority
from tests.kit.ports import lasting_port
from tests.kit.waiting import wait_until

NOBODY = "nats://127.0.0.1:9"


@pytest.fixture
def start(start_process: Any) -> Iterator[Any]:
    with ExitStack() as stack:

        def run(*arguments: str, **variables: str) -> Any:
            return stack.enter_context(start_process(list(arguments), **variables))

        yield run


def start_frontend(start: Any, folder: Path, port: int, *more: str) -> Any:
    arguments = ["--data", str(folder / "data"), "--nats", NOBODY, "--port", str(port), *more]
    return start("frontend", *arguments, CORRAL_CREDENTIALS_FILE=str(folder / "keys.json"))


def admin_key(folder: Path) -> str:
    file = folder / "keys.json"
    wait_until(file.exists, "the first keys", seconds=60)
    return str(json.loads(file.read_text())["admin"])


def gateway_key(corral: Any, url: str, admin: str) -> str:
    def made() -> str:
        done = corral("keys", "create", "edge", "--scope", "gateway", "--url", url, CORRAL_KEY=admin)
        return str(done.stdout.strip())

    return wait_until(made, "a key for the gateway", seconds=60)


def test_it_waits_for_control_then_serves_and_passes_on(start: Any, call: Any, corral: Any, tmp_path: Path) -> None:
    front, port = lasting_port(), lasting_port()
    url, own = f"http://127.0.0.1:{front}", f"http://127.0.0.1:{port}"
    frontend = start_frontend(start, tmp_path, front)
    admin = admin_key(tmp_path)
    key = gateway_key(corral, url, admin)
    assert frontend.stop(signal.SIGTERM) == 0

    gateway = start("gateway", "--control", url, "--port", str(port), CORRAL_GATEWAY_KEY=key)
    wait_until(lambda: call("GET", f"{own}/healthz").status == 200, "the gateway")
    away = call("GET", f"{own}/readyz")
    assert (away.status, away.json()["control"]["state"]) == (503, "away")
    asked = call("POST", f"{own}/v1/chat/completions", {"model": "x", "messages": []}, key=admin)
    assert (asked.status, asked.json()["error"]["code"]) == (503, "no_view")
    assert call("GET", f"{own}/api/v1/nodes", key=admin).json()["error"]["code"] == "control_unavailable"

    again = start_frontend(start, tmp_path, front)
    wait_until(lambda: call("GET", f"{own}/readyz").status == 200, "the gateway's first view", seconds=60)
    assert call("GET", f"{own}/api/v1/nodes", key=admin).status == 200
    assert call("GET", f"{own}/v1/models", key=admin).json()["data"] == []
    unknown = call("POST", f"{own}/v1/chat/completions", {"model": "x", "messages": []}, key=admin)
    assert (unknown.status, unknown.json()["error"]["code"]) == (404, "model_not_found")

    def doctor() -> list[str]:
        findings = call("GET", f"{url}/api/v1/doctor", key=admin).json()["findings"]
        return [one["summary"] for one in findings if one["check"] == "gateways"]

    wait_until(lambda: "the gateway at 127.0.0.1 counts as one address" in doctor()[0], "the doctor's warning")

    def metrics() -> str:
        return str(call("GET", f"{own}/metrics", key=admin).body.decode())

    wait_until(lambda: f'pid="{gateway.process.pid}"' in metrics(), "its series at control's /metrics")
    wait_until(lambda: metrics().count("corral_gateway_up{") == 2, "those of the frontend's own gateway")
    assert again.stop(signal.SIGTERM) == 0
    wait_until(lambda: call("GET", f"{own}/readyz").json()["control"]["state"] == "away", "it to notice")
    alone = call("GET", f"{own}/metrics", key=admin)
    assert (alone.status, alone.body[:17]) == (200, b"# control is away")
    assert call("GET", f"{own}/metrics").status == 401
    assert gateway.stop(signal.SIGTERM) == 0
    assert key not in gateway.output


def test_a_wrong_key_is_told_in_the_log_and_serves_nobody(start: Any, call: Any, tmp_path: Path) -> None:
    front, port = lasting_port(), lasting_port()
    start_frontend(start, tmp_path, front)
    gateway = start(
        "gateway", "--control", f"http://127.0.0.1:{front}", "--port", str(port), CORRAL_GATEWAY_KEY="corral_wrong"
    )
    wait_until(lambda: "control answered 401; check the gateway's key" in gateway.output, "the log", seconds=60)
    assert call("GET", f"http://127.0.0.1:{port}/readyz").status == 503
    assert call("GET", f"http://127.0.0.1:{port}/healthz").status == 200
    assert "corral_wrong" not in gateway.output
    assert gateway.stop(signal.SIGTERM) == 0


def test_a_control_behind_https_is_followed(start: Any, call: Any, corral: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, private = authority.issue("frontend")
    front, port = lasting_port(), lasting_port()
    start_frontend(start, tmp_path, front, "--tls-cert", str(certificate), "--tls-key", str(private))
    url = f"https://127.0.0.1:{front}"
    admin = admin_key(tmp_path)
    trust = {"SSL_CERT_FILE": str(authority.file), "CORRAL_KEY": admin}
    key = wait_until(
        lambda: corral("keys", "create", "edge", "--scope", "gateway", "--url", url, **trust).stdout.strip(),
        "a key for the gateway",
        seconds=60,
    )
    arguments = ["--control", url, "--control-ca", str(authority.file), "--port", str(port)]
    gateway = start("gateway", *arguments, CORRAL_GATEWAY_KEY=key)
    own = f"http://127.0.0.1:{port}"
    wait_until(lambda: call("GET", f"{own}/readyz").status == 200, "the gateway's first view", seconds=60)
    assert call("GET", f"{own}/api/v1/nodes", key=admin).status == 200
    assert gateway.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "sentence"),
    [
        ([], {}, 64, "control: a value is needed"),
        (["--control", "http://127.0.0.1:9"], {}, 64, "key: a key with the scope gateway is needed"),
        (
            ["--control", "nonsense"],
            {"CORRAL_GATEWAY_KEY": "k"},
            64,
            'control: "nonsense" from the flag --control cannot be used; allowed is',
        ),
        (["--control", "http://127.0.0.1:9", "--key", "k"], {}, 64, "--key"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    start: Any, arguments: list[str], variables: dict[str, str], code: int, sentence: str
) -> None:
    running = start("gateway", "--port", "0", *arguments, **variables)
    assert running.process.wait(timeout=90) == code
    assert sentence in running.output
    assert "Traceback" not in running.output


def test_a_taken_port_is_told(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        running = start("gateway", "--control", "http://127.0.0.1:9", "--port", port, CORRAL_GATEWAY_KEY="k")
        assert running.process.wait(timeout=90) == 75
    assert f"port {port} on 127.0.0.1 is taken by another program" in running.output
