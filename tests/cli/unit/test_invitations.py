"""`corral nodes invite`: what to paste on the new machine, and the code shown once."""

import json
import socket
from typing import Any

import pytest

from corral.cli.nodes import invitations
from corral.cli.nodes.invitations import nats_problem, url_from_elsewhere
from corral.wire.joining import CreatedInvitation, InvitationView

from .conftest import Call, StubFrontend

PIN = "a" * 32
CODE = "K7QM-2XVD-9PTR-4HBN-0S3C"


def view(id: str = "ab12", **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": id,
        "state": "open",
        "labels": {"rack": "7"},
        "approve": False,
        "max_uses": 1,
        "uses": 0,
        "created_at": "2020-01-01T00:00:00Z",
        "created_by": "admin",
        "expires_at": "2099-01-01T00:00:00Z",
        "revoked_at": None,
    }
    return {**facts, **changes}


def parts(outcome: Any) -> tuple[int, str, str]:
    return outcome.code, outcome.out, outcome.err


def made(url: str = "http://127.0.0.1:8080") -> CreatedInvitation:
    return CreatedInvitation(**view(), code=CODE, pin=PIN, url=url, nats_urls=["nats://127.0.0.1:4222"])


def test_invite_prints_two_things_to_paste(
    connected: Any, frontend: StubFrontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invitations, "_answers", lambda host, port: True)
    frontend.tell("POST /api/v1/invitations", made(), 201)
    code, out, err = parts(
        connected("nodes", "invite", "--at", "https://10.0.0.1:8080", "--label", "rack=7", "--uses", "3")
    )
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("  ")] == [
        f"  corral worker --join 'https://10.0.0.1:8080#{PIN}'",
        f"  {CODE}",
    ]
    assert "3 machines" in err
    assert "python3 tools/bootstrap.py setup" in err
    [call] = frontend.calls
    assert isinstance(call, Call)
    assert call.body == {"uses": 3, "labels": {"rack": "7"}}


def test_invite_in_json_has_the_command(connected: Any, frontend: StubFrontend) -> None:
    frontend.tell("POST /api/v1/invitations", made(), 201)
    code, out, err = parts(connected("nodes", "invite", "--json", "--approve"))
    document = json.loads(out)
    assert (code, document["code"], document["command"].startswith("corral worker --join")) == (0, CODE, True)
    assert "no other machine reaches it" in err


@pytest.mark.parametrize("url", ["10.0.0.1", "ftp://a", "http://a,http://b"])
def test_a_bad_url_is_refused_before_a_code_is_made(connected: Any, frontend: StubFrontend, url: str) -> None:
    code, _, err = parts(connected("nodes", "invite", "--at", url))
    assert (code, "--at" in err, frontend.calls) == (64, True, [])


def test_other_machines_are_told_an_address_that_they_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "_own_address", lambda: invitations.parsed_ip("10.0.0.5"))
    for url, public, expected in (
        ("https://fleet.example", "http://127.0.0.1:8080", "https://fleet.example"),
        ("http://127.0.0.1:9000", "http://0.0.0.0:9000", "http://10.0.0.5:9000"),
        ("http://127.0.0.1:9000", "http://0.0.0.0:0", "http://10.0.0.5:9000"),
        ("http://127.0.0.1:9000", "https://0.0.0.0:8443", "https://10.0.0.5:8443"),
        ("http://localhost:9000", "http://[::]:9000", "http://10.0.0.5:9000"),
        ("http://127.0.0.1:9000", "http://192.168.1.2:9000", "http://192.168.1.2:9000"),
        ("http://127.0.0.1:9000", "http://[2001:db8::1]:9000", "http://[2001:db8::1]:9000"),
        ("http://10.1.1.1:9000", "https://corral.example", "https://corral.example"),
    ):
        assert url_from_elsewhere(url, public) == (expected, "")
    monkeypatch.setattr(invitations, "_own_address", lambda: None)
    assert "name it with --at" in url_from_elsewhere("http://127.0.0.1:1", "http://0.0.0.0:1")[1]


@pytest.mark.parametrize(
    ("url", "nats_urls", "problem"),
    [
        ("http://10.0.0.5:8080", ["nats://127.0.0.1:4222"], ""),  # it listens everywhere
        ("http://10.0.0.5:8080", ["nats://10.0.0.9:4222", "nats://10.0.0.5:4222"], ""),
        ("http://127.0.0.1:8080", ["nats://127.0.0.1:4333"], ""),  # the warning about the frontend says it
        ("http://10.0.0.5:8080", ["nats://127.0.0.1:4333"], "NATS at 10.0.0.5:4333, where nothing answers; start it"),
        ("http://10.0.0.5:8080", ["nats://10.0.0.9:4222"], "nats_advertise_url"),
        ("http://10.0.0.5:8080", [], "CORRAL_NATS_URL"),
    ],
)
def test_who_invites_is_told_that_nats_will_not_be_reached(
    monkeypatch: pytest.MonkeyPatch, url: str, nats_urls: list[str], problem: str
) -> None:
    monkeypatch.setattr(invitations, "_answers", lambda host, port: (host, port) == ("10.0.0.5", 4222))
    said = nats_problem(url, nats_urls)
    assert problem in said if problem else not said


def test_a_port_answers_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert invitations._answers("127.0.0.1", port)
    assert not invitations._answers("127.0.0.1", port)


def test_a_machine_without_a_network_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert invitations._own_address() is None


def test_invitations_lists_open_ones(connected: Any, frontend: StubFrontend) -> None:
    views = [InvitationView(**view()), InvitationView(**view("cd34", state="used", uses=1))]
    frontend.tell("GET /api/v1/invitations", views)
    assert "cd34" not in connected("nodes", "invitations").out
    assert "cd34" in connected("nodes", "invitations", "--all").out


def test_uninvite_revokes(connected: Any, frontend: StubFrontend) -> None:
    frontend.tell("DELETE /api/v1/invitations/ab12", b"", 204)
    assert parts(connected("nodes", "uninvite", "ab12"))[:2] == (0, "Invitation ab12 is revoked.\n")
