"""Nodes that come back as somebody else, and crowds that wait for approval."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import nkeys
import pytest

from corral.bus.minting import Minter
from corral.bus.port import Bus
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.record.decide import EventKind
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from tests.kit.asgi import AsgiAnswer
from tests.kit.clock import ManualClock
from tests.kit.frontend import REGISTRATION_TOKEN, Frontend, frontend_config, open_frontend

ACCOUNT_SEED = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT).decode()
WORKER = {"name": "w", "address": "10.0.0.9:50051", "http_address": "10.0.0.9:50050"}
ELSEWHERE = {**WORKER, "address": "192.0.2.7:50051", "http_address": "192.0.2.7:50050"}
AGENT = {"name": "a", "node_type": "agent"}
CREDENTIALS = {"api_token", "nats_jwt", "nats_user_seed"}

Open = Callable[..., AbstractAsyncContextManager[Frontend]]


@pytest.fixture
def opened(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> Open:
    """A frontend behind a gateway, which mints NATS users, with this policy of admission."""

    @asynccontextmanager
    async def open_one(**policy: Any) -> AsyncIterator[Frontend]:
        config = frontend_config(
            tmp_path,
            admission=AdmissionPolicy(**policy),
            minter=Minter(ACCOUNT_SEED, timedelta(hours=24)),
            socket=tmp_path / "control.sock",
        )
        async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as frontend:
            yield frontend

    return open_one


async def register(frontend: Frontend, body: dict[str, Any], source: str = "10.0.0.9") -> AsgiAnswer:
    given = {**body, "token": REGISTRATION_TOKEN}
    return await frontend.call("POST", "/api/node/register", given, key=REGISTRATION_TOKEN, x_forwarded_for=source)


async def alarms(frontend: Frontend) -> list[Any]:
    stored = await frontend.control.context.record.events.newest(100)
    return [one.event for one in stored if one.event.kind is EventKind.NODE_SUSPECTED]


@pytest.mark.parametrize("auto_approve", [False, True])
@pytest.mark.parametrize(
    ("first", "again", "why"),
    [
        (WORKER, ELSEWHERE, "other_address"),
        (WORKER, {**WORKER, "http_address": "192.0.2.7:50050"}, "other_address"),
        (WORKER, {**WORKER, "node_type": "agent"}, "other_type"),
    ],
)
async def test_a_node_that_comes_back_changed_is_pending_and_gets_nothing(
    opened: Open, auto_approve: bool, first: dict[str, Any], again: dict[str, Any], why: str
) -> None:
    async with opened(auto_approve=auto_approve) as frontend:
        node_id = (await register(frontend, first)).json()["id"]
        if not auto_approve:
            await frontend.call("POST", f"/api/nodes/{node_id}/approve")
        for _ in range(3):
            back = (await register(frontend, again)).json()
            assert (back["id"], back["status"], CREDENTIALS & set(back)) == (node_id, "pending", set())
        (alarm,) = await alarms(frontend)
        shown = (await frontend.call("GET", f"/api/v1/nodes/{node_id}")).json()
        findings = (await frontend.call("GET", "/api/v1/doctor")).json()

        assert (alarm.node_id, alarm.data["why"]) == (node_id, why)
        assert alarm.data["before"]["address"] == first["address"]
        assert shown["problems"][0].startswith("only a person may approve it: it was approved, and came back")
        assert [one["level"] for one in findings["findings"] if one["check"] == "strangers"] == ["warning"]
        await frontend.call("POST", f"/api/nodes/{node_id}/approve")
        assert (await register(frontend, again)).json()["status"] == "healthy"


async def test_an_agent_that_comes_from_elsewhere_gets_no_key_and_the_old_one_ends(opened: Open) -> None:
    async with opened(auto_approve=True) as frontend:
        key = (await register(frontend, AGENT)).json()["api_token"]
        back = (await register(frontend, AGENT, source="192.0.2.7")).json()

        assert (back["status"], CREDENTIALS & set(back)) == ("pending", set())
        keys = [one for one in await frontend.control.context.access.key_ring.list() if one.node_id == back["id"]]
        assert key
        assert [one.revoked_at is not None for one in keys] == [True]


@pytest.mark.parametrize(
    ("before", "after"),
    [("10.0.0.9", "10.0.0.9"), ("10.0.0.9", "::ffff:10.0.0.9"), ("127.0.0.1", "::1"), ("127.0.0.1", "127.0.0.53")],
)
async def test_a_restart_on_the_same_machine_changes_nothing(opened: Open, before: str, after: str) -> None:
    async with opened(auto_approve=True) as frontend:
        first = (await register(frontend, WORKER, source=before)).json()
        again = (await register(frontend, WORKER, source=after)).json()

        assert (again["id"], again["status"]) == (first["id"], "healthy")
        assert await alarms(frontend) == []


async def test_another_machine_that_claims_the_same_address_is_pending_and_gets_nothing(opened: Open) -> None:
    async with opened(auto_approve=True) as frontend:
        first = (await register(frontend, WORKER)).json()
        assert CREDENTIALS & set(first)
        thief = (await register(frontend, WORKER, source="10.0.0.77")).json()

        assert (thief["id"], thief["status"], CREDENTIALS & set(thief)) == (first["id"], "pending", set())
        (alarm,) = await alarms(frontend)
        places = [alarm.data[state]["registered_from"] for state in ("before", "after")]
        assert (alarm.data["why"], places) == ("other_address", ["10.0.0.9", "10.0.0.77"])


async def test_addresses_that_change_can_be_trusted(opened: Open) -> None:
    async with opened(auto_approve=True, trusts_changed_addresses=True) as frontend:
        await register(frontend, WORKER)
        assert (await register(frontend, WORKER, source="10.0.0.77")).json()["status"] == "healthy"
        assert (await register(frontend, ELSEWHERE)).json()["status"] == "healthy"


async def test_a_namesake_is_not_approved_by_registering_twice(opened: Open) -> None:
    """Where every node is approved by itself."""
    hello = {"version": "1", "features": ["node-secret"], "secret": "s" * 40}
    async with opened(auto_approve=True) as frontend:
        await register(frontend, {**WORKER, "corral": hello})
        assert [(await register(frontend, WORKER)).json()["status"] for _ in range(2)] == ["pending", "pending"]


def newcomer(number: int) -> dict[str, Any]:
    return {"name": f"n{number}", "address": f"10.1.0.{number}:50051"}


async def test_pending_nodes_are_limited_per_source_and_in_all(opened: Open) -> None:
    async with opened(max_pending=5, max_pending_per_source=3) as frontend:
        statuses = [(await register(frontend, newcomer(number))).status for number in range(5)]
        assert statuses == [201, 201, 201, 429, 429]
        assert (await register(frontend, newcomer(0))).status == 201  # it waits already
        others = [await register(frontend, newcomer(number), source="2001:db8::1") for number in range(10, 12)]
        assert [one.status for one in others] == [201, 201]
        refused = await register(frontend, newcomer(20), source="10.0.0.3")

        assert refused.status == 429
        assert refused.json()["error"]["message"] == (
            "5 nodes wait for approval already; approve or remove some of them, or raise the frontend's setting "
            "max_pending_nodes"
        )
        findings = (await frontend.call("GET", "/api/v1/doctor")).json()["findings"]
        assert [one["level"] for one in findings if one["check"] == "strangers"] == ["warning"]
        waiting = (await frontend.call("GET", "/api/nodes")).json()
        await frontend.call("POST", f"/api/nodes/{waiting[0]['id']}/approve")
        assert (await register(frontend, newcomer(20), source="10.0.0.3")).status == 201


async def test_pending_nodes_that_never_beat_make_room_for_others(opened: Open, clock: ManualClock) -> None:
    async with opened(max_pending=2, pending_retention=timedelta(seconds=30)) as frontend:
        silent = (await register(frontend, newcomer(1))).json()["id"]
        beating = (await register(frontend, newcomer(2))).json()["id"]
        for _ in range(31):
            await clock.advance(timedelta(seconds=1))
            await frontend.control.context.nodes.hearing.tick()
        await frontend.call("POST", f"/api/node/{beating}/heartbeat", {}, key=REGISTRATION_TOKEN)

        assert (await register(frontend, newcomer(3))).status == 201
        assert (await frontend.call("GET", f"/api/nodes/{silent}")).status == 404
        assert (await frontend.call("GET", f"/api/nodes/{beating}")).status == 200
        events = [stored.event for stored in await frontend.control.context.record.events.newest(10)]
        assert [event.node_id for event in events if event.kind is EventKind.NODE_EXPIRED] == [silent]


async def test_time_in_which_nobody_could_be_heard_expires_nothing(opened: Open, clock: ManualClock) -> None:
    async with opened(pending_retention=timedelta(minutes=10)) as frontend:
        await register(frontend, newcomer(1))
        await clock.advance(timedelta(hours=5))  # control was away
        await frontend.control.context.nodes.hearing.tick()

        assert await frontend.control.context.nodes.admission.expire_pending() == 0


async def test_a_suspect_that_was_approved_once_does_not_expire(opened: Open, clock: ManualClock) -> None:
    async with opened(auto_approve=True, pending_retention=timedelta(seconds=30)) as frontend:
        await register(frontend, WORKER)
        await register(frontend, ELSEWHERE)
        for _ in range(31):
            await clock.advance(timedelta(seconds=1))
            await frontend.control.context.nodes.hearing.tick()

        assert await frontend.control.context.nodes.admission.expire_pending() == 0
