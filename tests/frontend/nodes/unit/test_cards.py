"""GPUs one by one: what is taken of a node's report, and what people decide about them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.frontend.nodes.decide.liveness import Hearing, Heartbeat, LivenessPolicy, beat
from corral.frontend.nodes.decide.node import Capacity, Node, ReportedCard, put_card, report_cards
from corral.frontend.nodes.decide.registration import AdmissionPolicy, Registration, register_again
from corral.frontend.nodes.decide.reports import MOST_CARDS, read_cards
from corral.frontend.nodes.shapes import read_heartbeat, read_registration
from corral.wire.registration import CorralHello, RegisterRequest
from tests.kit.samples import a_node

GIB = 1024**3
T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(minutes=1)
A = ReportedCard(id="GPU-a", index=1, name="NVIDIA L4", vendor="nvidia", total=24 * GIB, free=20 * GIB)
B = ReportedCard(id="GPU-b", name="NVIDIA L4", vendor="nvidia", total=24 * GIB, free=22 * GIB)


def with_cards(*cards: ReportedCard, **fields: object) -> Node:
    return report_cards(a_node(**fields), cards)


def frees(node: Node) -> dict[str, int]:
    return {card.id: card.free // GIB for card in node.cards}


def test_a_report_is_read_as_it_is() -> None:
    document = [
        {"id": "GPU-a", "index": 1, "name": "NVIDIA L4", "vendor": "nvidia", "total": 24 * GIB, "free": 20 * GIB},
        {"id": "0000:03:00.0", "total": 16 * GIB, "shares_ram": True, "news": [1]},
    ]
    assert read_cards(document) == ((A, ReportedCard(id="0000:03:00.0", total=16 * GIB, shares_ram=True)), ())


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("GPU-a", 'corral.cards[0]: expected an object, got "GPU-a"; ignored'),
        ({}, "corral.cards[0]: id: expected letters, digits and . _ : - (at most 128), got null; ignored"),
        ({"id": "../etc"}, "corral.cards[0]: id: expected letters, digits"),
        ({"id": "GPU-a\n"}, "corral.cards[0]: id: expected letters, digits"),
        ({"id": "x" * 129}, f'got "{"x" * 39}…; ignored'),
        ({"id": "a"}, "corral.cards[0]: total: expected a number of bytes, got null; ignored"),
        ({"id": "a", "total": 0}, "corral.cards[0]: total: expected a number of bytes, got 0; ignored"),
        ({"id": "a", "total": -1}, "corral.cards[0]: total: expected a number of bytes, got -1; ignored"),
        ({"id": "a", "total": True}, "corral.cards[0]: total: expected a number of bytes, got true; ignored"),
        ({"id": "a", "total": 2**63}, "corral.cards[0]: total: expected a number of bytes, got 9223372036854775808"),
        ({"id": "a", "total": 1, "free": "1"}, 'corral.cards[0]: free: expected a number of bytes, got "1"; ignored'),
    ],
)
def test_what_cannot_be_used_is_shown_and_the_rest_counts(entry: object, problem: str) -> None:
    cards, problems = read_cards([entry, {"id": "GPU-b", "total": 7}])

    assert cards == (ReportedCard(id="GPU-b", total=7),)
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize("index", [-1, True, "1", 64, 1.5, None, 2**70])
def test_a_number_that_is_no_place_is_none(index: object) -> None:
    cards, problems = read_cards([{"id": "a", "total": 1, "index": index}])

    assert cards == (ReportedCard(id="a", index=None, total=1),)
    assert problems == ()


def test_a_liar_with_ten_thousand_cards_fills_nothing() -> None:
    cards, problems = read_cards([{"id": f"GPU-{n}", "total": 1, "name": "x" * 1000} for n in range(10_000)])

    assert cards is not None
    assert (len(cards), max(len(card.name) for card in cards)) == (MOST_CARDS, 128)
    assert problems == ("corral.cards: 10000 GPUs; those after the first 64 are ignored",)
    assert len(read_cards([None] * 10_000).problems) == 6


def test_a_card_that_is_told_twice_counts_once() -> None:
    cards, problems = read_cards([{"id": "a", "total": 1}, {"id": "a", "total": 2}])

    assert cards == (ReportedCard(id="a", total=1),)
    assert problems == ("corral.cards[1].id: 'a' is there twice; ignored",)


def test_what_is_no_list_leaves_what_is_known() -> None:
    assert read_cards(None) == (None, ())
    assert read_cards({"id": 1}) == (None, ('corral.cards: expected a list, got {"id":1}; ignored',))


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
entries = st.dictionaries(
    st.sampled_from(["id", "name", "vendor", "total", "free", "shares_ram", "index"]), json_values | st.just("GPU-a")
)


@given(document=st.lists(json_values | entries) | json_values)
def test_nothing_that_a_node_sends_is_refused(document: object) -> None:
    cards, problems = read_cards(document)

    assert len(problems) <= 6
    assert len({card.id for card in cards or ()}) == len(cards or ())
    assert all(card.total > 0 and (card.free is None or card.free >= 0) for card in cards or ())
    with_cards(*cards or ())


def test_registrations_and_heartbeats_carry_them() -> None:
    hello = CorralHello(version="1", cards=[{"id": "GPU-a", "total": 7}, 5])
    registration = read_registration(RegisterRequest(name="n", address="a:1", corral=hello))
    heartbeat = read_heartbeat(b'{"corral": {"cards": [{"id": "GPU-a", "total": 7, "free": 3}, 5]}}', T0)

    assert registration.cards == (ReportedCard(id="GPU-a", total=7),)
    assert heartbeat.cards == (ReportedCard(id="GPU-a", total=7, free=3),)
    assert registration.problems == heartbeat.problems == ("corral.cards[1]: expected an object, got 5; ignored",)
    assert read_heartbeat(b"{}", T0).cards is None
    assert read_heartbeat(b'{"corral": {"cards": []}}', T0).cards == ()


def test_what_is_free_stays_while_it_cannot_be_read_and_is_never_more_than_there_is() -> None:
    node = with_cards(A, replace(B, free=None))
    assert frees(node) == {"GPU-a": 20, "GPU-b": 24}

    policy, hearing = LivenessPolicy(), Hearing(since=T0, until=T1)
    unread = Heartbeat(at=T1, cards=(replace(A, free=None), replace(B, free=90 * GIB)))
    assert frees(beat(node, unread, policy, hearing)) == {"GPU-a": 20, "GPU-b": 24}
    assert beat(node, Heartbeat(at=T1), policy, hearing).cards == node.cards
    assert beat(node, Heartbeat(at=T1, cards=()), policy, hearing).cards == ()


def test_a_card_out_of_service_stays_so_whatever_the_node_says() -> None:
    node = put_card(with_cards(A, B), "GPU-a", is_out=True, at=T0)
    assert [(card.id, card.is_out) for card in node.cards] == [("GPU-a", True), ("GPU-b", False)]

    gone = report_cards(node, [B])
    again = Registration(name=node.name, cards=(B, A))
    back = register_again(gone, again, at=T1, approval=None, policy=AdmissionPolicy())

    assert [(card.id, card.is_out) for card in back.cards] == [("GPU-b", False), ("GPU-a", True)]
    assert not any(card.is_out for card in put_card(back, "GPU-a", is_out=False, at=T1).cards)


def test_nothing_changes_where_a_card_is_already_where_it_should_be() -> None:
    node = with_cards(A)
    out = put_card(node, "GPU-a", is_out=True, at=T0)

    assert put_card(node, "GPU-a", is_out=False, at=T1) is node
    assert put_card(out, "GPU-a", is_out=True, at=T1) is out


def test_placement_does_not_count_on_a_card_out_of_service() -> None:
    node = with_cards(A, B, capacity=Capacity(total_vram=48 * GIB, available_vram=42 * GIB))

    assert node.usable_vram == 42 * GIB
    assert put_card(node, "GPU-a", is_out=True, at=T0).usable_vram == 22 * GIB
    assert replace(put_card(node, "GPU-a", is_out=True, at=T0), admin_vram_budget="10GiB").usable_vram == 10 * GIB


def test_a_name_spoils_no_terminal() -> None:
    cards, _ = read_cards([{"id": "a", "total": 1, "name": "NVIDIA\x1b[31m L4\n", "vendor": 7}])

    assert cards == (ReportedCard(id="a", total=1, name="NVIDIA[31m L4"),)
