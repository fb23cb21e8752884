"""Who serves a file to whom: bounded for every source, and nobody is left without."""

import asyncio
import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.base.clock import SystemClock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.files.file_peer import FilePeer
from corral.frontend.serving.staging.decide.sources import (
    FRONTEND,
    ORIGIN,
    FileSource,
    SourceKind,
    StagingPolicy,
    WantedFile,
    choose_source,
)
from corral.frontend.serving.staging.decide.sources import SOURCES as SOURCE_WORDS
from corral.frontend.serving.staging.sources import FileSources, PeerDirectory
from tests.kit.waiting import within_timeout

GIB = 1024**3


def policy(*order: SourceKind, fan_out: int = 2, least: int = 0) -> StagingPolicy:
    return StagingPolicy(
        order=order or (SourceKind.FRONTEND, SourceKind.PEERS), fan_out=fan_out, least_bytes=least, reserve_bytes=0
    )


def want(node: str = "n0", *, size: int = GIB) -> WantedFile:
    return WantedFile(node_id=NodeId(node), model="m", path="f", key="models/m/f", digest="d", size=size)


def peer(name: str) -> FileSource:
    return FileSource(SourceKind.PEERS, NodeId(name))


def test_one_node_alone_gets_a_file_from_the_frontend() -> None:
    assert choose_source(want(), [NodeId("n1")], {}, policy()) == FRONTEND


def test_the_next_ones_get_it_from_nodes_that_have_it() -> None:
    assert choose_source(want(), [NodeId("n1")], {FRONTEND: 1}, policy()) == peer("n1")
    assert choose_source(want(), [NodeId("n1")], {peer("n1"): 2}, policy()) == FRONTEND


def test_without_such_a_node_they_wait() -> None:
    assert choose_source(want(), [], {FRONTEND: 2}, policy()) is None
    assert choose_source(want("n1"), [NodeId("n1")], {FRONTEND: 2}, policy()) is None


def test_a_small_file_is_never_asked_around_for() -> None:
    assert choose_source(want(size=9), [NodeId("n1")], {FRONTEND: 50}, policy(least=10)) == FRONTEND
    assert choose_source(want(size=0), [NodeId("n1")], {FRONTEND: 50}, policy()) == FRONTEND


def test_the_order_is_that_of_the_setting() -> None:
    order = policy(SourceKind.ORIGIN, SourceKind.PEERS)
    holders = [NodeId("n1")]
    assert choose_source(want(), holders, {}, order, has_origin=True) == ORIGIN
    assert choose_source(want(), holders, {}, order) == peer("n1")
    assert choose_source(want(), holders, {}, order, frozenset({ORIGIN}), has_origin=True) == peer("n1")
    assert choose_source(want(), holders, {}, order, frozenset({ORIGIN, peer("n1")}), has_origin=True) == FRONTEND


def test_of_several_peers_the_least_busy_one_serves() -> None:
    holders = [NodeId("n1"), NodeId("n2")]
    assert choose_source(want(), holders, {FRONTEND: 2, peer("n1"): 1}, policy()) == peer("n2")


@pytest.mark.parametrize("word", ["frontend", "Peers , origin", "origin,origin"])
def test_the_setting_takes_words(word: str) -> None:
    assert all(isinstance(source, SourceKind) for source in SOURCE_WORDS.read(word))


NODES = [NodeId(f"n{number}") for number in range(8)]
SOURCES = st.sampled_from([FRONTEND, ORIGIN, *(FileSource(SourceKind.PEERS, node) for node in NODES)])


