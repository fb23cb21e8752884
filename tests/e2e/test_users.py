"""Users as people meet them: over the gateway, with the commands, in a fleet that `corral up` runs."""

import json
from pathlib import Path
from typing import Any

import psutil

PASSWORD = "correct horse battery"


def succeeded(outcome: Any) -> str:
    assert outcome.returncode == 0, outcome.stderr
    return str(outcome.stdout)


def ask(up: Any, key: str, model: str) -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    return up.call("POST", "/v1/chat/completions", body, key=key)


def test_a_user_logs_in_acts_as_far_as_the_role_goes_and_is_kept_out(answering_up: Any, corral: Any) -> None:
    up = answering_up
    url = up.state()["url"]
    succeeded(up.corral("users", "create", "alice", "--role", "viewer", "--password-descriptor", "0", typed=PASSWORD))
    nobody = corral("whoami", "--url", url)
    assert (nobody.returncode, "no key was given" in nobody.stderr) == (77, True)
    wrong = corral("login", "--user", "alice", "--url", url, "--password-descriptor", "0", typed="not the password")
    assert (wrong.returncode, "the name or the password is wrong" in wrong.stderr) == (77, True)

    told = succeeded(corral("login", "--user", "alice", "--url", url, "--password-descriptor", "0", typed=PASSWORD))
    assert told.startswith("alice is logged in (viewer) until ")
    assert json.loads(succeeded(corral("whoami", "--json")))["user"] == "alice"  # the URL is remembered, too
    nodes = json.loads(succeeded(corral("nodes", "list", "--json")))["items"]
    refused = corral("nodes", "drain", nodes[0]["name"])
    assert refused.returncode == 77
    assert "it needs the permission nodes.act, which keys of scope operator or admin have" in refused.stderr

    succeeded(up.corral("users", "role", "alice", "operator"))
    ended = corral("nodes", "list")
    assert ended.returncode == 0  # a viewer's key is covered by the new role, and goes on
    succeeded(corral("login", "--user", "alice", "--password-descriptor", "0", typed=PASSWORD))
    succeeded(corral("nodes", "drain", nodes[0]["name"]))
    succeeded(corral("nodes", "resume", nodes[0]["name"]))
    record = up.corral("events", "--json").stdout
    assert '"alice (login)"' in record

    out = succeeded(up.corral("users", "disable", "alice"))
    assert "alice is disabled; 2 keys are revoked." in out
    kept_out = corral("nodes", "list")
    assert kept_out.returncode == 77
    assert "`corral login --user alice` logs in again" in kept_out.stderr
    assert succeeded(corral("logout")).strip() == "alice is logged out."
    succeeded(up.corral("users", "delete", "alice", "--yes"))


def test_a_limited_key_asks_its_models_alone_over_the_gateway(answering_up: Any) -> None:
    up = answering_up
    key = succeeded(up.corral("keys", "create", "app", "--model", "chat")).strip()
    assert ask(up, key, "chat").status == 200
    refused = ask(up, key, "cold")
    assert (refused.status, refused.json()["error"]["code"]) == (403, "model_not_allowed")
    listed = up.call("GET", "/v1/models", key=key).json()["data"]
    assert [model["id"] for model in listed] == ["chat"]
    assert up.call("GET", "/api/v1/nodes", key=key).status == 403
    capable = up.call("GET", "/api/models/capabilities", key=key).json()["data"]
    assert [model["id"] for model in capable] == ["chat"]
    succeeded(up.corral("keys", "revoke", "app"))
    assert ask(up, key, "chat").status == 401


def test_passwords_are_in_no_file_and_no_process(answering_up: Any, corral: Any, tmp_path: Path) -> None:
    up = answering_up
    url, secret = up.state()["url"], "a password that nobody else has"
    succeeded(up.corral("users", "create", "bob", "--role", "inference", "--password-descriptor", "0", typed=secret))
    succeeded(corral("login", "--user", "bob", "--url", url, "--password-descriptor", "0", typed=secret))
    change = f"{secret}\n{secret}, too\n"
    succeeded(corral("password", "--user", "bob", "--url", url, "--password-descriptor", "0", typed=change))
    assert corral("whoami").returncode == 77  # a new password ends earlier logins
    login = next(tmp_path.rglob("login.json"))
    assert login.stat().st_mode & 0o777 == 0o600
    for folder in (up.data, tmp_path):
        for path in folder.rglob("*"):
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path
    own = psutil.Process(up.process.pid)
    lines = [" ".join(process.cmdline()) for process in [own, *own.children(recursive=True)]]
    assert not [line for line in lines if secret in line]
    succeeded(up.corral("users", "delete", "bob", "--yes"))


def test_guesses_from_one_source_are_limited_over_the_gateway(answering_up: Any) -> None:
    up = answering_up
    body = {"name": "carol", "password": "wrong password"}
    statuses = [up.call("POST", "/api/v1/login", body, key="").status for _ in range(12)]
    assert statuses[:8] == [401] * 8  # some were taken by the other tests of this module
    assert statuses[-1] == 429
    others = [{**body, "name": f"dave{number}"} for number in range(30)]
    statuses = [up.call("POST", "/api/v1/login", other, key="").status for other in others]
    assert (statuses[0], statuses[-1]) == (401, 429), "one name does not keep others out; thirty guesses do"
    assert up.api("GET", "/api/v1/nodes").status == 200
