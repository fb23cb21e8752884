"""Nodes on both databases: what is stored, what guards it, and who wins."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace
from sqlalchemy import select, text, update

from corral.base.ids import Incarnation, NodeId
from corral.frontend.access.store.keys import Keys
from corral.frontend.nodes.decide import node as domain
from corral.frontend.nodes.decide.liveness import Hearing, Heartbeat, LivenessPolicy, beat
from corral.frontend.nodes.decide.node import Capacity, Gpu, GpuCard, Node, NodeStatus, NodeType, Peer, ReportedCard
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.store.liveness import AcceptedHeartbeat, NodeLook
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import EventKind
from corral.frontend.record.store import Events
from corral.frontend.store.db import Database
from corral.frontend.store.schema import nodes as nodes_table
from corral.frontend.store.secrets import Secrets, SecretsKey, node_secret_name
from corral.wire.labels import NodeLabels
from tests.kit.samples import a_key, a_node, after, an_event
from tests.kit.waiting import WAIT_TIMEOUT

Statements = Callable[[], AbstractContextManager[list[str]]]
Change = Callable[[Nodes, Node], Awaitable[None]]
POLICY = LivenessPolicy()
HEARING = Hearing(since=after(-3600), until=after(3600))


def beaten(node: Node, at: float, **said: object) -> Node:
    return beat(node, Heartbeat(at=after(at), **said), POLICY, HEARING)  # type: ignore[arg-type]


async def stored(nodes: Nodes, **fields: object) -> Node:
    node = a_node(**fields)
    assert await nodes.admit(node, events=[], policy=AdmissionPolicy())
    return node


async def reread(nodes: Nodes, node: Node) -> Node:
    found = await nodes.get(node.id)
    assert found is not None
    return found


# Reading.


async def test_a_node_comes_back_as_it_was_stored(nodes: Nodes) -> None:
    node = a_node(
        type=NodeType.AGENT,
        address="10.0.0.1:50051",
        http_address="10.0.0.1:50050",
        capacity=Capacity(total_vram=2**63 - 1, available_ram=7),
        gpu=Gpu(vendor="nvidia", compute_capability="8.9"),
        capability="cuda-12",
        labels=NodeLabels(reported={"zone": "a"}, admin={"": "empty key"}, removed=frozenset({"x", "y"})),
        reported_max_replicas=4,
        admin_max_replicas=0,
        reported_vram_budget="80%",
        admin_vram_budget="",
        peer=Peer(version="1.0", features=frozenset({"b", "a"})),
        secret_hash="abc",
        registered_at=after(2),
        problems=("the clock is wrong", "ünïcode"),
        announced=NodeStatus.DRAINING,
        stated_interval=timedelta(seconds=2.5),
        recent_gaps=(timedelta(microseconds=1), timedelta(days=2)),
        draining_since=after(0.000001),
        draining_by="alice",
        deregistered_at=after(3),
        no_responders_at=after(4),
        incarnation=Incarnation("one"),
    )
    await nodes.admit(node, events=[], policy=AdmissionPolicy())

    assert await nodes.get(node.id) == node


async def test_an_unknown_node_is_none(nodes: Nodes) -> None:
    assert await nodes.get(NodeId("nobody")) is None
    assert await nodes.find_by_secret("nothing") is None
    assert await nodes.find_by_name("nobody") == []


async def test_a_node_is_found_by_the_hash_of_its_secret(nodes: Nodes) -> None:
    await stored(nodes, secret_hash="other")
    node = await stored(nodes, secret_hash="mine")

    assert await nodes.find_by_secret("mine") == node


async def test_all_nodes_of_a_name_are_found_oldest_first(nodes: Nodes) -> None:
    young = await stored(nodes, name="gpu", created_at=after(5), secret_hash="1")
    old = await stored(nodes, name="gpu", created_at=after(1), secret_hash="2")
    middle = await stored(nodes, name="gpu", created_at=after(3))
    await stored(nodes, name="gpu2")

    assert await nodes.find_by_name("gpu") == [old, middle, young]


async def test_pages_cover_every_node_once_in_the_order_of_name_and_id(nodes: Nodes) -> None:
    names = ["b", "a", "é", "Z", "b ", "z", "", "日本", "a", "a"]
    for number, name in enumerate(names):
        await stored(nodes, name=name, secret_hash=str(number))
    seen: list[Node] = []
    while page := await nodes.page(after=(seen[-1].name, seen[-1].id) if seen else None, limit=3):
        seen += page

    assert [(node.name, node.id) for node in seen] == sorted((node.name, node.id) for node in seen)
    assert len(seen) == len(names)
    assert await nodes.all() == seen


async def test_a_page_is_one_statement(nodes: Nodes, statements: Statements) -> None:
    for _ in range(30):
        await stored(nodes)
    with statements() as seen:
        assert len(await nodes.page(after=None, limit=20)) == 20

    assert len(seen) == 1


async def test_only_nodes_that_are_drained_are_read_for_drains(nodes: Nodes) -> None:
    await stored(nodes, name="a")
    drained = await stored(nodes, name="b", draining_since=after(1), draining_by="alice")

    assert await nodes.asked_to_drain() == [drained]


async def test_many_nodes_are_loaded_by_one_statement(nodes: Nodes, statements: Statements) -> None:
    known = [await stored(nodes) for _ in range(20)]
    with statements() as seen:
        found = await nodes.load_many([*(node.id for node in known), NodeId("gone"), NodeId('it\'s "quoted"')])

    assert found == {node.id: node for node in known}
    assert len(seen) == 1
    assert await nodes.load_many([]) == {}


# Inserting.


async def test_an_insert_writes_its_events(nodes: Nodes, events: Events) -> None:
    node = a_node()
    event = an_event(EventKind.NODE_REGISTERED, node_id=node.id)
    await nodes.admit(node, events=[event], policy=AdmissionPolicy())

    assert [stored.event for stored in await events.after(0, limit=10)] == [event]


@pytest.mark.parametrize("same", ["id", "secret_hash", "name"])
async def test_a_second_insert_of_the_same_node_loses(nodes: Nodes, events: Events, same: str) -> None:
    first = await stored(nodes, secret_hash=None if same == "name" else "shared")
    again = a_node(**{same: getattr(first, same)})

    assert await nodes.admit(again, events=[an_event()], policy=AdmissionPolicy()) is False
    assert await nodes.all() == [first]
    assert await events.last_sequence() == 0


async def test_of_concurrent_first_registrations_exactly_one_makes_the_node(nodes: Nodes) -> None:
    by_secret = [a_node(secret_hash="same") for _ in range(8)]
    by_name = [a_node(name="localai") for _ in range(8)]
    won = await asyncio.gather(
        *(nodes.admit(node, events=[], policy=AdmissionPolicy()) for node in [*by_secret, *by_name])
    )

    assert won[:8].count(True) == 1
    assert won[8:].count(True) == 1


async def test_a_stranger_may_use_the_name_of_a_node_that_has_a_secret(nodes: Nodes) -> None:
    await stored(nodes, name="gpu", secret_hash="its own")

    assert await nodes.admit(a_node(name="gpu"), events=[], policy=AdmissionPolicy())


async def test_a_node_secret_is_stored_with_the_node(nodes: Nodes, database: Database) -> None:
    secrets = await Secrets.open(database, SecretsKey.generate(), at=after(0))
    node = a_node()
    name = node_secret_name(node.id)
    await nodes.admit(node, events=[], secret=secrets.seal(name, "first", at=after(0)), policy=AdmissionPolicy())
    assert await secrets.get(name) == "first"

    again = secrets.seal(name, "second", at=after(1))
    assert await nodes.register(node, events=[], secret=again)
    assert await secrets.get(name) == "second"


async def test_a_lost_register_stores_no_secret(nodes: Nodes, database: Database) -> None:
    secrets = await Secrets.open(database, SecretsKey.generate(), at=after(0))
    node = await stored(nodes)
    sealed = secrets.seal(node_secret_name(node.id), "lost", at=after(1))

    assert not await nodes.register(replace(node, revision=7), events=[], secret=sealed)
    assert await secrets.get(node_secret_name(node.id)) is None


# Changes by people and by registration.


async def test_replace_writes_what_people_own_and_bumps_the_revision(nodes: Nodes) -> None:
    node = await stored(nodes, approved_at=None, approved_by="")
    approved = domain.approve(node, by="alice", at=after(5))
    assert await nodes.replace(approved, events=[])

    assert await nodes.get(node.id) == replace(approved, revision=2)


async def test_replace_never_touches_what_heartbeats_and_health_own(nodes: Nodes) -> None:
    node = await stored(nodes)
    alive = beaten(node, 10, measured={"available_ram": 5}, gpu_vendor="amd", problems=("hot",))
    await nodes.beat([AcceptedHeartbeat(before=node, node=alive, next_look=None)])
    await announce(nodes, alive, NodeStatus.HEALTHY, at=after(11))

    assert await nodes.replace(domain.drain(node, by="alice", at=after(12)), events=[])
    drained = domain.drain(alive, by="alice", at=after(12))
    assert await nodes.get(node.id) == replace(drained, revision=2, announced=NodeStatus.HEALTHY)


async def test_a_change_decided_on_an_older_revision_loses_and_writes_no_event(nodes: Nodes, events: Events) -> None:
    node = await stored(nodes)
    assert await nodes.replace(domain.drain(node, by="alice", at=after(1)), events=[an_event()])

    late = domain.set_max_replicas(node, 9, at=after(2))
    assert not await nodes.replace(late, events=[an_event()])
    assert not await nodes.register(late, events=[an_event()])
    assert await events.last_sequence() == 1
    assert (await reread(nodes, node)).admin_max_replicas is None


async def test_of_concurrent_changes_exactly_one_wins(nodes: Nodes, events: Events) -> None:
    node = await stored(nodes)
    wishes = [domain.set_max_replicas(node, number, at=after(1)) for number in range(2, 10)]
    won = await asyncio.gather(*(nodes.replace(wish, events=[an_event()]) for wish in wishes))

    assert won.count(True) == 1
    assert (await reread(nodes, node)).admin_max_replicas == wishes[won.index(True)].admin_max_replicas
    assert await events.last_sequence() == 1


async def test_a_registration_counts_as_a_heartbeat(nodes: Nodes) -> None:
    node = await stored(nodes)
    facts = replace(node.facts, last_heartbeat=after(30), incarnation=Incarnation("new"), recent_gaps=())
    again = replace(node, facts=facts, address="10.0.0.9:50051", capacity=Capacity(total_ram=8), updated_at=after(30))
    assert await nodes.register(again, events=[])

    assert await nodes.get(node.id) == replace(again, revision=2)


async def test_a_change_of_a_removed_node_loses(nodes: Nodes) -> None:
    node = a_node()

    assert not await nodes.replace(node, events=[an_event()])


# Removing.


async def test_a_removed_node_takes_its_secret_and_its_keys_with_it(
    nodes: Nodes, keys: Keys, events: Events, database: Database
) -> None:
    secrets = await Secrets.open(database, SecretsKey.generate(), at=after(0))
    node, other = a_node(), a_node()
    for each in (node, other):
        sealed = secrets.seal(node_secret_name(each.id), "secret", at=after(0))
        await nodes.admit(each, events=[], secret=sealed, policy=AdmissionPolicy())
    issued, foreign = a_key(node_id=node.id), a_key(node_id=other.id)
    await keys.insert(issued, events=[])
    await keys.insert(foreign, events=[])

    removed = an_event(EventKind.NODE_REMOVED, node_id=node.id, at=after(9))
    assert await nodes.remove(node.id, events=[removed])

    assert await nodes.all() == [other]
    assert await secrets.get(node_secret_name(node.id)) is None
    assert await secrets.get(node_secret_name(other.id)) == "secret"
    assert await keys.get(issued.id) == replace(issued, revoked_at=after(9))
    assert await keys.get(foreign.id) == foreign
    assert [stored.event for stored in await events.after(0, limit=5)] == [removed]


async def test_a_node_can_be_removed_once(nodes: Nodes, events: Events) -> None:
    node = await stored(nodes)
    won = await asyncio.gather(*(nodes.remove(node.id, events=[an_event()]) for _ in range(4)))

    assert sorted(won) == [False, False, False, True]
    assert await events.last_sequence() == 1


# Heartbeats.


async def test_a_heartbeat_writes_only_what_heartbeats_own(nodes: Nodes) -> None:
    node = await stored(nodes)
    alive = beaten(node, 10, measured={"total_vram": 2**40}, gpu_vendor="amd", incarnation="two", problems=("hot",))
    tampered = replace(alive, name="changed", announced=NodeStatus.OFFLINE, updated_at=after(99), revision=44)

    assert await nodes.beat([AcceptedHeartbeat(before=node, node=tampered, next_look=after(40))]) == {node.id}
    assert await nodes.get(node.id) == alive


async def test_a_heartbeat_that_was_read_before_does_not_put_a_card_back_into_service(nodes: Nodes) -> None:
    card = ReportedCard(id="GPU-a", total=9, free=9)
    node = domain.report_cards(a_node(), [card])
    assert await nodes.admit(node, events=[], policy=AdmissionPolicy())
    late = beaten(node, 10, cards=(replace(card, free=3),))
    assert await nodes.replace(domain.put_card(node, "GPU-a", is_out=True, at=after(5)), events=[])

    assert await nodes.beat([AcceptedHeartbeat(before=node, node=late, next_look=None)]) == {node.id}
    assert (await reread(nodes, node)).cards == (GpuCard(id="GPU-a", index=0, total=9, free=3, is_out=True),)


async def test_a_batch_says_which_nodes_exist(nodes: Nodes) -> None:
    known, gone = await stored(nodes), a_node()
    beats = [AcceptedHeartbeat(before=node, node=beaten(node, 10), next_look=None) for node in (gone, known)]

    assert await nodes.beat(beats) == {known.id}
    assert await nodes.beat([]) == set()


async def test_an_older_heartbeat_never_overwrites_a_newer_one(nodes: Nodes) -> None:
    node = await stored(nodes)
    newer, older = beaten(node, 20), beaten(node, 10, measured={"total_ram": 1})
    await nodes.beat([AcceptedHeartbeat(before=node, node=newer, next_look=None)])

    assert await nodes.beat([AcceptedHeartbeat(before=node, node=older, next_look=None)]) == {node.id}
    assert await nodes.get(node.id) == newer


async def test_a_heartbeat_from_a_clock_in_the_future_is_replaced(nodes: Nodes) -> None:
    node = await stored(nodes, last_heartbeat=after(86400))
    now = beaten(node, 10)
    await nodes.beat([AcceptedHeartbeat(before=node, node=now, next_look=None)])

    assert (await reread(nodes, node)).facts.last_heartbeat == after(10)


async def test_two_heartbeats_of_one_node_in_one_batch_are_both_taken(nodes: Nodes) -> None:
    node = await stored(nodes)
    first = beaten(node, 10)
    second = beaten(first, 20)
    chain = [
        AcceptedHeartbeat(before=node, node=first, next_look=None),
        AcceptedHeartbeat(before=first, node=second, next_look=None),
    ]
    await nodes.beat(chain)

    assert await nodes.get(node.id) == second


async def test_a_heartbeat_decided_before_a_registration_does_not_undo_it(nodes: Nodes) -> None:
    node = await stored(nodes, incarnation=Incarnation("old"))
    facts = replace(node.facts, last_heartbeat=after(10), incarnation=Incarnation("new"))
    await nodes.register(replace(node, facts=facts, updated_at=after(10)), events=[])
    await nodes.beat([AcceptedHeartbeat(before=node, node=beaten(node, 10.5), next_look=None)])

    assert (await reread(nodes, node)).facts.incarnation == "new"


async def test_a_batch_of_heartbeats_takes_two_statements(nodes: Nodes, statements: Statements) -> None:
    many = [await stored(nodes) for _ in range(100)]
    with statements() as seen:
        found = await nodes.beat(
            [AcceptedHeartbeat(before=node, node=beaten(node, 10), next_look=after(40)) for node in many]
        )

    assert len(found) == 100
    assert len(seen) == 2


async def test_overlapping_batches_from_several_frontends_all_finish(nodes: Nodes) -> None:
    many = [await stored(nodes) for _ in range(40)]
    orders = [many, many[::-1], many[20:] + many[:20], many[::3] + many[1::3] + many[2::3]]

    async def frontend(order: list[Node], at: float) -> None:
        for step in range(5):
            known = await nodes.load_many([node.id for node in order])
            beats = [
                AcceptedHeartbeat(before=known[node.id], node=beaten(known[node.id], at + step), next_look=None)
                for node in order
            ]
            assert len(await nodes.beat(beats)) == 40

    await asyncio.gather(*(frontend(order, 10 + number * 10) for number, order in enumerate(orders)))


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_batch_waits_for_its_first_row_before_it_takes_its_last(database: Database, nodes: Nodes) -> None:
    first, last = await stored(nodes), await stored(nodes)
    batch = [AcceptedHeartbeat(before=node, node=beaten(node, 10), next_look=None) for node in (last, first)]

    async with asyncio.TaskGroup() as group, database.begin() as connection:
        lock = select(nodes_table.c.id).with_for_update()
        await connection.execute(lock.where(nodes_table.c.id == first.id))
        beating = group.create_task(nodes.beat(batch))
        await until_somebody_waits(database)
        await connection.execute(lock.where(nodes_table.c.id == last.id))

    assert beating.result() == {first.id, last.id}


async def until_somebody_waits(database: Database) -> None:
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    async with asyncio.timeout(WAIT_TIMEOUT.total_seconds()):
        while True:
            async with database.read() as connection:
                if (await connection.execute(waiting)).scalar_one():
                    return


async def test_no_value_of_one_node_can_fail_the_batch_of_others(nodes: Nodes) -> None:
    good, odd = await stored(nodes), await stored(nodes)
    strange = replace(
        beaten(odd, 10, measured={"total_vram": 2**64, "total_ram": -(2**70)}),
        gpu=Gpu(vendor="n\x00vid\ud800ia"),
        problems=("nul \x00", "half \ud83d"),
    )
    beats = [
        AcceptedHeartbeat(before=good, node=beaten(good, 10), next_look=None),
        AcceptedHeartbeat(before=odd, node=strange, next_look=None),
    ]

    assert await nodes.beat(beats) == {good.id, odd.id}
    found = await reread(nodes, odd)
    assert found.gpu.vendor == "n\ufffdvid\ufffdia"
    assert found.problems == strange.problems
    assert (found.capacity.total_vram, found.capacity.total_ram) == (2**63 - 1, -(2**63 - 1))


# Marks.


async def test_a_node_that_did_not_respond_is_marked_until_its_next_heartbeat(nodes: Nodes) -> None:
    node = await stored(nodes, last_heartbeat=after(1))
    assert await nodes.mark_no_responders([node.id], at=after(5)) == {node.id}
    marked = await reread(nodes, node)
    assert marked.facts.no_responders_at == after(5)

    await nodes.beat([AcceptedHeartbeat(before=marked, node=beaten(marked, 10), next_look=None)])
    assert (await reread(nodes, node)).facts.no_responders_at is None


async def test_a_node_that_has_only_registered_is_not_marked_as_it_cannot_listen_yet(nodes: Nodes) -> None:
    node = await stored(nodes)

    assert not await nodes.mark_no_responders([node.id], at=after(1))
    assert await nodes.get(node.id) == node


async def test_a_node_from_before_registrations_were_timed_is_marked(nodes: Nodes, database: Database) -> None:
    node = await stored(nodes, last_heartbeat=after(1))
    await forget_registration(database, node)

    assert await nodes.mark_no_responders([node.id], at=after(5)) == {node.id}


async def forget_registration(database: Database, node: Node) -> None:
    """As rows are that an earlier version wrote, which did not keep when a node registered."""
    async with database.begin() as connection:
        await connection.execute(update(nodes_table).where(nodes_table.c.id == node.id).values(registered_at=None))


async def test_a_pending_node_from_before_registrations_were_timed_expires_unless_it_was_heard(
    nodes: Nodes, database: Database
) -> None:
    pending = {"approved_at": None, "approved_by": ""}
    silent = await stored(nodes, **pending)
    heard = await stored(nodes, last_heartbeat=after(1), **pending)
    for node in (silent, heard):
        await forget_registration(database, node)

    assert [node.id for node in await nodes.never_heard(since=after(9), limit=5)] == [silent.id]


async def test_a_mark_older_than_the_last_heartbeat_is_refused(nodes: Nodes) -> None:
    node = await stored(nodes, last_heartbeat=after(10))

    assert not await nodes.mark_no_responders([node.id], at=after(10))
    assert not await nodes.mark_no_responders([NodeId("gone")], at=after(11))
    assert await nodes.get(node.id) == node


async def test_a_mark_stays_when_a_heartbeat_from_before_it_is_written_late(nodes: Nodes) -> None:
    node = await stored(nodes, last_heartbeat=after(1))
    earlier = beaten(node, 10)
    assert await nodes.mark_no_responders([node.id], at=after(11))
    await nodes.beat([AcceptedHeartbeat(before=node, node=earlier, next_look=None)])

    assert (await reread(nodes, node)).facts.no_responders_at == after(11)


async def test_a_second_mark_keeps_the_first(nodes: Nodes) -> None:
    node = await stored(nodes, last_heartbeat=after(1))

    assert await nodes.mark_no_responders([node.id], at=after(5))
    assert not await nodes.mark_no_responders([node.id], at=after(6))
    assert (await reread(nodes, node)).facts.no_responders_at == after(5)


# Health.


async def due(nodes: Nodes, seconds: float) -> list[NodeId]:
    return [node.id for node in await nodes.due(after(seconds), limit=100)]


async def settle(nodes: Nodes, node: Node) -> bool:
    return bool(await nodes.judge([NodeLook(node=node, next_look=None)], at=after(0)))


async def announce(nodes: Nodes, node: Node, status: NodeStatus, *, at: datetime) -> bool:
    return bool(await nodes.judge([NodeLook(node=node, status=status, event=an_event(), next_look=None)], at=at))


async def test_a_new_and_a_changed_node_is_due_at_once(nodes: Nodes) -> None:
    node = await stored(nodes, updated_at=after(1))
    assert await due(nodes, 0.999999) == []
    assert await due(nodes, 1) == [node.id]

    assert await settle(nodes, node)
    assert await due(nodes, 10**6) == []

    await nodes.replace(domain.drain(node, by="alice", at=after(7)), events=[])
    assert await due(nodes, 7) == [node.id]


async def test_the_longest_waiting_come_first_and_no_more_than_asked(nodes: Nodes) -> None:
    many = [await stored(nodes, updated_at=after(seconds)) for seconds in (5, 3, 4, 1, 2)]

    assert [node.id for node in await nodes.due(after(4), limit=3)] == [many[3].id, many[4].id, many[1].id]


async def test_a_heartbeat_moves_the_next_look(nodes: Nodes) -> None:
    node = await stored(nodes)
    await nodes.beat([AcceptedHeartbeat(before=node, node=beaten(node, 10), next_look=after(40))])

    assert await due(nodes, 39) == []
    assert await due(nodes, 40) == [node.id]


async def test_a_heartbeat_decided_before_a_change_does_not_put_off_the_look_at_it(nodes: Nodes) -> None:
    node = await stored(nodes)
    await nodes.replace(domain.drain(node, by="alice", at=after(5)), events=[])
    await nodes.beat([AcceptedHeartbeat(before=node, node=beaten(node, 10), next_look=after(40))])

    assert await due(nodes, 5) == [node.id]


async def test_a_mark_makes_the_node_due(nodes: Nodes) -> None:
    node = await stored(nodes, last_heartbeat=after(1))
    await settle(nodes, node)
    await nodes.mark_no_responders([node.id], at=after(5))

    assert await due(nodes, 5) == [node.id]


async def test_an_announcement_is_written_with_its_event(nodes: Nodes, events: Events) -> None:
    node = await stored(nodes)
    event = an_event(node_id=node.id, data={"after": "healthy", "before": None})
    verdict = NodeLook(node=node, status=NodeStatus.HEALTHY, event=event, next_look=after(30))
    assert await nodes.judge([verdict], at=after(1)) == {node.id}

    assert await nodes.get(node.id) == replace(node, announced=NodeStatus.HEALTHY)
    assert [stored.event for stored in await events.after(0, limit=5)] == [event]
    assert await due(nodes, 29) == []


async def test_of_many_looks_each_is_written_that_was_at_the_node_as_it_is(nodes: Nodes, events: Events) -> None:
    settled, announced, changed = [await stored(nodes) for _ in range(3)]
    await announce(nodes, settled, NodeStatus.HEALTHY, at=after(1))
    known = await reread(nodes, settled)
    await changed_by_people(nodes, changed)
    event = an_event(node_id=announced.id)
    verdicts = [
        NodeLook(node=changed, status=NodeStatus.OFFLINE, event=an_event(), next_look=None),
        NodeLook(node=announced, status=NodeStatus.UNHEALTHY, event=event, next_look=after(20)),
        NodeLook(node=known, next_look=after(30)),
    ]

    assert await nodes.judge(verdicts, at=after(3)) == {settled.id, announced.id}
    assert await reread(nodes, settled) == known
    assert (await reread(nodes, announced)).announced is NodeStatus.UNHEALTHY
    assert (await reread(nodes, changed)).announced is None
    assert [stored.event for stored in await events.after(1, limit=5)] == [event]
    assert set(await due(nodes, 25)) == {changed.id, announced.id}


async def test_many_are_marked_at_once(nodes: Nodes) -> None:
    first, second, heard = [await stored(nodes, last_heartbeat=after(seconds)) for seconds in (1, 1, 10)]

    assert await nodes.mark_no_responders([first.id, second.id, heard.id], at=after(5)) == {first.id, second.id}
    assert (await reread(nodes, second)).facts.no_responders_at == after(5)
    assert (await reread(nodes, heard)).facts.no_responders_at is None


async def test_of_several_frontends_one_announces(nodes: Nodes, events: Events) -> None:
    node = await stored(nodes)
    won = await asyncio.gather(*(announce(nodes, node, NodeStatus.HEALTHY, at=after(1)) for _ in range(5)))

    assert won.count(True) == 1
    assert await events.last_sequence() == 1


async def changed_by_people(nodes: Nodes, node: Node) -> None:
    await nodes.replace(domain.drain(node, by="alice", at=after(2)), events=[])


async def changed_by_a_heartbeat(nodes: Nodes, node: Node) -> None:
    await nodes.beat([AcceptedHeartbeat(before=node, node=beaten(node, 2), next_look=after(30))])


async def changed_by_a_mark(nodes: Nodes, node: Node) -> None:
    await nodes.mark_no_responders([node.id], at=after(2))


@pytest.mark.parametrize("change", [changed_by_people, changed_by_a_heartbeat, changed_by_a_mark])
async def test_what_was_decided_on_older_facts_is_neither_announced_nor_settled(nodes: Nodes, change: Change) -> None:
    node = await stored(nodes, last_heartbeat=after(1))
    await change(nodes, node)
    before = await due(nodes, 10**6)

    assert not await announce(nodes, node, NodeStatus.OFFLINE, at=after(3))
    assert not await settle(nodes, node)
    assert await due(nodes, 10**6) == before == [node.id]
