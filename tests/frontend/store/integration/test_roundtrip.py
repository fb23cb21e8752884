"""Any node, key and event survives the way through the database, to the microsecond and the last bit."""

import string
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.ids import Incarnation, NodeId, new_node_id
from corral.frontend.nodes.decide.node import (
    Capacity,
    Gpu,
    GpuCard,
    Node,
    NodeFacts,
    NodeStatus,
    NodeType,
    Peer,
    Suspicion,
)
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.store.liveness import AcceptedHeartbeat
from corral.frontend.nodes.store.nodes import Nodes
from corral.wire.labels import NodeLabels
from tests.kit.samples import a_node

SIZES = st.integers(0, 2**63 - 1)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
DURATIONS = st.timedeltas(timedelta(0), timedelta(days=10**5))
ANY_TEXT = st.text(max_size=40)
"""With NUL, but without lone surrogates; inside JSON both survive."""
WORDS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=40)
LABELS = st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=3)

FACTS = st.builds(
    NodeFacts,
    approved_at=st.none() | TIMES,
    approved_by=WORDS,
    suspicion=st.none() | st.sampled_from(Suspicion),
    draining_since=st.none() | TIMES,
    draining_by=WORDS,
    deregistered_at=st.none() | TIMES,
    last_heartbeat=TIMES,
    stated_interval=st.none() | DURATIONS,
    recent_gaps=st.lists(DURATIONS, max_size=5).map(tuple),
    no_responders_at=st.none() | TIMES,
    incarnation=WORDS.map(Incarnation),
)
OUT = "out-of-service"
CARDS = st.builds(
    GpuCard,
    id=ANY_TEXT.map("in-{}".format),
    name=ANY_TEXT,
    vendor=ANY_TEXT,
    total=SIZES,
    free=SIZES,
    shares_ram=st.booleans(),
) | st.builds(GpuCard, id=st.just(OUT), total=SIZES, free=SIZES, is_out=st.just(True))
NODES = st.builds(
    Node,
    id=st.builds(new_node_id),
    name=WORDS,
    type=st.sampled_from(NodeType),
    address=WORDS,
    http_address=WORDS,
    registered_from=WORDS,
    facts=FACTS,
    capacity=st.builds(Capacity, **dict.fromkeys(Capacity.__struct_fields__, SIZES)),
    gpu=st.builds(Gpu, vendor=WORDS, compute_capability=WORDS),
    cards=st.lists(CARDS, max_size=3).map(tuple),
    cards_out=st.frozensets(ANY_TEXT.map("out-{}".format), max_size=2).map(lambda ids: ids | {OUT}),
    capability=WORDS,
    labels=st.builds(NodeLabels, reported=LABELS, admin=LABELS, removed=st.frozensets(ANY_TEXT, max_size=3)),
    reported_max_replicas=SIZES,
    admin_max_replicas=st.none() | SIZES,
    reported_vram_budget=WORDS,
    admin_vram_budget=st.none() | WORDS,
    peer=st.none() | st.builds(Peer, version=ANY_TEXT, features=st.frozensets(ANY_TEXT, max_size=3)),
    secret_hash=st.text(string.hexdigits, min_size=32, max_size=32),
    problems=st.lists(ANY_TEXT, max_size=3).map(tuple),
    announced=st.none() | st.sampled_from(NodeStatus),
    created_at=TIMES,
    registered_at=TIMES,
    updated_at=TIMES,
    revision=st.integers(1, 2**62),
)

one_database_for_all_examples = settings(
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@one_database_for_all_examples
@given(node=NODES)
async def test_any_node_survives(nodes: Nodes, node: Node) -> None:
    node = _with_own_secret(node)
    assert await nodes.admit(node, events=[], policy=AdmissionPolicy())

    assert await nodes.get(node.id) == node
    assert await nodes.find_by_secret(node.secret_hash or "") == node
    assert node in await nodes.find_by_name(node.name)


@one_database_for_all_examples
@given(before=NODES, wanted=NODES)
async def test_any_node_becomes_any_other(nodes: Nodes, before: Node, wanted: Node) -> None:
    before = _with_own_secret(before)
    await nodes.admit(before, events=[], policy=AdmissionPolicy())
    after = _identified(wanted, before, revision=before.revision)
    assert await nodes.register(after, events=[])

    stored = _identified(wanted, before, revision=before.revision + 1)
    assert await nodes.get(before.id) == stored
    assert await nodes.beat([AcceptedHeartbeat(before=stored, node=stored, next_look=None)]) == {before.id}
    assert await nodes.get(before.id) == stored


def _with_own_secret(node: Node) -> Node:
    return replace(node, secret_hash=f"{node.secret_hash}{node.id}")


def _identified(node: Node, like: Node, *, revision: int) -> Node:
    """What a write keeps: who the node is, and what everyone was told."""
    return replace(
        node,
        id=NodeId(like.id),
        created_at=like.created_at,
        secret_hash=like.secret_hash,
        announced=like.announced,
        revision=revision,
    )


@pytest.mark.parametrize("text", ["", " ", "'; DROP TABLE nodes; --", "%", "\\", "a\tb\nc", "日本語", "\U0001f40e"])
async def test_awkward_words_survive(nodes: Nodes, text: str) -> None:
    node = a_node(name=text, address=text, approved_by=text, labels=NodeLabels(reported={text: text}))
    await nodes.admit(node, events=[], policy=AdmissionPolicy())

    assert await nodes.find_by_name(text) == [node]
