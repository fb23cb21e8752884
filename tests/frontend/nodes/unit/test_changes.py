"""What a node came back with: which differences are told, and where its processes are after a move."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.changes import TOLD_EVERY, Difference, HardwareNews, change_of, move_of
from corral.frontend.nodes.decide.node import Capacity, Gpu, GpuCard, Node
from corral.frontend.nodes.decide.reports import NodeContact, moved
from corral.wire.labels import NodeLabels
from tests.kit.samples import a_node, after

GIB = 1024**3
NODE = a_node(
    name="jetson",
    address="10.0.0.5:50051",
    http_address="10.0.0.5:50050",
    capacity=Capacity(total_ram=64 * GIB, total_vram=48 * GIB),
    gpu=Gpu(vendor="nvidia", compute_capability="8.9"),
    cards=(GpuCard(id="a", total=24 * GIB), GpuCard(id="b", total=24 * GIB)),
    labels=NodeLabels(reported={"zone": "1", "node.name": "jetson"}),
)


def with_memory(node: Node, **changes: int) -> Node:
    return replace(node, capacity=replace(node.capacity, **changes))


@pytest.mark.parametrize(
    ("after_", "difference"),
    [
        (replace(NODE, cards=NODE.cards[:1]), ({"gpus": {"a": 24 * GIB, "b": 24 * GIB}}, {"gpus": {"a": 24 * GIB}})),
        (with_memory(NODE, total_ram=32 * GIB), ({"total_ram": 64 * GIB}, {"total_ram": 32 * GIB})),
        (with_memory(NODE, total_vram=0), ({"total_vram": 48 * GIB}, {"total_vram": 0})),
        (replace(NODE, name="other"), ({"name": "jetson"}, {"name": "other"})),
        (replace(NODE, gpu=Gpu(vendor="amd")), None),
        (
            replace(NODE, labels=NodeLabels(reported={"zone": "2"})),
            ({"labels": {"zone": "1"}}, {"labels": {"zone": "2"}}),
        ),
    ],
)
def test_what_differs_is_told_with_both_states(
    after_: Node, difference: tuple[dict[str, object], dict[str, object]] | None
) -> None:
    found = change_of(NODE, after_)

    assert tuple(found) == difference or (
        difference is None and set(found.after) == {"gpu_vendor", "gpu_compute_capability"}
    )


@pytest.mark.parametrize(
    "after_",
    [
        NODE,
        with_memory(NODE, available_ram=1, available_vram=1, total_disk=5, available_disk=1),
        with_memory(NODE, total_ram=64 * GIB - 300 * 1024**2),
        replace(NODE, cards=tuple(replace(card, free=1, total=card.total - 1024) for card in NODE.cards)),
        replace(NODE, labels=NodeLabels(reported={"zone": "1", "node.name": "renamed"}, admin={"x": "y"})),
        replace(NODE, address="10.9.9.9:50051"),
    ],
)
def test_what_comes_and_goes_by_itself_is_not_told(after_: Node) -> None:
    assert change_of(NODE, after_) == Difference()


def test_a_move_is_told_apart_from_a_change() -> None:
    there = replace(NODE, address="10.0.0.9:50051", http_address="10.0.0.9:50050")

    assert move_of(NODE, there) == (
        {"address": "10.0.0.5:50051", "http_address": "10.0.0.5:50050"},
        {"address": "10.0.0.9:50051", "http_address": "10.0.0.9:50050"},
    )
    assert move_of(NODE, replace(NODE, name="x")) == Difference()


def test_a_driver_that_comes_and_goes_is_told_once_a_minute_and_rightly() -> None:
    news, none = HardwareNews(), replace(NODE, cards=(), capacity=replace(NODE.capacity, total_vram=0))
    first = news.of(NODE, none, after(0))
    assert first is not None
    assert first.after == {"gpus": {}, "total_vram": 0}

    told = [news.of(*pair, after(10 * number)) for number, pair in enumerate([(none, NODE), (NODE, none)] * 2, start=1)]
    assert told == [None] * 4

    assert news.of(none, none, after(61)) is None, "it is as it was told"
    back = news.of(none, NODE, after(62))
    assert back is not None
    assert back.before == {"gpus": {}, "total_vram": 0}
    assert news.of(NODE, none, after(70)) is None
    late = news.of(none, none, after(130))
    assert late is not None
    assert late.after == {"gpus": {}, "total_vram": 0}


def test_what_a_registration_told_is_not_told_again() -> None:
    news, none = HardwareNews(), replace(NODE, cards=())
    assert news.of(NODE, none, after(0)) is not None
    assert news.of(none, NODE, after(1)) is None, "not yet"
    registered = replace(NODE, revision=NODE.revision + 1)

    assert news.of(registered, registered, after(1) + TOLD_EVERY) is None


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90)), max_size=30))
def test_people_are_told_of_what_stays(steps: list[tuple[int, int]]) -> None:
    """Whatever a node reports in which order: its last report is what people were told last, a minute later."""
    news, now, known, told = HardwareNews(), after(0), NODE, {"gpus": {card.id: card.total for card in NODE.cards}}

    def beat(node: Node) -> None:
        nonlocal known
        difference = news.of(known, node, now)
        if difference is not None:
            assert difference.before == {"gpus": told["gpus"]}
            told["gpus"] = difference.after["gpus"]  # type: ignore[assignment]
        known = node

    for cards, seconds in steps:
        now += timedelta(seconds=seconds)
        beat(replace(NODE, cards=tuple(GpuCard(id=f"{number}", total=GIB) for number in range(cards))))
    now += TOLD_EVERY
    beat(known)

    assert told["gpus"] == {card.id: card.total for card in known.cards}


HOSTS = st.sampled_from(["10.0.0.5", "node-1.example", "[fd00::5]", "localhost", "[::ffff:10.0.0.5]", "127.0.0.1"])


@given(
    before=HOSTS,
    after_=HOSTS,
    port=st.integers(1, 65535),
    path=st.sampled_from(["", "/", "/v1/x"]),
    scheme=st.sampled_from(["http", "https"]),
)
def test_processes_follow_their_node(before: str, after_: str, port: int, path: str, scheme: str) -> None:
    here, there = replace(NODE, address=f"{before}:50051"), replace(NODE, address=f"{after_}:50051")

    assert moved(f"{before}:{port}", here, there) == f"{after_}:{port}"
    url = moved(f"{scheme}://{before}:{port}{path}", here, there)
    assert url == f"{scheme}://{after_}:{port}{path}"
    contact = NodeContact(name="n", is_approved=True, address=there.address, http_address="", joined_at=after(0))
    assert contact.has_url(url)


@pytest.mark.parametrize("place", ["", "192.0.2.1:7000", "http://192.0.2.1:7001", "nonsense", "http://10.0.0.5"])
def test_what_is_elsewhere_stays(place: str) -> None:
    assert moved(place, NODE, replace(NODE, address="10.0.0.9:50051")) == place


def test_a_node_without_a_usable_address_moves_nothing() -> None:
    agent = replace(NODE, address="", id=NodeId("n"))
    assert moved("10.0.0.5:7000", NODE, agent) == "10.0.0.5:7000"
