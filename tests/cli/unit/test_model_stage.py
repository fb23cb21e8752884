"""`corral models stage` and `corral nodes files`: which calls are made, and what people read."""

from typing import Any

import pytest

from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.frontend.serving.staging.decide.staged import ON_NODE, ON_NODE_BEFORE
from corral.wire.model_files import NodeFilesView, StagedModelView

ONE = "11111111-0000-4000-8000-000000000000"
TWO = "22222222-0000-4000-8000-000000000000"
ROUTE = "POST /api/v1/model-stagings"


def staged(make_target: Any, make_operation: Any, **rungs: str) -> Any:
    targets = [make_target(name, "success", because(ReasonCode.PROVEN, rung=rung)) for name, rung in rungs.items()]
    return make_operation(*targets, verb="stage", backend="big")


def test_nodes_are_found_by_name_and_the_outcome_is_told(
    connected: Any, frontend: Any, make_node: Any, make_target: Any, make_operation: Any
) -> None:
    frontend.tell_nodes(make_node("alpha", ONE), make_node("beta", TWO))
    operation = staged(make_target, make_operation, alpha=ON_NODE, beta=ON_NODE_BEFORE)
    frontend.tell(ROUTE, operation, 202)
    frontend.tell_operation(operation)

    outcome = connected("models", "stage", "big", "--node", "alpha", "--node", "beta")

    assert outcome.code == 0
    (call,) = [call for call in frontend.calls if call.method == "POST"]
    assert call.body == {"model": "big", "nodes": [ONE, TWO], "selector": {}, "all": False}
    assert "stage big to alpha, beta" in outcome.out
    assert "big: brought to alpha; was there already on beta." in outcome.out


def test_where_nothing_had_to_be_sent_that_is_said(
    connected: Any, frontend: Any, make_target: Any, make_operation: Any
) -> None:
    operation = staged(make_target, make_operation, alpha=ON_NODE_BEFORE)
    frontend.tell(ROUTE, operation, 202)
    frontend.tell_operation(operation)

    outcome = connected("models", "stage", "big", "--all")

    assert "big: was there already on alpha; nothing was sent." in outcome.out


@pytest.mark.parametrize("where", [[], ["--all", "--node", "alpha"], ["--label", "a=b", "--all"]])
def test_it_must_be_said_where(connected: Any, frontend: Any, where: list[str]) -> None:
    outcome = connected("models", "stage", "big", *where)

    assert outcome.code != 0
    assert "--label or --all" in outcome.err
    assert not frontend.calls


def test_files_of_a_node_are_listed(connected: Any, frontend: Any, make_node: Any) -> None:
    frontend.tell_nodes(make_node("alpha", ONE))
    when = {"revision": "", "staged_at": "2026-01-01T00:00:00Z", "used_at": "2026-01-02T00:00:00Z"}
    items = [
        StagedModelView(model="old", bytes=3 * 1024**3, files=2, **when),
        StagedModelView(model="new", bytes=1024, files=1, needed="a replica of it is there", **when),
    ]
    view = NodeFilesView(node_id=ONE, node="alpha", items=items, bytes=0, total_disk=100, available_disk=50)
    frontend.tell(f"GET /api/v1/nodes/{ONE}/files", view)

    outcome = connected("nodes", "files", "alpha")

    lines = [line.split() for line in outcome.out.splitlines()]
    assert [line[0] for line in lines] == ["MODEL", "old", "new"]
    assert "3.0 GiB" in outcome.out
    assert "may go" in outcome.out
    assert "a replica of it is there" in outcome.out


def test_a_node_without_files_says_so(connected: Any, frontend: Any, make_node: Any) -> None:
    frontend.tell_nodes(make_node("alpha", ONE))
    view = NodeFilesView(node_id=ONE, node="alpha", items=[], bytes=0, total_disk=0, available_disk=0)
    frontend.tell(f"GET /api/v1/nodes/{ONE}/files", view)

    assert "No frontend has brought files to alpha" in connected("nodes", "files", "alpha").out
