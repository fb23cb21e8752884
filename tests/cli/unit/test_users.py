"""`corral users`, `login`, `logout`, `whoami` and `password`: what is sent, what is kept, and what is said."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from corral.cli.connection import LoginFile, read_login, write_login
from corral.processes.up_file import UpFile, UpKeys, UpPids, write_up_file
from corral.wire.users import LoggedIn, UserChanged, UserView, WhoAmI

DATA = Path(".local/share/corral")


@contextmanager
def descriptor(text: str) -> Iterator[str]:
    """The number of a descriptor from which this can be read."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    try:
        yield str(reading)
    finally:
        os.close(reading)


def a_user(name: str = "alice", **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": name,
        "role": "operator",
        "has_password": True,
        "is_disabled": False,
        "created_at": "2020-01-01T00:00:00Z",
        "created_by": "admin",
        "active_keys": 2,
    }
    return facts | changes


def logged_in(key: str = "corral_of-alice") -> LoggedIn:
    return LoggedIn(
        id="k1",
        name="login",
        scopes=["operator"],
        created_at="2026-01-01T00:00:00Z",
        created_by="alice (password)",
        expires_at="2026-01-01T12:00:00Z",
        revoked_at=None,
        state="active",
        user="alice",
        key=key,
    )


def test_list_shows_who_may_do_what(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/users", [UserView(**a_user()), UserView(**a_user("bob", is_disabled=True))])
    lines = connected("users", "list").out.splitlines()
    assert lines[0].split() == ["NAME", "ROLE", "STATE", "PASSWORD", "KEYS", "ADDED"]
    assert [line.split()[:5] for line in lines[1:]] == [
        ["alice", "operator", "Active", "yes", "2"],
        ["bob", "operator", "Disabled", "yes", "2"],
    ]


def test_create_reads_the_password_from_a_descriptor(connected: Any, frontend: Any) -> None:
    frontend.tell("POST /api/v1/users", UserView(**a_user()), 201)
    with descriptor("correct horse\nmore\n") as number:
        outcome = connected("users", "create", "alice", "--role", "operator", "--password-descriptor", number)
    assert outcome.out == "alice is added as operator; `corral login` logs in.\n"
    assert frontend.calls[0].body == {"name": "alice", "role": "operator", "password": "correct horse"}
    connected("users", "create", "alice", "--role", "operator", "--no-password")
    assert frontend.calls[1].body == {"name": "alice", "role": "operator", "password": ""}


@pytest.mark.parametrize("number", ["1022", "-1", "x"])
def test_a_descriptor_that_cannot_be_read_is_refused(connected: Any, frontend: Any, number: str) -> None:
    outcome = connected("users", "create", "alice", "--role", "viewer", "--password-descriptor", number)
    assert (outcome.code != 0, frontend.calls) == (True, [])
    assert "--password-descriptor" in outcome.err


def test_nobody_is_asked_where_there_is_no_terminal(connected: Any, frontend: Any) -> None:
    with Path(os.devnull).open() as nothing, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", nothing)
        outcome = connected("users", "password", "alice")
    assert "there is nobody to ask for the password: give a descriptor, such as 0" in outcome.err
    assert frontend.calls == []


@pytest.mark.parametrize("command", ["login", "password"])
def test_nobody_is_asked_for_a_name_where_there_is_no_terminal(connected: Any, frontend: Any, command: str) -> None:
    with Path(os.devnull).open() as nothing, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", nothing)
        outcome = connected(command, "--password-descriptor", "0")
    assert (outcome.code, outcome.out) == (64, "")
    assert outcome.err == "error: --user: is needed here, because there is no terminal to ask on\n"
    assert frontend.calls == []


def test_a_password_is_no_argument(connected: Any, frontend: Any) -> None:
    assert connected("login", "--user", "alice", "--password", "secret").code == 64
    assert frontend.calls == []


@pytest.mark.parametrize(
    ("arguments", "body", "said"),
    [
        (["role", "alice", "viewer"], {"role": "viewer"}, "alice is operator; 1 key is revoked.\n"),
        (["disable", "alice"], {"disabled": True}, "alice is disabled; 1 key is revoked.\n"),
        (["enable", "alice"], {"disabled": False}, "alice is enabled.\n"),
        (
            ["password", "alice", "--no-password"],
            {"password": ""},
            "alice has no password any more; 1 key is revoked.\n",
        ),
    ],
)
def test_changes_send_what_changes_and_say_what_ended(
    connected: Any, frontend: Any, arguments: list[str], body: object, said: str
) -> None:
    frontend.tell("PATCH /api/v1/users/alice", UserChanged(**a_user(), revoked_keys=["k1"]))
    assert connected("users", *arguments).out == said
    assert frontend.calls[0].body == body


def test_delete_names_gateways_that_may_still_take_the_keys(connected: Any, frontend: Any) -> None:
    changed = UserChanged(**a_user(), revoked_keys=["k1", "k2"], unconfirmed_gateways=["g1"])
    frontend.tell("DELETE /api/v1/users/alice", changed)
    outcome = connected("users", "delete", "alice", "--yes")
    assert outcome.out == "alice is deleted; 2 keys are revoked.\n"
    assert "1 gateways did not answer in time and may still take its keys: g1" in outcome.err


def test_a_login_is_kept_for_its_frontend_and_forgotten_by_a_logout(corral: Any, frontend: Any, home: Path) -> None:
    frontend.tell("POST /api/v1/login", logged_in(), 201)
    frontend.tell_nodes()
    with descriptor("correct horse") as number:
        outcome = corral("login", "--user", "alice", "--url", frontend.url, "--password-descriptor", number)
    assert outcome.out.startswith("alice is logged in (operator) until ")
    assert "corral_of-alice" not in outcome.out + outcome.err
    assert "Authorization" not in frontend.calls[0].headers
    assert (home / DATA / "login.json").stat().st_mode & 0o777 == 0o600

    assert corral("nodes", "list").code == 0  # the URL is remembered as well
    assert frontend.calls[-1].headers["Authorization"] == "Bearer corral_of-alice"
    frontend.tell("DELETE /api/v1/login", b"", 204)
    assert corral("logout").out == "alice is logged out.\n"
    assert read_login(home / DATA) is None
    assert corral("logout").out == "Nobody is logged in.\n"


def test_a_login_wins_over_up_json_and_is_sent_nowhere_else(corral: Any, frontend: Any, home: Path) -> None:
    data = home / DATA
    data.mkdir(parents=True)
    pids, keys = UpPids(frontend=1, control=1, nats=1), UpKeys(admin="corral_of-up", registration="r")
    write_up_file(data, UpFile(url=frontend.url, nats_url="", keys=keys, pids=pids))
    frontend.tell_nodes()
    write_login(data, LoginFile(url=frontend.url, user="alice", key="corral_of-alice"))
    corral("nodes", "list")
    assert frontend.calls[-1].headers["Authorization"] == "Bearer corral_of-alice"
    write_login(data, LoginFile(url="http://127.0.0.1:1", user="alice", key="corral_of-alice"))
    corral("nodes", "list")
    assert frontend.calls[-1].headers["Authorization"] == "Bearer corral_of-up"


def test_a_login_that_ended_says_how_to_go_on(corral: Any, frontend: Any, home: Path) -> None:
    (home / DATA).mkdir(parents=True)
    write_login(home / DATA, LoginFile(url=frontend.url, user="alice", key="corral_old"))
    frontend.tell("GET /api/v1/nodes", {"error": "x"}, 401)
    outcome = corral("nodes", "list")
    assert outcome.code == 77
    assert "`corral login --user alice` logs in again, `corral logout` forgets the login" in outcome.err
    frontend.tell("DELETE /api/v1/login", {"error": "x"}, 401)
    assert corral("logout").out == "alice is logged out.\n"


def test_a_wrong_password_is_said_plainly_and_nothing_is_kept(corral: Any, frontend: Any, home: Path) -> None:
    frontend.tell("POST /api/v1/login", {"error": {"code": "login_refused", "message": "x"}}, 401)
    with descriptor("wrong") as number:
        outcome = corral("login", "--user", "alice", "--url", frontend.url, "--password-descriptor", number)
    assert outcome.code == 77
    assert "the name or the password is wrong, or the user may not log in" in outcome.err
    assert read_login(home / DATA) is None


def test_one_s_own_password_is_changed_with_both(connected: Any, frontend: Any) -> None:
    frontend.tell("POST /api/v1/login/password", b"", 204)
    with descriptor("old password\nnew password\n") as number:
        outcome = connected("password", "--user", "alice", "--password-descriptor", number)
    assert outcome.out == "The password of alice is changed. Log in again.\n"
    assert frontend.calls[0].body == {"name": "alice", "password": "old password", "new_password": "new password"}
    assert "Authorization" not in frontend.calls[0].headers


def test_whoami_tells_user_key_and_permissions(connected: Any, frontend: Any) -> None:
    me = WhoAmI(
        key="login", key_id="k1", user="alice", scopes=["viewer"], permissions=["self"], models=None, expires_at=None
    )
    frontend.tell("GET /api/v1/me", me)
    text = connected("whoami").out
    assert "alice" in text
    assert "login (k1)" in text
    assert connected("whoami", "--json").json()["permissions"] == ["self"]


def test_keys_are_made_for_users_for_models_and_for_nobody(connected: Any, frontend: Any) -> None:
    frontend.tell("POST /api/v1/keys", logged_in(), 201)
    connected("keys", "create", "app", "--model", "a", "--model", "b", "--user", "alice")
    connected("keys", "create", "app", "--service")
    assert frontend.calls[0].body == {"name": "app", "scopes": ["inference"], "models": ["a", "b"], "user": "alice"}
    assert frontend.calls[1].body == {"name": "app", "scopes": ["inference"], "user": ""}
    assert connected("keys", "create", "app", "--service", "--user", "alice").code != 0
    assert len(frontend.calls) == 2
