"""`corral keys`: a key is shown once, and only where it belongs."""

import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import Conflict, NotFound
from corral.cli.access import keys as keys_command
from corral.cli.access.keys import choose_key
from corral.processes.exit_codes import ExitCode
from corral.processes.up_file import UpFile, UpKeys, UpPids, write_up_file
from corral.wire.keys import CreatedKey, KeyView

from .conftest import Call, StubFrontend


def key(id: str, name: str, state: str = "active", **changes: Any) -> KeyView:
    facts = {
        "scopes": ["inference"],
        "created_at": "2020-01-01T00:00:00Z",
        "created_by": "admin",
        "expires_at": None,
        "revoked_at": None,
        **changes,
    }
    return KeyView(id=id, name=name, state=state, **facts)


def test_create_prints_the_key_alone_on_standard_output(connected: Any, frontend: Any) -> None:
    made = CreatedKey(
        id="abc",
        name="ci",
        scopes=["inference", "node"],
        created_at="2026-01-01T00:00:00Z",
        created_by="admin",
        expires_at=None,
        revoked_at=None,
        state="active",
        key="corral_new",
    )
    frontend.tell("POST /api/v1/keys", made, 201)
    outcome = connected("keys", "create", "ci", "--scope", "inference", "--scope", "node", "--expires", "30d")
    assert outcome.out == "corral_new\n"
    assert outcome.err == "Key abc (inference, node) is valid until it is revoked. It is not shown again.\n"
    assert frontend.calls[0].body == {"name": "ci", "scopes": ["inference", "node"], "expires_in": "30d"}
    assert connected("keys", "create", "ci", "--json").json()["key"] == "corral_new"
    assert frontend.calls[1].body["scopes"] == ["inference"]


def test_list_shows_what_still_works(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/keys", [key("1", "ci"), key("2", "old", "revoked"), key("3", "gone", "expired")])
    lines = connected("keys", "list").out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "USER", "SCOPES", "STATE", "EXPIRES", "USED", "MADE"]
    assert [line.split()[:5] for line in lines[1:]] == [["1", "ci", "-", "inference", "Active"]]
    assert len(connected("keys", "list", "--all").out.splitlines()) == 4
    assert len(connected("keys", "list", "--all", "--json").json()["items"]) == 3


def test_an_unknown_scope_is_refused(connected: Any) -> None:
    outcome = connected("keys", "create", "ci", "--scope", "root")
    assert outcome.code == 64
    assert "'root' is not one of 'admin', 'operator', 'viewer', 'inference', 'node', 'gateway'" in outcome.err


def test_what_is_no_duration_is_refused_by_the_name_of_its_flag(connected: Any, frontend: Any) -> None:
    outcome = connected("keys", "create", "ci", "--expires", "soon")
    assert (outcome.code, frontend.calls) == (64, [])
    assert "'--expires': 'soon' is not a duration" in outcome.err


def test_what_the_frontend_refuses_is_told_with_its_field(connected: Any, frontend: Any) -> None:
    message = "expires_in: must be more than 0 and at most 3650d, got 0s"
    frontend.tell("POST /api/v1/keys", {"error": {"code": "invalid_input", "message": message}}, 400)
    outcome = connected("keys", "create", "ci", "--expires", "0s")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", f"error: {message}\n")


def test_revoke_takes_an_id_or_a_name(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/keys", [key("1", "ci")])
    frontend.tell("DELETE /api/v1/keys/1", b"", 204)
    assert connected("keys", "revoke", "ci").out == "Key 1 (ci) is revoked.\n"
    assert connected("keys", "revoke", "1", "--json").json() == {"revoked": "1"}


class TestWhichKey:
    KNOWN = (key("1", "ci"), key("2", "ci"), key("3", "old", "revoked"), key("4", "3"))

    def test_an_id_wins(self) -> None:
        assert choose_key(self.KNOWN, "3").name == "old"

    def test_an_ambiguous_name_lists_the_ids(self) -> None:
        with pytest.raises(Conflict, match="ci may mean 1, 2; name one by its id"):
            choose_key(self.KNOWN, "ci")

    def test_the_name_of_a_revoked_key_is_unknown(self) -> None:
        with pytest.raises(NotFound, match="there is no key old; `corral keys list` shows all"):
            choose_key(self.KNOWN, "old")


def test_reset_needs_a_database_that_is_there(corral: Any, tmp_path: Path) -> None:
    outcome = corral("keys", "reset-admin", "--data", str(tmp_path / "none"))
    assert outcome.code == 1
    assert outcome.err == (
        f"error: there is no database {tmp_path}/none/corral.db; name its place with --data or --database\n"
    )
    assert not (tmp_path / "none").exists()


class TestResetBesideAFleet:
    @pytest.fixture
    def data(self, home: Path, frontend: StubFrontend) -> Path:
        data = home / "data"
        data.mkdir(mode=0o700)
        (data / "corral.db").touch()
        pids = UpPids(frontend=1, control=1, gateways=[], nats=1, workers=[])
        keys = UpKeys(admin="corral_old", registration="corral_token")
        write_up_file(data, UpFile(url=frontend.url, nats_url="nats://x", keys=keys, pids=pids))
        return data

    def test_it_answers_when_the_running_fleet_accepts_the_key(
        self, corral: Any, frontend: StubFrontend, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keys_command, "_PAUSE_SECONDS", 0)
        refusals = [(401, b"{}"), (401, b"{}"), (503, b"{}")]
        frontend.tell("GET /api/v1/keys", [])
        accept = frontend.answer

        def answer(call: Call) -> tuple[int, bytes]:
            return refusals.pop(0) if refusals else accept(call)

        monkeypatch.setattr(frontend, "answer", answer)
        outcome = corral("keys", "reset-admin", "--data", str(data))
        assert outcome.code == 0
        assert refusals == []
        assert frontend.calls[-1].headers["Authorization"] == f"Bearer {outcome.out.strip()}"
        assert "does not accept" not in outcome.err

    def test_it_says_so_when_the_fleet_does_not_accept_the_key_in_time(
        self, corral: Any, frontend: StubFrontend, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keys_command, "_ACCEPTED_WITHIN", timedelta(milliseconds=200))
        monkeypatch.setattr(keys_command, "_PAUSE_SECONDS", 0)
        frontend.tell("GET /api/v1/keys", {}, status=401)
        outcome = corral("keys", "reset-admin", "--data", str(data))
        assert outcome.code == 0
        assert f"{frontend.url} does not accept the new key yet" in outcome.err


def test_a_nats_account_that_corral_did_not_make_is_left_to_its_tool(corral: Any, tmp_path: Path) -> None:
    for words, sentence in (
        (("--data", str(tmp_path)), f"no `corral up` has made a NATS account in {tmp_path / 'nats'}"),
        ((str(tmp_path),), f"`corral keys nats` has made no keys in {tmp_path}"),
    ):
        outcome = corral("keys", "rotate-nats", *words)
        assert (outcome.code, outcome.out) == (ExitCode.FAILED, "")
        assert outcome.err.startswith(f"error: {sentence}")
        assert "CORRAL_NATS_ACCOUNT_SEED" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_keys_for_servers_of_ones_own_are_replaced_with_all_files_made_of_them(corral: Any, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    corral("keys", "nats", str(folder))
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    outcome = corral("keys", "rotate-nats", str(folder))

    after = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert (outcome.code, len(after)) == (ExitCode.OK, len(before))
    assert not set(before.values()) & set(after.values())
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()} == {0o600}
