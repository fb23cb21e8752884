"""`corral engines`: what is sent, where keys come from, and what the fleet's file declares."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import InvalidInput
from corral.cli.engines.fleet_part import changes_between, read_engines
from corral.wire.engines import EngineTrial, ExternalEngineView

from .conftest import StubFrontend

PATH = "/api/v1/external-engines"
KEY = "sk-a-key-of-this-test"


def engine(name: str = "desk", **changes: Any) -> ExternalEngineView:
    facts: dict[str, Any] = {
        "id": f"id-of-{name}",
        "model": "far",
        "url": "http://10.0.0.9:8000/v1",
        "remote_model": "far",
        "uses": ["chat", "completion"],
        "has_key": True,
        "ca": "",
        "health_path": "",
        "max_concurrent": 0,
        "weight": 1,
        "fallback_order": 0,
        "is_enabled": True,
        "state": "up",
        "since": "2026-01-01T00:00:00Z",
        "created_at": "2026-01-01T00:00:00Z",
        "created_by": "admin",
        "changed_at": "2026-01-01T00:00:00Z",
        "changed_by": "admin",
        "revision": "1.5",
        **changes,
    }
    return ExternalEngineView(name=name, **facts)


@pytest.fixture
def known(frontend: StubFrontend) -> StubFrontend:
    frontend.tell(
        f"GET {PATH}", [engine(), engine("spare", fallback_order=1, state="down", reason="connection refused")]
    )
    for name in ("desk", "spare"):
        frontend.tell(f"PUT {PATH}/id-of-{name}", engine(name))
        frontend.tell(f"DELETE {PATH}/id-of-{name}", b"", 204)
        frontend.tell(f"POST {PATH}/id-of-{name}/test", EngineTrial(state="up", seconds=0.01))
    frontend.tell(f"POST {PATH}", engine(), 201)
    return frontend


def test_add_takes_the_key_from_a_file_and_looks_at_the_engine(
    connected: Any, known: StubFrontend, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    outcome = connected(
        *("engines", "add", "far", "desk", "http://10.0.0.9:8000", "--remote-model", "there", "--use", "chat"),
        *("--engine-key-file", str(tmp_path / "key"), "--weight", "3", "--fallback-order", "1"),
    )
    assert outcome.code == 0
    assert "far is answered by desk" in outcome.out
    assert "It is up (10 ms)." in outcome.out
    assert known.calls[0].body == {
        "model": "far",
        "name": "desk",
        "url": "http://10.0.0.9:8000",
        "remote_model": "there",
        "uses": ["chat"],
        "key": KEY,
        "weight": 3,
        "fallback_order": 1,
    }
    assert KEY not in outcome.out + outcome.err


def test_a_key_comes_through_standard_input(
    connected: Any, known: StubFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{KEY}\n".encode())))
    assert connected("engines", "add", "far", "desk", "http://h", "--engine-key-file", "-").code == 0
    assert known.calls[0].body["key"] == KEY  # type: ignore[index]


def test_a_key_is_no_argument_and_is_asked_for_only_at_a_terminal(connected: Any, known: StubFrontend) -> None:
    outcome = connected("engines", "add", "far", "desk", "http://h", "--engine-key", KEY)
    assert outcome.code == 64
    outcome = connected("engines", "add", "far", "desk", "http://h", "--ask-engine-key")
    assert "needs a terminal" in outcome.err
    assert known.calls == []


def test_an_engine_that_does_not_answer_ends_add_and_test_with_1(connected: Any, known: StubFrontend) -> None:
    trial = EngineTrial(state="misconfigured", reason="it wants a key (401)", seconds=0.002)
    known.tell(f"POST {PATH}/id-of-desk/test", trial)
    for arguments in (("add", "far", "desk", "http://h"), ("test", "desk")):
        outcome = connected("engines", *arguments)
        assert outcome.code == 1
        assert "It is misconfigured: it wants a key (401) (2 ms)." in outcome.out


def test_set_changes_what_is_named_and_keeps_the_rest(connected: Any, known: StubFrontend) -> None:
    assert connected("engines", "set", "far/spare", "--weight", "7").code == 0
    sent: Any = known.calls[1].body
    assert (sent["weight"], sent["fallback_order"], "key" in sent) == (7, 1, False)
    assert known.calls[1].headers["If-Match"] == '"1.5"'
    assert connected("engines", "set", "desk", "--no-engine-key", "--engine-url", "https://other/v1").code == 0
    sent = known.calls[3].body
    assert (sent["key"], sent["url"]) == ("", "https://other/v1")


def test_enable_disable_and_remove(connected: Any, known: StubFrontend) -> None:
    assert "not asked any more" in connected("engines", "disable", "desk").out
    assert known.calls[1].body["is_enabled"] is False  # type: ignore[index]
    assert connected("engines", "enable", "id-of-desk").code == 0
    assert connected("engines", "remove", "desk").code != 0  # nobody to ask
    assert "desk is forgotten" in connected("engines", "remove", "desk", "--yes").out


def test_list_and_show_tell_states_and_never_keys(connected: Any, known: StubFrontend) -> None:
    lines = connected("engines", "list").out.splitlines()
    assert lines[0].split() == ["MODEL", "NAME", "STATE", "ORDER", "SINCE", "URL", "REASON"]
    assert lines[2].split()[:4] == ["far", "spare", "Down", "1"]
    shown = connected("engines", "show", "desk").out
    assert "key" in shown
    assert "stored" in shown
    assert connected("engines", "show", "desk", "--json").json()["id"] == "id-of-desk"


def test_a_wrong_name_is_helped(connected: Any, known: StubFrontend, frontend: StubFrontend) -> None:
    assert "did you mean desk?" in connected("engines", "show", "dsk").err
    frontend.tell(f"GET {PATH}", [engine(), engine(model="near", id="x")])
    assert "may mean far/desk, near/desk" in connected("engines", "show", "desk").err


# The fleet's file.

FILE = """
rules: []
engines:
  - model: far
    name: desk
    url: http://10.0.0.9:8000
    key_env: DESK_KEY
  - model: far
    name: cloud
    url: https://api.example.com/v1
    remote_model: big
    uses: [chat, embeddings]
    key_file: cloud.key
    ca_file: ca.pem
    health_path: /health
    max_concurrent: 4
    weight: 2
    fallback_order: 1
    enabled: false
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "cloud.key").write_text("cloud-key\n")
    (tmp_path / "ca.pem").write_text("pem")
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    return path


