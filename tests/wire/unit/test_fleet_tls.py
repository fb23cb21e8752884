"""Names behind a worker's door, and roles in certificates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.fleet_tls import (
    FILE_SERVER,
    FleetRole,
    can_be_named,
    file_server_name,
    port_name,
    role_of_uri,
    role_uri,
    target_of,
)

IDS = st.uuids().map(str)


@given(IDS, st.integers(1, 65535))
def test_a_name_leads_to_the_port_that_it_was_made_for(node_id: str, port: int) -> None:
    assert target_of(port_name(node_id, port)) == port
    assert target_of(file_server_name(node_id)) == FILE_SERVER


@given(st.text())
def test_any_text_is_a_name_or_leads_nowhere(text: str) -> None:
    target = target_of(text)
    assert target is None or target == FILE_SERVER or (isinstance(target, int) and 1 <= target <= 65535)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "p0.n.node.corral.internal",
        "p65536.n.node.corral.internal",
        "p080.n.node.corral.internal",
        "p80.node.corral.internal",
        "p80.a.b.node.corral.internal",
        "p80.n.node.corral.internal.evil.example",
        "http.n.node.corral.example",
        "P80.n.node.corral.internal",
        "p80.n.node.corral.internal\n",
    ],
)
def test_other_names_lead_nowhere(name: str) -> None:
    assert target_of(name) is None


@given(st.sampled_from(FleetRole), IDS)
def test_a_role_is_read_as_it_was_written(role: FleetRole, id: str) -> None:
    assert role_of_uri(role_uri(role)) is role
    assert role_of_uri(role_uri(role, id)) is role


@pytest.mark.parametrize("uri", ["", "control", "corral://", "corral://root", "https://control", "corral://nodes/x"])
def test_other_uris_have_no_role(uri: str) -> None:
    assert role_of_uri(uri) is None


@pytest.mark.parametrize(
    ("node_id", "is_possible"),
    [("8f14e45f-ceea-467f-a8e9-1b5f0ea5a2d1", True), ("a.b", False), ("*", False), ("", False), ("x" * 64, False)],
)
def test_only_an_id_that_can_be_a_label_is_named(node_id: str, is_possible: bool) -> None:
    assert can_be_named(node_id) is is_possible