@given(
    holders=st.sets(st.sampled_from(NODES)),
    serving=st.dictionaries(SOURCES, st.integers(0, 4)),
    failed=st.frozensets(SOURCES.filter(lambda source: source != FRONTEND)),
    order=st.lists(st.sampled_from(list(SourceKind)), unique=True),
    fan_out=st.integers(1, 3),
    has_origin=st.booleans(),
)
def test_a_choice_is_always_allowed(
    holders: set[NodeId],
    serving: dict[FileSource, int],
    failed: frozenset[FileSource],
    order: list[SourceKind],
    fan_out: int,
    has_origin: bool,
) -> None:
    chosen = choose_source(want(), holders, serving, policy(*order, fan_out=fan_out), failed, has_origin=has_origin)
    if chosen is None:
        assert any(serving.values()), "nobody waits when nobody is being served"
        return
    assert chosen not in failed
    if chosen.kind is SourceKind.PEERS:
        assert chosen.node_id in holders
        assert chosen.node_id != "n0"
        assert SourceKind.PEERS in order or not order
    if chosen.kind is SourceKind.ORIGIN:
        assert has_origin
        assert SourceKind.ORIGIN in order
    if chosen.kind is not SourceKind.ORIGIN and any(serving.values()):
        assert serving.get(chosen, 0) < fan_out


@given(
    count=st.integers(1, 60),
    fan_out=st.integers(1, 4),
    liars=st.sets(st.integers(0, 59)),
    order=st.sampled_from([(SourceKind.FRONTEND, SourceKind.PEERS), (SourceKind.PEERS,)]),
)
def test_a_fleet_gets_a_file_in_rounds(
    count: int, fan_out: int, liars: set[int], order: tuple[SourceKind, ...]
) -> None:
    """All want it at once; each round lasts as long as a transfer. Nodes that serve nothing are asked once each."""
    rules = policy(*order, fan_out=fan_out)
    waiting = [NodeId(f"n{number}") for number in range(count)]
    broken = {NodeId(f"n{number}") for number in liars}
    holders: list[NodeId] = []
    failed: dict[NodeId, set[FileSource]] = {node: set() for node in waiting}
    rounds = 0
    while waiting:
        rounds += 1
        assert rounds <= 10 * count
        serving: dict[FileSource, int] = {}
        served: list[NodeId] = []
        for node in list(waiting):
            while (
                source := choose_source(want(node), holders, serving, rules, frozenset(failed[node]))
            ) is not None and source.node_id in broken:
                failed[node].add(source)
            if source is not None:
                serving[source] = serving.get(source, 0) + 1
                served.append(node)
        assert served, "somebody is served in every round"
        assert all(number <= fan_out for number in serving.values())
        waiting = [node for node in waiting if node not in served]
        holders += served
    if not broken:
        assert rounds <= math.ceil(math.log(count + 1, fan_out + 1)) + 1


class SilentRecords:
    """Nobody tells which nodes have a file."""

    async def of_model(self, _: str) -> list[Any]:
        raise CorralError("the database is away")


async def test_whoever_waited_counts_with_those_who_came_later() -> None:
    peers = PeerDirectory(
        staged=cast("Any", SilentRecords()),
        fleet=cast("Any", None),
        contacts=cast("Any", None),
        tokens=cast("Any", None),
    )
    sources = FileSources(peers, SystemClock(), policy(fan_out=1), origins=cast("Any", None))
    sending: set[str] = set()
    gates = {name: asyncio.Event() for name in ("first", "waiting", "later")}
    begun = asyncio.Event()

    async def deliver(name: str) -> str:
        async def send() -> str:
            sending.add(name)
            begun.set()
            await gates[name].wait()
            sending.remove(name)
            return "/there"

        return await sources.deliver(want(name), FilePeer(address="", token=""), send=send, heard=lambda _: None)

    async def settle() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        first = group.create_task(deliver("first"))
        await within_timeout(begun.wait(), lambda: "the first to be served")
        group.create_task(deliver("waiting"))
        await settle()
        gates["first"].set()
        await first
        group.create_task(deliver("later"))
        await settle()
        assert len(sending) == 1
        for gate in gates.values():
            gate.set()
    assert not sources._serving
