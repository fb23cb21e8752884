"""`corral nodes drain`: how far it is, when it ends, and with which code."""

from collections.abc import Callable
from typing import Any

import pytest

from corral.cli.nodes import drains as drain_watch
from corral.wire.nodes import DrainedReplicaView, DrainView, NodeDetail
from corral.wire.plans import ActPlanView

ONE = "11111111-0000-4000-8000-000000000000"
DRAIN = f"/api/v1/nodes/{ONE}/drain"
MakeNode = Callable[..., NodeDetail]


@pytest.fixture(autouse=True)
def one_node(frontend: Any, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node("alpha", ONE, status="draining", draining=True)
    frontend.tell_nodes(node)
    frontend.tell(f"POST {DRAIN}", node)
    monkeypatch.setattr(drain_watch, "_LOOK_SECONDS", 0.0)


def a_drain(*steps: str, state: str = "draining", in_flight: int | None = 0) -> DrainView:
    replicas = [
        DrainedReplicaView(
            id=f"r{number}",
            model=f"m{number}",
            index=0,
            state="loaded",
            step=step,
            why="no other node can take its model" if step == "stays" else "",
            nodes={"beta": "is full"} if step == "stays" else {},
            in_flight=in_flight,
        )
        for number, step in enumerate(steps)
    ]
    return DrainView(
        node_id=ONE,
        node="alpha",
        state=state,
        requests_within_seconds=600,
        replicas_left=len(replicas),
        requests_left=None if in_flight is None else in_flight * len(replicas),
        stays=steps.count("stays"),
        replicas=replicas,
    )


def test_without_wait_it_is_begun_and_that_is_all(connected: Any) -> None:
    outcome = connected("nodes", "drain", "alpha")

    assert (outcome.code, outcome.out) == (0, f"alpha ({ONE}) is draining; its status is draining\n")


def test_it_is_watched_until_nothing_is_left(connected: Any, frontend: Any) -> None:
    drained = a_drain(state="drained")
    frontend.tell_in_turn(f"GET {DRAIN}", a_drain("moves", in_flight=2), a_drain("ends", in_flight=None), drained)

    outcome = connected("nodes", "drain", "alpha", "--wait")

    assert (outcome.code, outcome.out) == (0, "alpha is drained: nothing is left there\n")
    assert outcome.err.splitlines() == [
        "alpha: 1 replica and 2 requests left (m0 moves with 2 requests; requests get up to 10m 0s)",
        "alpha: 1 replica and an unknown number of requests left (m0 ends; requests get up to 10m 0s)",
    ]


def test_what_cannot_move_is_told_with_every_nodes_reason(connected: Any, frontend: Any) -> None:
    frontend.tell_in_turn(f"GET {DRAIN}", a_drain("moves", "stays"), a_drain("stays"))

    outcome = connected("nodes", "drain", "alpha", "--wait")

    assert outcome.code == 1
    assert outcome.out.splitlines()[1:] == [
        "m0 stays: no other node can take its model",
        "  beta is full",
        "`corral nodes drain alpha --force` ends what stays; `corral nodes resume` ends the drain",
    ]


def test_force_is_said_again_for_what_turns_out_to_stay(connected: Any, frontend: Any) -> None:
    frontend.tell_in_turn(f"GET {DRAIN}", a_drain("moves"), a_drain("stays"), a_drain("ends"), a_drain(state="drained"))

    outcome = connected("nodes", "drain", "alpha", "--wait", "--force", "--json")

    assert outcome.code == 0
    assert [call.path for call in frontend.calls if call.method == "POST"] == [f"{DRAIN}?force=true"] * 2


def test_watching_ends_after_its_time_and_when_somebody_resumes(connected: Any, frontend: Any) -> None:
    frontend.tell(f"GET {DRAIN}", a_drain("ends"))
    assert connected("nodes", "drain", "alpha", "--wait", "--within", "10ms").code == 2
    frontend.tell(f"GET {DRAIN}", a_drain("moves", state="not draining"))
    assert connected("nodes", "drain", "alpha", "--wait").code == 1
    assert connected("nodes", "drain", "alpha", "--within", "1s").code == 64


def test_a_plan_alone_begins_nothing(connected: Any, frontend: Any) -> None:
    frontend.tell(f"POST {DRAIN}/plan", ActPlanView(hash="h", text="Drain alpha: 1 stays.\nStays: m on alpha"))
    outcome = connected("nodes", "drain", "alpha", "--force", "--plan")
    assert (outcome.code, outcome.out) == (0, "Drain alpha: 1 stays.\nStays: m on alpha\n")
    assert frontend.calls[-1].body == {"force": True}
    assert [call.path for call in frontend.calls if call.method == "POST"] == [f"{DRAIN}/plan"]
    refused = connected("nodes", "drain", "alpha", "--plan", "--wait")
    assert (refused.code, "nothing to --wait for" in refused.err) == (64, True)
