"""Nodes for which nobody answers are marked as of when that was noticed, however long it takes to be written."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import cast

import pytest

from corral.base.errors import NoResponders
from corral.base.ids import NodeId
from corral.base.tasks import Poke, end_tasks, start_task
from corral.bus.port import Bus
from corral.frontend.nodes.client import NodeClient, NodeRefused
from corral.frontend.nodes.contacts import NodeContacts, NodePending, NodeUnreachable
from corral.frontend.nodes.decide.node import LISTENS_WITHIN, Node
from corral.frontend.nodes.decide.reports import NodeContact, contact_of
from corral.frontend.nodes.store.nodes import Nodes
from corral.wire.backends import InstallRequest
from tests.kit.clock import START, ManualClock
from tests.kit.gates import Gates, gated
from tests.kit.loop_time import let_loop_time_pass
from tests.kit.samples import a_node


class Silence:
    """A bus on which nobody listens."""

    connected = True

    def __init__(self) -> None:
        self.tell: Callable[[bool], None] = lambda _: None

    def on_connection(self, callback: Callable[[bool], None]) -> Callable[[], None]:
        self.tell = callback
        return lambda: None

    async def request(self, subject: str, data: bytes, *, timeout: timedelta) -> bytes:
        raise NoResponders(subject=subject)


class Marks:
    """A store of nodes that keeps only this of them."""

    writes = 0
    is_approved = True
    joined_at = START - timedelta(hours=1)

    def __init__(self) -> None:
        self.written: list[tuple[list[NodeId], datetime]] = []
        self.read: list[NodeId] = []

    async def mark_no_responders(self, ids: Sequence[NodeId], *, at: datetime) -> set[NodeId]:
        self.written.append((list(ids), at))
        return set(ids)

    async def contacts(self, ids: Iterable[NodeId]) -> dict[NodeId, NodeContact]:
        self.read += ids
        return {
            id: NodeContact(
                name=id,
                is_approved=self.is_approved,
                address="127.0.0.1:50051",
                http_address="",
                joined_at=self.joined_at,
            )
            for id in ids
        }

    async def load_many(self, ids: Iterable[NodeId]) -> dict[NodeId, Node]:
        return {id: a_node(id=id) for id in ids}


def silent_client(marks: Marks, gates: Gates, clock: ManualClock, bus: Silence | None = None) -> NodeClient:
    nodes = cast(Nodes, gated(marks, gates, "mark_no_responders"))
    contacts = NodeContacts(cast(Nodes, marks))
    return NodeClient(cast(Bus, bus or Silence()), nodes, clock, contacts=contacts, health=Poke())


async def asked(client: NodeClient, node: str) -> "asyncio.Task[None]":
    """Nobody answered, and that is being written or about to be."""

    async def ask() -> None:
        with suppress(NodeUnreachable):
            await client.running(NodeId(node))

    task = start_task(ask(), name=node)
    await asyncio.sleep(0)
    return task


async def test_whoever_is_heard_before_the_mark_is_written_was_heard_since() -> None:
    clock, gates, marks = ManualClock(), Gates(), Marks()
    client = silent_client(marks, gates, clock)
    async with gates.held_inside("mark_no_responders") as held:
        tasks = [await asked(client, "first")]
        await held.until_inside()
        tasks += [await asked(client, "second"), await asked(client, "second")]
        await clock.advance(timedelta(seconds=5))
    for task in tasks:
        await task
    assert marks.written == [([NodeId("first")], START), ([NodeId("second")], START)]


async def test_who_is_not_waited_for_any_more_is_not_marked_later() -> None:
    """Its worker was restarted meanwhile, which is why: see `OpenRequests`."""
    clock, gates, marks = ManualClock(), Gates(), Marks()
    client = silent_client(marks, gates, clock)
    async with gates.held_inside("mark_no_responders") as held:
        first = await asked(client, "first")
        await held.until_inside()
        await end_tasks(await asked(client, "restarted"))
    await first
    await (await asked(client, "third"))
    assert [ids for ids, _ in marks.written] == [[NodeId("first")], [NodeId("third")]]


async def test_who_has_just_joined_is_not_marked_for_an_install_that_it_does_not_hear() -> None:
    clock, marks = ManualClock(), Marks()
    marks.joined_at = START
    client, request = silent_client(marks, Gates(), clock), InstallRequest(backend="echo")
    await clock.advance(LISTENS_WITHIN - timedelta(seconds=1))
    with pytest.raises(NodeUnreachable):
        await client.install(NodeId("joined"), request, timeout=LISTENS_WITHIN)
    assert marks.written == []

    await clock.advance(timedelta(seconds=1))
    with pytest.raises(NodeUnreachable):
        await client.install(NodeId("joined"), request, timeout=LISTENS_WITHIN)
    assert [ids for ids, _ in marks.written] == [[NodeId("joined")]]


async def test_who_may_not_have_noticed_that_nats_is_back_is_not_marked() -> None:
    clock, marks, bus = ManualClock(), Marks(), Silence()
    client = silent_client(marks, Gates(), clock, bus)
    bus.tell(False)
    bus.tell(True)
    await clock.advance(LISTENS_WITHIN - timedelta(seconds=1))
    await (await asked(client, "a"))
    assert marks.written == []

    await clock.advance(timedelta(seconds=1))
    await (await asked(client, "a"))
    assert [ids for ids, _ in marks.written] == [[NodeId("a")]]


async def test_the_contact_of_a_node_is_read_once_in_three_seconds() -> None:
    marks = Marks()
    contacts, node = NodeContacts(cast(Nodes, marks)), NodeId("a")

    await contacts.of(node)
    await contacts.of(node)
    assert marks.read == [node]

    let_loop_time_pass(timedelta(seconds=3))
    await contacts.of(node)
    assert marks.read == [node, node]


async def test_a_node_that_was_just_loaded_is_not_read_again_to_contact_it() -> None:
    marks = Marks()
    contacts, node = NodeContacts(cast(Nodes, marks)), NodeId("a")

    loaded = (await contacts.load([node]))[node]
    assert await contacts.of(node) == contact_of(loaded)
    assert marks.read == []

    marks.writes += 1
    await contacts.of(node)
    assert marks.read == [node]


async def test_a_node_that_this_process_suspects_is_refused_at_once() -> None:
    marks = Marks()
    contacts, node = NodeContacts(cast(Nodes, marks)), NodeId("a")
    await contacts.of(node)

    marks.is_approved = False
    marks.writes += 1

    with pytest.raises(NodePending):
        await contacts.of(node)


async def test_a_refused_node_is_read_again_for_each_call() -> None:
    marks = Marks()
    contacts, node = NodeContacts(cast(Nodes, marks)), NodeId("a")
    marks.is_approved = False
    with pytest.raises(NodePending):
        await contacts.of(node)

    marks.is_approved = True

    assert (await contacts.of(node)).is_approved


def test_of_a_long_refusal_the_beginning_and_the_end_are_kept() -> None:
    refused = NodeRefused("backend x did not start: " + "x" * 1_000_000 + " no memory", node_id=NodeId("a"))
    assert refused.message.startswith("backend x did not start: ")
    assert refused.message.endswith(" no memory")
    assert len(refused.message) < 5000
