"""Machines join with codes that people hand out: how long, how often, and what a lost answer changes."""

import asyncio
import base64
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from corral.bus.port import Bus
from corral.frontend.nodes import dialling
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.invitations import SourceLimit, TooManyCalls
from corral.frontend.record.decide import EventKind
from corral.frontend.store.access_schema import invitations
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from corral.wire.joining import new_code, pin_of, proof_message
from tests.kit.asgi import AsgiAnswer
from tests.kit.clock import ManualClock
from tests.kit.frontend import REGISTRATION_TOKEN, TRUSTED_TOKEN, Frontend, frontend_config, open_frontend

WORKER = {"name": "w", "address": "10.0.0.9:50051"}


def hello(secret: str = "k" * 43) -> dict[str, object]:
    return {"version": "1", "features": ["node-secret"], "secret": secret, "incarnation": "one"}


async def invite(frontend: Frontend, **wish: object) -> Any:
    answer = await frontend.call("POST", "/api/v1/invitations", wish)
    assert answer.status == 201, answer.body
    return answer.json()


async def join(frontend: Frontend, code: str, *, secret: str = "k" * 43, **more: str) -> AsgiAnswer:
    body = {**WORKER, "token": code, "corral": hello(secret)}
    return await frontend.call("POST", "/api/node/register", body, key=code, **more)


async def listed(frontend: Frontend) -> Any:
    return (await frontend.call("GET", "/api/v1/invitations")).json()


def reason(answer: AsgiAnswer) -> str:
    document: Any = answer.json()
    return str(document["error"]["message"])


async def test_a_code_admits_one_machine_with_its_labels_and_is_stored_nowhere(frontend: Frontend) -> None:
    made = await invite(frontend, labels={"rack": "7"})
    answer: Any = (await join(frontend, made["code"])).json()
    assert answer["status"] == "pending"
    node: Any = (await frontend.call("GET", f"/api/v1/nodes/{answer['id']}")).json()
    assert (node["labels"]["rack"], node["invitation"], node["approved"]) == ("7", made["id"], False)
    assert len(node["fingerprint"]) == 19

    refused = await join(frontend, made["code"], secret="o" * 43)
    assert refused.status == 401
    assert "the join code was used already; ask for another one (corral nodes invite)" in reason(refused)
    [view] = await listed(frontend)
    assert (view["state"], view["uses"], "code" in view) == ("used", 1, False)
    async with frontend.control.context.database.look() as connection:
        [row] = (await connection.execute(invitations.select())).all()
    assert made["code"] not in str(row)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (AdmissionPolicy(), (True, False)),
        (AdmissionPolicy(auto_approve=True), (True, True)),
        (AdmissionPolicy(auto_approve=True, registration_by_token=False), (False, False)),
    ],
)
async def test_what_lets_machines_in_is_told_without_a_secret(
    database: Database,
    bus: Bus,
    clock: ManualClock,
    tmp_path: Path,
    policy: AdmissionPolicy,
    expected: tuple[bool, bool],
) -> None:
    config = frontend_config(tmp_path, admission=policy, public_url="https://fleet.example")
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as frontend:
        made = await invite(frontend)
        view: Any = (await frontend.call("GET", "/api/v1/joining")).json()
        assert (view["by_token"], view["approves_by_token"]) == expected
        shared = ("url", "nats_urls", "pin")
        assert [view[name] for name in shared] == [made[name] for name in shared]
        assert view["url"] == "https://fleet.example"
        assert not {REGISTRATION_TOKEN, TRUSTED_TOKEN, made["code"]} & set(map(str, view.values()))


async def test_a_code_may_approve(frontend: Frontend) -> None:
    made = await invite(frontend, approve=True)
    answer: Any = (await join(frontend, made["code"])).json()
    assert answer["status"] == "healthy"
    node: Any = (await frontend.call("GET", f"/api/v1/nodes/{answer['id']}")).json()
    assert node["approved_by"] == f"invitation {made['id']} of admin"