def test_a_file_declares_engines_and_refers_to_their_keys(file: Path) -> None:
    desk, cloud = read_engines(str(file), {"DESK_KEY": KEY})
    assert (desk.model, desk.name, desk.key, desk.uses) == ("far", "desk", KEY, ["chat", "completion"])
    assert (cloud.key, cloud.ca, cloud.uses) == ("cloud-key", "pem", ["chat", "embeddings"])
    assert (cloud.max_concurrent, cloud.weight, cloud.fallback_order, cloud.is_enabled) == (4, 2, 1, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("rules: []", "engines: is missing"),
        ("engines: {}", "line 1: engines: is not a list"),
        ("engines:\n  - model: m\n    name: n", "line 2: engines[0].url: is missing"),
        ("engines:\n  - {model: m, name: n, url: u, key: secret}", "has no field 'key'"),
        ("engines:\n  - {model: m, name: n, url: u, key_env: NOT_SET}", "the variable NOT_SET is not set"),
        ("engines:\n  - {model: m, name: n, url: u, key_env: A, key_file: b}", "one of them is enough"),
        ("engines:\n  - {model: m, name: n, url: u, key_file: none}", "engines[0].key_file"),
        ("engines:\n  - {model: m, name: n, url: u, weight: many}", "engines[0].weight: is not a whole number"),
        ("engines:\n  - {model: m, name: n, url: u, uses: [cooking]}", "'cooking' is none of chat"),
        ("engines:\n  - {model: m, name: n, url: u, enabled: 7}", "must be true or false"),
        ("engines:\n  - {model: m, name: n, url: u}\n  - {model: m, name: n, url: v}", "m/n is there twice"),
    ],
)
def test_a_bad_file_is_refused_by_line_and_field(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        read_engines(str(path), {})
    assert words in refused.value.message


def test_changes_are_what_differs(file: Path) -> None:
    asks = read_engines(str(file), {"DESK_KEY": KEY})
    changes = changes_between([engine(), engine("old")], asks, prune=False)
    assert [ask.name for ask in changes.added] == ["cloud"]
    assert [view.name for view, _ in changes.changed] == ["desk"]  # perhaps with another key
    assert changes.removed == ()
    assert changes.lines() == ["+ far/cloud: https://api.example.com/v1"]
    pruned = changes_between([engine(weight=9), engine("old")], asks, prune=True)
    assert pruned.lines() == [
        "+ far/cloud: https://api.example.com/v1",
        "~ far/desk: http://10.0.0.9:8000",
        "- far/old",
    ]


def test_apply_carries_them_out_and_a_dry_run_does_not(
    connected: Any, known: StubFrontend, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_KEY", KEY)
    outcome = connected("engines", "apply", "-f", str(file), "--dry-run", "--prune")
    assert outcome.out.splitlines() == [
        "+ far/cloud: https://api.example.com/v1",
        "- far/spare",
        "Nothing was changed.",
    ]
    assert [call.method for call in known.calls] == ["GET"]
    assert connected("engines", "apply", "-f", str(file), "--prune").code == 0
    assert [call.method for call in known.calls[1:]] == ["GET", "POST", "PUT", "DELETE"]
    assert KEY not in outcome.out
