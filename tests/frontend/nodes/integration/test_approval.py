"""Approval is a fact of its own: each way around it that is known from LocalAI, tried."""

from datetime import timedelta
from typing import Any

import pytest

from tests.kit.clock import ManualClock
from tests.kit.frontend import REGISTRATION_TOKEN, TRUSTED_TOKEN, Frontend

WORKER = {"name": "newcomer", "address": "10.0.0.9:50051"}


async def joined(frontend: Frontend, **change: object) -> str:
    answer = await frontend.register({**WORKER, **change})
    assert answer.status == 201
    document: Any = answer.json()
    return str(document["id"])


async def status(frontend: Frontend, node_id: str) -> str:
    document: Any = (await frontend.call("GET", f"/api/nodes/{node_id}")).json()
    return str(document["status"])


async def own(frontend: Frontend, node_id: str, act: str, method: str = "POST") -> int:
    return (await frontend.call(method, f"/api/node/{node_id}{act}", key=REGISTRATION_TOKEN)).status


@pytest.mark.parametrize("act", ["/resume", "/drain", "/deregister", "/heartbeat"])
async def test_no_act_of_the_worker_itself_approves_it(frontend: Frontend, act: str) -> None:
    node_id = await joined(frontend)

    assert await own(frontend, node_id, act) == 200
    await frontend.settle()

    assert await status(frontend, node_id) == "pending"


@pytest.mark.parametrize("first", ["/resume", "/drain", "/deregister"])
async def test_registering_again_after_any_act_approves_nothing(frontend: Frontend, first: str) -> None:
    node_id = await joined(frontend)
    await own(frontend, node_id, first)
    await frontend.settle()

    assert await joined(frontend) == node_id
    assert await status(frontend, node_id) == "pending"


async def test_the_delete_form_of_deregister_approves_nothing(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    assert await own(frontend, node_id, "", method="DELETE") == 200
    assert await joined(frontend) == node_id
    assert await status(frontend, node_id) == "pending"


async def test_silence_and_a_return_approve_nothing(frontend: Frontend, clock: ManualClock) -> None:
    node_id = await joined(frontend)
    for _ in range(80):
        await clock.advance(timedelta(seconds=1))
        await frontend.settle()
    assert await status(frontend, node_id) == "pending"

    await own(frontend, node_id, "/heartbeat")
    await frontend.settle()
    assert await status(frontend, node_id) == "pending"

    await joined(frontend)
    assert await status(frontend, node_id) == "pending"


async def test_a_person_s_resume_or_drain_approves_nothing(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    for act in ("drain", "resume"):
        assert (await frontend.call("POST", f"/api/nodes/{node_id}/{act}")).status == 200
        assert await status(frontend, node_id) == "pending"


async def test_only_approval_makes_it_healthy_and_it_lasts(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    assert (await frontend.call("POST", f"/api/nodes/{node_id}/approve")).status == 200
    assert await status(frontend, node_id) == "healthy"

    await own(frontend, node_id, "/deregister")
    assert await status(frontend, node_id) == "offline"
    await joined(frontend)
    assert await status(frontend, node_id) == "healthy"


async def test_the_registration_token_cannot_approve(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    answer = await frontend.call("POST", f"/api/nodes/{node_id}/approve", key=REGISTRATION_TOKEN)
    assert answer.status == 401
    assert await status(frontend, node_id) == "pending"


async def test_a_trusted_token_in_one_place_only_approves_nothing(frontend: Frontend) -> None:
    for header, body in ((TRUSTED_TOKEN, REGISTRATION_TOKEN), (REGISTRATION_TOKEN, TRUSTED_TOKEN)):
        answer = await frontend.call("POST", "/api/node/register", {**WORKER, "token": body}, key=header)
        document: Any = answer.json()
        assert document["status"] == "pending"


async def test_the_trusted_token_approves_at_once(frontend: Frontend) -> None:
    document: Any = (await frontend.register(WORKER, token=TRUSTED_TOKEN)).json()
    assert document["status"] == "healthy"


async def test_the_name_of_an_approved_node_with_a_secret_admits_nobody(frontend: Frontend) -> None:
    secret = "s" * 43
    hello = {"version": "1", "features": ["node-secret"], "secret": secret}
    owner = await joined(frontend, corral=hello)
    await frontend.call("POST", f"/api/nodes/{owner}/approve")

    stranger = await joined(frontend, address="6.6.6.6:1")

    assert stranger != owner
    assert await status(frontend, stranger) == "pending"
    alarms = [event for event in await events(frontend) if event["kind"] == "node.impersonation"]
    assert [alarm["data"]["namesake"] for alarm in alarms] == [owner]
    document: Any = (await frontend.call("GET", f"/api/nodes/{owner}")).json()
    assert document["address"] == WORKER["address"]
    report: Any = (await frontend.call("GET", "/api/v1/doctor")).json()
    levels = {finding["check"]: finding["level"] for finding in report["findings"]}
    assert levels["strangers"] == "warning"


async def test_a_removed_node_that_comes_back_is_pending_again(frontend: Frontend) -> None:
    node_id = await joined(frontend)
    await frontend.call("POST", f"/api/nodes/{node_id}/approve")
    await frontend.call("DELETE", f"/api/nodes/{node_id}")

    again = await joined(frontend)

    assert again != node_id
    assert await status(frontend, again) == "pending"


async def events(frontend: Frontend) -> list[dict[str, Any]]:
    document: Any = (await frontend.call("GET", "/api/v1/events?after=0&limit=1000")).json()
    return list(document)
