"""How a command finds its frontend, and what it says when that does not work."""

import json
from pathlib import Path
from typing import Any

import pytest

from corral import __version__
from corral.cli.client import message_in, read_events
from corral.processes.up_file import UpFile, UpKeys, UpPids, write_up_file

DATA = Path(".local/share/corral")


@pytest.fixture
def up_file(home: Path, frontend: Any) -> Path:
    data = home / DATA
    data.mkdir(parents=True)
    write(data, frontend.url)
    return data


def write(data: Path, url: str) -> None:
    write_up_file(
        data,
        UpFile(
            url=url,
            nats_url="nats://worker:secret@127.0.0.1:1",
            keys=UpKeys(admin="corral_of-up", registration="token"),
            pids=UpPids(frontend=1, control=1, nats=1, workers=[]),
        ),
    )


def bearer(frontend: Any) -> str | None:
    return frontend.calls[-1].headers.get("Authorization")


def test_without_any_setting_up_json_is_used(corral: Any, frontend: Any, up_file: Path) -> None:
    frontend.tell_nodes()
    assert corral("nodes", "list").code == 0
    assert bearer(frontend) == "Bearer corral_of-up"


def test_another_data_directory_can_be_named(corral: Any, frontend: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write(other, frontend.url)
    frontend.tell_nodes()
    assert corral("nodes", "list", "--data", str(other)).code == 0


def test_the_environment_wins_over_up_json(
    corral: Any, frontend: Any, up_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend.tell_nodes()
    monkeypatch.setenv("CORRAL_KEY", "corral_mine")
    corral("nodes", "list")
    assert bearer(frontend) == "Bearer corral_mine"


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_in_the_way_of_the_one_of_up_json_is_named(
    corral: Any, frontend: Any, up_file: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    write(up_file, frontend.url)
    monkeypatch.setenv("CORRAL_KEY", "corral_for-an-app")
    frontend.tell("GET /api/v1/nodes", {"error": {"message": "it needs the permission nodes.read"}}, status)
    outcome = corral("nodes", "list")
    assert outcome.code == 77
    assert outcome.err.endswith("; without CORRAL_KEY and --key-file the key of this machine's `corral up` is used\n")


def test_the_key_of_up_json_is_not_sent_to_another_frontend(corral: Any, frontend: Any, up_file: Path) -> None:
    write(up_file, "http://127.0.0.1:1")
    frontend.tell_nodes()
    corral("nodes", "list", "--url", frontend.url)
    assert bearer(frontend) is None


def test_a_key_file_is_read(corral: Any, frontend: Any, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("corral_from-file\n")
    key.chmod(0o600)
    frontend.tell_nodes()
    corral("nodes", "list", "--url", frontend.url, "--key-file", str(key))
    assert bearer(frontend) == "Bearer corral_from-file"


@pytest.mark.parametrize(
    ("content", "mode", "sentence", "code"),
    [
        (b"corral_x", 0o644, "may be read by others; run: chmod 600", 73),
        (b"two words", 0o600, "does not hold a key", 73),
        (b"\xff\xfe", 0o600, "does not hold a key", 73),
        (b"", 0o600, "does not hold a key", 73),
        (None, 0o600, "there is no key file", 1),
    ],
)
def test_an_unusable_key_file_is_refused(
    corral: Any, frontend: Any, tmp_path: Path, content: bytes | None, mode: int, sentence: str, code: int
) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
        key.chmod(mode)
    outcome = corral("nodes", "list", "--url", frontend.url, "--key-file", str(key))
    assert outcome.code == code
    assert sentence in outcome.err
    assert frontend.calls == []


def test_a_key_is_never_a_flag(corral: Any) -> None:
    outcome = corral("nodes", "list", "--key", "corral_hidden")
    assert outcome.code == 64
    assert outcome.err == (
        "error: --key: a secret is never a flag, because others on this machine could read it in the process list; "
        "set the environment variable CORRAL_KEY instead\n"
    )


def test_when_nothing_runs_it_says_how_to_start(corral: Any, home: Path) -> None:
    outcome = corral("nodes", "list")
    assert outcome.code == 69
    assert outcome.err == (
        f"error: no frontend is known: there is no {home / DATA}/up.json; start one with `corral up`, or name one with "
        "--url, CORRAL_URL or --data\n"
    )


def test_a_frontend_that_is_gone_is_named_with_the_source_of_its_url(corral: Any, home: Path) -> None:
    (home / DATA).mkdir(parents=True)
    write(home / DATA, "http://127.0.0.1:9")
    outcome = corral("nodes", "list")
    assert outcome.code == 69
    assert outcome.err == (
        f"error: no answer from http://127.0.0.1:9 (from {home / DATA}/up.json): Connection refused; is it running? "
        "`corral doctor` looks closer, `corral up` starts one\n"
    )


def test_https_where_nobody_speaks_tls_is_told(corral: Any, frontend: Any) -> None:
    url = frontend.url.replace("http:", "https:")
    outcome = corral("nodes", "list", "--url", url)
    assert outcome.code == 69
    assert f"no answer from {url}" in outcome.err
    assert f"what listens there does not speak TLS, so try {frontend.url};" in outcome.err


def test_a_damaged_up_json_counts_as_none(corral: Any, home: Path) -> None:
    (home / DATA).mkdir(parents=True)
    (home / DATA / "up.json").write_text("{")
    (home / DATA / "up.json").chmod(0o600)
    assert corral("nodes", "list").code == 69


@pytest.mark.parametrize(
    ("status", "body", "code", "sentence"),
    [
        (401, {"error": {"message": "no"}}, 77, "its key is wrong, expired or revoked; set CORRAL_KEY or --key-file"),
        (403, {"error": {"message": "it needs the scope admin"}}, 77, "refused the call: it needs the scope admin"),
        (404, {"error": {"message": "there is no route"}}, 1, "error: there is no route"),
        (400, {"error": "wrong"}, 1, "error: wrong"),
        (418, {"unexpected": 1}, 1, "error: I'm a Teapot"),
        (500, {"error": {"message": "boom"}}, 69, "failed to answer (500): boom; try again, or see `corral doctor`"),
        (
            503,
            {"error": {"code": "hub_unavailable", "message": "hub.example: no connection: refused"}},
            69,
            "error: hub.example: no connection: refused; the frontend at http://",
        ),
        (503, {}, 69, "failed to answer (503): Service Unavailable"),
        (200, {"nonsense": 1}, 1, "did not answer as a Corral frontend does; is the URL right?"),
    ],
)
def test_every_refusal_is_one_sentence(
    connected: Any, frontend: Any, status: int, body: object, code: int, sentence: str
) -> None:
    frontend.tell("GET /api/v1/nodes", body, status)
    outcome = connected("nodes", "list")
    assert outcome.code == code
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
    assert "corral_key-of-this-test" not in outcome.err


@pytest.mark.parametrize(
    "url", ["http://" + "x" * 200 + ".invalid", "http://no.such.host.invalid", "http://127.0.0.1:0"]
)
def test_a_host_that_cannot_be_reached_is_unavailable(corral: Any, url: str) -> None:
    outcome = corral("nodes", "list", "--url", url)
    assert outcome.code == 69
    assert f"no answer from {url}" in outcome.err


@pytest.mark.parametrize("arguments", [["vesion"], ["nodes"], ["nodes", "lst"], ["keys", "create"], ["up", "extra"]])
def test_wrong_usage_ends_with_64(corral: Any, arguments: list[str]) -> None:
    outcome = corral(*arguments)
    assert outcome.code == 64
    assert "--help" in outcome.err or "Usage" in outcome.err + outcome.out


def test_an_unknown_flag_names_the_near_one(corral: Any) -> None:
    outcome = corral("up", "--prot", "1")
    assert outcome.code == 64
    assert outcome.err == "error: --prot: corral up has no such flag; did you mean --port?\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"error": {"code": 401, "message": "a"}}', "a"),
        (b'{"error": "b"}', "b"),
        (b'{"error": {"message": 1}}', ""),
        (b"[]", ""),
        (b"<html>", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_the_sentence_of_an_error_is_found_in_any_shape(content: bytes, sentence: str) -> None:
    assert message_in(content) == sentence


def test_server_sent_events_are_parsed() -> None:
    stream = (
        b"retry: 2000\n\n: hello\n\nid: 7\nevent: node.status\ndata: {\ndata: }\n\nid: 8\r\ndata:x\r\n\r\ndata: cut"
    )
    assert list(read_events(stream.splitlines(keepends=True))) == [("", ""), ("7", "{\n}"), ("8", "x")]


def test_version(corral: Any) -> None:
    assert corral("version").out == f"corral {__version__}\n"
    assert json.loads(corral("version", "--json").out)["version"] == __version__
    assert corral("--version").out == f"corral {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_us_back(corral: Any, shell: str) -> None:
    outcome = corral("completion", shell)
    assert outcome.code == 0
    assert f"_CORRAL_COMPLETE={shell}_complete" in outcome.out
