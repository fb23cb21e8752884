"""How backends are confined, through the API: decisions, their record, what workers are told, and what they tell."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from corral.base.ids import FrontendId
from corral.bus.port import Bus
from corral.frontend.backends.policies import BackendPolicies
from corral.frontend.backends.store import BackendPolicyStore
from corral.frontend.record.feed import Feed
from corral.frontend.store.db import Database
from corral.wire.confinement import ConfinementWish, PolicyAsk
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock
from tests.kit.frontend import TRUSTED_TOKEN, Frontend

POLICIES = "/api/v1/backend-policies"
REPORT = {"is_on": True, "landlock": 7, "filters_calls": True, "cgroup": "v2", "missing": ["it is not root"]}


async def put(frontend: Frontend, backend: str, **ask: object) -> Any:
    return await frontend.call("PUT", f"{POLICIES}/{backend}", ask)


async def joined(frontend: Frontend, confinement: object) -> Any:
    hello = {"version": "1", "features": ["confinement"], "confinement": confinement}
    body = {"name": "w", "address": "10.0.0.1:50051", "corral": hello}
    answer: Any = (await frontend.register(body, token=TRUSTED_TOKEN)).json()
    return (await frontend.call("GET", f"/api/v1/nodes/{answer['id']}")).json()


async def finding(frontend: Frontend) -> Any:
    report: Any = (await frontend.call("GET", "/api/v1/doctor")).json()
    return next(finding for finding in report["findings"] if finding["check"] == "confinement")


async def test_a_decision_is_kept_replaced_and_taken_back_on_the_record(frontend: Frontend) -> None:
    policies = frontend.control.context.backends.policies
    assert (await put(frontend, "a", network="loopback")).status == 200
    assert (await policies.wish("a")).network == "loopback"
    decided = (await put(frontend, "a", is_confined=False, reason="needs perf")).json()
    assert (decided["is_confined"], decided["network"], decided["reason"]) == (False, "", "needs perf")
    assert [view["backend"] for view in (await frontend.call("GET", POLICIES)).json()] == ["a"]
    assert (await policies.wish("a")).is_off
    assert not (await policies.wish("b")).is_off

    assert (await frontend.call("DELETE", f"{POLICIES}/a")).status == 204
    assert (await frontend.call("DELETE", f"{POLICIES}/a")).status == 404
    assert (await frontend.call("GET", POLICIES)).json() == []
    events: Any = (await frontend.call("GET", "/api/v1/events?kind=backend.policy_changed")).json()
    told = [
        (event["data"]["before"], event["data"]["after"])
        for event in events
        if event["kind"] == "backend.policy_changed"
    ]
    assert sorted(told, key=str) == sorted(
        [
            (None, "confined, network loopback"),
            ("confined, network loopback", "not confined"),
            ("not confined", None),
        ],
        key=str,
    )


async def test_a_worker_is_told_what_restricts_other_names_and_never_what_exempts_them(frontend: Frontend) -> None:
    """The worker alone knows which program a name leads to; images choose their aliases themselves."""
    policies = frontend.control.context.backends.policies
    await put(frontend, "llama-cpp", network="none")
    await put(frontend, "perf", is_confined=False, reason="needs perf")

    assert await policies.wish("cuda12-llama-cpp") == ConfinementWish(most={"llama-cpp": "none"})
    assert await policies.wish("llama-cpp") == ConfinementWish(network="none")
    assert await policies.wish("perf") == ConfinementWish(is_off=True, most={"llama-cpp": "none"})


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        ({}, "network"),
        ({"network": "galaxy"}, "network"),
        ({"is_confined": False}, "reason"),
        ({"is_confined": False, "reason": "  "}, "reason"),
        ({"is_confined": False, "reason": "a\nb"}, "reason"),
        ({"is_confined": False, "reason": "x" * 501}, "reason"),
        ({"is_confined": False, "reason": "why", "network": "none"}, "network"),
    ],
)
async def test_a_decision_that_makes_no_sense_is_refused_with_its_field(
    frontend: Frontend, ask: dict[str, object], field: str
) -> None:
    answer = await put(frontend, "a", **ask)
    assert answer.status == 400
    assert answer.json()["error"]["message"].startswith(field)


async def test_what_a_machine_can_give_is_shown_with_its_node_and_by_the_doctor(frontend: Frontend) -> None:
    node = await joined(frontend, REPORT)
    assert (node["confinement"]["landlock"], node["confinement"]["missing"]) == (7, ["it is not root"])
    assert await finding(frontend) == {
        "check": "confinement",
        "level": "ok",
        "summary": "backends are confined on 1 node; not in every way: w; unless their network is none, they can use "
        "services of the worker's user on w",
        "remedy": "",
    }


async def test_a_machine_without_landlock_is_a_warning(frontend: Frontend) -> None:
    await joined(frontend, {**REPORT, "landlock": 0, "missing": ["the kernel has no Landlock"]})
    told = await finding(frontend)
    assert told["level"] == "warning"
    assert "w: the kernel has no Landlock" in told["summary"]


@pytest.mark.parametrize("nonsense", [None, 5, "text", {"landlock": "many"}, {"missing": [1]}])
async def test_a_worker_is_not_turned_away_for_what_it_says_of_confinement(
    frontend: Frontend, nonsense: object
) -> None:
    assert (await joined(frontend, nonsense))["confinement"] is None


async def test_what_a_worker_says_is_bounded(frontend: Frontend) -> None:
    told = (await joined(frontend, {"is_on": True, "missing": ["x" * 600] * 50, "landlock": 10**9}))["confinement"]
    assert (len(told["missing"]), len(told["missing"][0]), told["landlock"]) == (20, 500, 1000)


async def test_an_install_on_many_nodes_reads_the_decisions_once(
    database: Database, statements: Callable[[], AbstractContextManager[list[str]]]
) -> None:
    bus: Bus = MemoryBus(MemoryServer())
    policies = BackendPolicies(BackendPolicyStore(database), Feed(bus, FrontendId("f")), ManualClock())
    await policies.put("a", PolicyAsk(network="loopback"), by="test")
    with statements() as seen:
        wishes = await asyncio.gather(*(policies.wish("a") for _ in range(100)))

    assert {wish.network for wish in wishes} == {"loopback"}
    assert len(seen) <= 2  # the first asker's own, and one for all who came meanwhile
