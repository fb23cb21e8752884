"""TLS on the public port of real processes."""

import json
import signal
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.kit.certificates import Authority
from tests.kit.page_sessions import SignedIn, ask_page
from tests.kit.ports import lasting_port
from tests.kit.processes import running_below
from tests.kit.waiting import wait_until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def ask(authority: Authority, url: str) -> dict[str, Any]:
    """Checked against the authority; nothing when there is no good answer."""
    context = ssl.create_default_context(cafile=authority.file)
    try:
        with urllib.request.urlopen(url, context=context, timeout=60) as response:
            found: dict[str, Any] = json.loads(response.read())
            return found
    except OSError:
        return {}


def test_a_whole_fleet_behind_tls(start_up: Any, authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("up")
    up = start_up("--workers", "1", "--tls-cert", str(certificate), "--tls-key", str(key))
    state = up.until_ready()
    public = next(word for word in up.output.split() if word.startswith("https://"))

    assert f"Corral is ready at {public} with 1 healthy node" in up.output
    assert ask(authority, f"{public}/readyz")["status"] == "ready"
    assert state["url"].startswith("http://127.0.0.1:")  # for commands and workers of this machine
    assert not state["url"].endswith(public.rpartition(":")[2])
    assert up.corral("nodes", "list").returncode == 0
    trusting = ssl.create_default_context(cafile=authority.file)
    asked = {"key": state["keys"]["admin"]}
    for origin, status in ((public, 201), (public.replace("https:", "http:"), 403)):
        reply = ask_page("POST", f"{public}/api/v1/session", asked, headers={"Origin": origin}, tls=trusting)
        assert reply.status == status
        assert reply.headers.get("set-cookie", "; Secure").endswith("; Secure")
    page = SignedIn.at(public, asked, tls=trusting)
    assert page.call("POST", "/api/v1/session/inference-key").status == 201
    plain = ask_page("POST", f"{state['url']}/api/v1/session", asked)
    assert not plain.headers["set-cookie"].endswith("; Secure")
    up.until_healthy("worker-1")
    assert up.stop(signal.SIGTERM) == 0
    assert up.left() == []


def test_a_frontend_behind_tls_keeps_its_gateways_alive(
    start_process: Any, authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("frontend")
    port = lasting_port()
    file = tmp_path / "corral.toml"
    file.write_text(f'[frontend]\ntls_cert = "{certificate}"\ntls_key = "{key}"\n')
    arguments = ["--data", str(tmp_path / "data"), "--nats", "nats://127.0.0.1:9", "--port", str(port)]
    with start_process(["frontend", *arguments, "--config", str(file)]) as running:
        url = f"https://127.0.0.1:{port}/readyz"
        wait_until(lambda: ask(authority, url).get("status") == "ready", "the gateway's first view", seconds=60)
        impaired = {"state": "impaired", "problems": ["NATS is not connected"]}
        wait_until(lambda: ask(authority, url).get("control") == impaired, "control to say what it lacks")
        wait_until(lambda: "serving" in running.output, "the launcher to be content")
        assert f"url=https://127.0.0.1:{port}" in running.output
        running_below(running.process.pid, "gateway")[0].kill()
        wait_until(lambda: running.output.count("gateway is ready") == 2, "another gateway")
        wait_until(lambda: ask(authority, url).get("status") == "ready", "its first view")
        assert running.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("command", ["frontend", "up"])
def test_a_bad_certificate_ends_the_start_with_a_sentence(
    start_process: Any, authority: Authority, tmp_path: Path, command: str
) -> None:
    certificate, _ = authority.issue("one")
    _, key = authority.issue("other")
    nats = ["--nats", "nats://127.0.0.1:9"] if command == "frontend" else []
    arguments = [command, "--data", str(tmp_path / "data"), "--port", "0", *nats]
    with start_process([*arguments, "--tls-cert", str(certificate), "--tls-key", str(key)]) as running:
        assert running.process.wait(timeout=90) == 64
        assert f"tls_key: {key} is not the key of the certificate in {certificate}" in running.output
        assert "Traceback" not in running.output