async def test_a_lost_answer_loses_nothing_also_after_the_code_ended(frontend: Frontend, clock: ManualClock) -> None:
    made = await invite(frontend)
    first: Any = (await join(frontend, made["code"])).json()
    await clock.advance(timedelta(days=2))
    again = await join(frontend, made["code"])
    document: Any = again.json()
    assert (again.status, document["id"]) == (201, first["id"])
    assert [view["uses"] for view in await listed(frontend)] == [1]


async def test_of_many_machines_with_one_code_one_is_admitted(frontend: Frontend) -> None:
    made = await invite(frontend)
    answers = await asyncio.gather(*(join(frontend, made["code"], secret=f"{number:x}" * 40) for number in range(8)))
    assert sorted(answer.status for answer in answers) == [201] + [401] * 7
    nodes: Any = (await frontend.call("GET", "/api/v1/nodes")).json()
    assert len(nodes["items"]) == 1


async def test_a_code_for_several_admits_so_many(frontend: Frontend) -> None:
    made = await invite(frontend, uses=2)
    assert [(await join(frontend, made["code"], secret=letter * 43)).status for letter in "abc"] == [201, 201, 401]


async def test_an_expired_and_a_revoked_code_say_so(frontend: Frontend, clock: ManualClock) -> None:
    expired, revoked = await invite(frontend, expires_in="1m"), await invite(frontend)
    assert (await frontend.call("DELETE", f"/api/v1/invitations/{revoked['id']}")).status == 204
    assert (await frontend.call("DELETE", f"/api/v1/invitations/{revoked['id']}")).status == 409
    assert (await frontend.call("DELETE", "/api/v1/invitations/nobody")).status == 404
    await clock.advance(timedelta(minutes=1))
    answers = [await join(frontend, made["code"]) for made in (expired, revoked)]
    assert [answer.status for answer in answers] == [401, 401]
    assert "expired at" in reason(answers[0])
    assert "was revoked" in reason(answers[1])


async def test_a_pending_node_that_comes_again_with_an_approving_code_is_approved(frontend: Frontend) -> None:
    await frontend.register({**WORKER, "corral": hello()})
    made = await invite(frontend, approve=True)
    answer: Any = (await join(frontend, made["code"])).json()
    assert answer["status"] == "healthy"
    assert [view["uses"] for view in await listed(frontend)] == [1]


async def test_a_removed_node_does_not_come_back_with_a_used_code(frontend: Frontend) -> None:
    made = await invite(frontend, approve=True)
    answer: Any = (await join(frontend, made["code"])).json()
    assert (await frontend.call("DELETE", f"/api/v1/nodes/{answer['id']}")).status == 204
    assert (await join(frontend, made["code"])).status == 401


async def test_a_code_is_for_workers_with_a_secret(frontend: Frontend) -> None:
    made = await invite(frontend)
    body = {**WORKER, "token": made["code"]}
    answer = await frontend.call("POST", "/api/node/register", body, key=made["code"])
    assert (answer.status, "secrets of their own" in reason(answer)) == (401, True)
    other = {**WORKER, "token": new_code(), "corral": hello()}
    answer = await frontend.call("POST", "/api/node/register", other, key=made["code"])
    assert (answer.status, reason(answer)) == (401, "two join codes")
    assert [view["uses"] for view in await listed(frontend)] == [0]


async def test_acts_are_on_the_record_without_the_code(frontend: Frontend) -> None:
    made = await invite(frontend)
    await join(frontend, made["code"])
    await frontend.call("DELETE", f"/api/v1/invitations/{made['id']}")
    events = [stored.event for stored in await frontend.control.context.record.events.newest(10)]
    kinds = {event.kind for event in events}
    assert {EventKind.INVITATION_CREATED, EventKind.INVITATION_REVOKED, EventKind.NODE_REGISTERED} <= kinds
    [registered] = [event for event in events if event.kind is EventKind.NODE_REGISTERED]
    assert registered.data["invitation"] == made["id"]
    assert made["code"] not in str(events)


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"uses": 0}, "uses"),
        ({"uses": 10_001}, "uses"),
        ({"expires_in": "soon"}, "expires_in"),
        ({"expires_in": "31d"}, "expires_in"),
        ({"expires_in": "0s"}, "expires_in"),
        ({"labels": {"": "x"}}, "labels"),
    ],
)
async def test_an_invitation_that_makes_no_sense_is_refused(frontend: Frontend, wish: Any, field: str) -> None:
    answer = await frontend.call("POST", "/api/v1/invitations", wish)
    document: Any = answer.json()
    assert (answer.status, document["error"]["field"]) == (400, field)


@asynccontextmanager
async def behind_a_gateway(
    database: Database, clock: ManualClock, bus: Bus, path: Path, **policy: Any
) -> AsyncIterator[Frontend]:
    config = frontend_config(path, socket=path / "control.sock", admission=AdmissionPolicy(**policy))
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as frontend:
        yield frontend


async def test_wrong_codes_of_one_source_are_limited(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    async with behind_a_gateway(database, clock, bus, tmp_path) as frontend:
        guesses = [await join(frontend, new_code(), x_forwarded_for="192.0.2.1") for _ in range(11)]
        assert [guess.status for guess in guesses] == [401] * 10 + [429]
        assert "no invitation of this fleet has this join code" in reason(guesses[0])
        assert (await join(frontend, new_code(), x_forwarded_for="192.0.2.2")).status == 401
        await clock.advance(timedelta(minutes=1))
        assert (await join(frontend, new_code(), x_forwarded_for="192.0.2.1")).status == 401


async def test_wrong_codes_at_the_same_time_are_limited_too(frontend: Frontend) -> None:
    guesses = await asyncio.gather(*(join(frontend, new_code()) for _ in range(30)))
    assert sorted(guess.status for guess in guesses) == [401] * 10 + [429] * 20


async def test_a_good_code_passes_whatever_others_behind_its_router_did(frontend: Frontend) -> None:
    made = await invite(frontend)
    for _ in range(11):
        await join(frontend, new_code())
    assert (await check(frontend, made["code"])).status == 200
    assert (await join(frontend, made["code"])).status == 201


def test_sources_beyond_those_that_are_kept_apart_push_out_the_oldest(clock: ManualClock) -> None:
    limit = SourceLimit(clock, most=1)
    for number in range(10_000):
        limit.take(f"source {number}", "calls")
    with pytest.raises(TooManyCalls):
        limit.take("source 0", "calls")  # which is now the newest
    assert limit.take("another", "calls") == 1
    with pytest.raises(TooManyCalls):
        limit.take("another", "calls")
    with pytest.raises(TooManyCalls):
        limit.take("source 0", "calls")
    assert limit.take("source 1", "calls") == 1


async def test_the_registration_token_can_be_turned_off(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    async with behind_a_gateway(database, clock, bus, tmp_path, registration_by_token=False) as frontend:
        key: Any = (await frontend.call("POST", "/api/v1/keys", {"name": "rack", "scopes": ["node"]})).json()
        for token in (REGISTRATION_TOKEN, key["key"]):
            assert (await frontend.register(WORKER, token=token)).status == 401
        assert (await frontend.register({**WORKER, "corral": hello("t" * 43)}, token=TRUSTED_TOKEN)).status == 201
        made = await invite(frontend)
        answer: Any = (await join(frontend, made["code"])).json()
        secret = "k" * 43
        body = {**WORKER, "token": secret, "corral": hello(secret)}
        assert (await frontend.call("POST", "/api/node/register", body, key=secret)).status == 201
        beat = await frontend.call("POST", f"/api/node/{answer['id']}/heartbeat", {}, key=secret)
        assert beat.status == 200


async def test_the_fleet_proves_who_it_is(frontend: Frontend) -> None:
    nonce = "n" * 32
    answer = await frontend.call("GET", f"/api/v1/fleet?nonce={nonce}", key="")
    proof: Any = answer.json()
    key = base64.b64decode(proof["key"])
    signature = base64.b64decode(proof["signature"])
    Ed25519PublicKey.from_public_bytes(key).verify(signature, proof_message(nonce, []))
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(key).verify(signature, proof_message("m" * 32, []))
    assert (await invite(frontend))["pin"] == pin_of(key)
    for bad in ("", "short", "n" * 129, "n" * 20 + "%0a", "n" * 20 + "-"):
        assert (await frontend.call("GET", f"/api/v1/fleet?nonce={bad}", key="")).status == 400


async def test_the_fleet_is_the_same_after_a_restart(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    key, pins = SecretsKey.generate(), set()
    for _ in range(2):
        async with open_frontend(database, clock, bus, frontend_config(tmp_path), key=key) as frontend:
            pins.add(frontend.control.context.nodes.fleet_key.pin)
    assert len(pins) == 1


async def check(frontend: Frontend, key: str, *addresses: str, source: str = "127.0.0.1") -> AsgiAnswer:
    return await frontend.call(
        "POST", "/api/v1/join-checks", {"addresses": list(addresses)}, key=key, x_forwarded_for=source
    )


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_control_calls_a_machine_that_asks_at_its_own_address_only(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(await reader.read(100))
        writer.close()

    with socket.create_server(("127.0.0.1", 0)) as unused:
        closed = unused.getsockname()[1]
    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, behind_a_gateway(database, clock, bus, tmp_path) as frontend:
        code = (await invite(frontend))["code"]
        there, not_there = f"127.0.0.1:{port}", f"127.0.0.1:{closed}"
        answer: Any = (await check(frontend, code, there, not_there)).json()
        assert answer["dialled"][0]["word"].encode() == await heard.get()
        assert re.search(r"can be used 1 more time until [-\d]+T[:\d]+Z$", answer["invitation"])
        assert answer["nats_urls"] == []
        foreign: Any = (await check(frontend, code, there, "192.0.2.9:5000", source="192.0.2.1")).json()
        assert "not tried" in foreign["dialled"][0]["problem"]
        assert "192.0.2.9" in foreign["dialled"][1]["problem"]
        unknown: Any = (await check(frontend, code, "no-such-name.invalid:5000")).json()
        assert "cannot find the name" in unknown["dialled"][0]["problem"]
        assert [view["uses"] for view in await listed(frontend)] == [0]
        assert heard.empty()
        # Through a proxy on this machine everybody seems to be here, and must not learn what listens.
        assert set(answer["dialled"][1]) == {"address", "word"}
        assert [call["address"] for call in answer["dialled"]] == [there, not_there]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_names_that_nobody_answers_for_keep_nobody_else_from_looking_up(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups cannot be ended: they go on for long after their time-out."""
    hanging, real = threading.Event(), socket.getaddrinfo
    running: list[str] = []

    def look_up(host: Any, *arguments: Any, **named: Any) -> Any:
        if str(host).endswith(".hangs"):
            running.append(host)
            hanging.wait(60)
        return real(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(dialling, "_PATIENCE_SECONDS", 0.05)
    async with behind_a_gateway(database, clock, bus, tmp_path) as frontend:
        code = (await invite(frontend))["code"]
        try:
            for number in range(15):
                names = [f"n{number}-{place}.hangs:5000" for place in range(4)]
                answer: Any = (await check(frontend, code, *names)).json()
                assert "did not find the name" in answer["dialled"][0]["problem"]
            assert len(running) == 4
            async with asyncio.timeout(10):
                await asyncio.get_running_loop().getaddrinfo("localhost", 80)
                literal: Any = (await check(frontend, code, "192.0.2.9:5000")).json()
            assert "not tried" in literal["dialled"][0]["problem"]
        finally:
            hanging.set()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_check_that_makes_no_sense_is_refused(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    async with behind_a_gateway(database, clock, bus, tmp_path) as frontend:
        for bad in ("", "host", "host:x", "host:80", "host:99999", "user@host", "h" * 400 + ":5000"):
            assert (await check(frontend, REGISTRATION_TOKEN, bad)).status == 400, bad
        assert (await check(frontend, REGISTRATION_TOKEN, *["127.0.0.1:5000"] * 5)).status == 400
        for stranger in ("nobody", new_code()):
            assert (await check(frontend, stranger)).status == 401
        statuses = [(await check(frontend, REGISTRATION_TOKEN)).status for _ in range(30)]
        assert statuses[-1] == 429
