"""API keys on both databases."""

import asyncio

import pytest
from msgspec.structs import replace

from corral.base.ids import KeyId, NodeId
from corral.frontend.access.store.keys import Keys, revoke_keys_of
from corral.frontend.access.store.rows import AccessWrite
from corral.frontend.nodes.decide.node import NodeFacts, NodeType
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import EventKind
from corral.frontend.record.store import Events
from corral.frontend.store.db import ConstraintViolated, Database
from corral.frontend.store.schema import api_keys
from corral.wire.keys import Scope
from tests.kit.samples import a_key, a_node, after, an_event


async def test_a_key_comes_back_as_it_was_stored(keys: Keys) -> None:
    key = a_key(
        name="ünïcode",
        scopes=frozenset({Scope.ADMIN, Scope.GATEWAY}),
        expires_at=after(0.000001),
        revoked_at=after(2),
        node_id=NodeId("n"),
    )
    await keys.insert(key, events=[])

    assert await keys.get(key.id) == key
    assert await keys.find_by_hash(key.hash) == key


async def test_an_unknown_key_is_none(keys: Keys) -> None:
    assert await keys.get(KeyId("none")) is None
    assert await keys.find_by_hash("none") is None


async def test_an_expired_key_is_found_and_is_not_valid(keys: Keys) -> None:
    await keys.insert(key := a_key(expires_at=after(60)), events=[])
    found = await keys.find_by_hash(key.hash)

    assert found is not None
    assert found.is_valid(after(59.999999))
    assert not found.is_valid(after(60))


async def test_creating_and_revoking_are_on_the_record(keys: Keys, events: Events) -> None:
    created, revoked = an_event(EventKind.KEY_CREATED), an_event(EventKind.KEY_REVOKED, at=after(1))
    await keys.insert(key := a_key(), events=[created])
    await keys.revoke(key.id, at=after(1), events=[revoked])

    assert [stored.event for stored in await events.after(0, limit=5)] == [created, revoked]


async def test_keys_are_listed_oldest_first_with_or_without_the_revoked(keys: Keys) -> None:
    young, old = a_key(created_at=after(2)), a_key(created_at=after(1), revoked_at=after(3))
    for key in (young, old):
        await keys.insert(key, events=[])

    assert await keys.list() == [old, young]
    assert await keys.list(include_revoked=False) == [young]


async def test_a_key_is_revoked_once_and_keeps_its_first_time(keys: Keys, events: Events) -> None:
    await keys.insert(key := a_key(), events=[])
    won = await asyncio.gather(*(keys.revoke(key.id, at=after(5), events=[an_event()]) for _ in range(4)))

    assert won.count(AccessWrite.DONE) == 1
    for id in (key.id, KeyId("none")):
        assert await keys.revoke(id, at=after(9), events=[an_event()]) is AccessWrite.STALE
    assert await keys.get(key.id) == replace(key, revoked_at=after(5))
    assert await events.last_sequence() == 1


async def test_the_last_key_of_an_administrator_stays(keys: Keys, events: Events) -> None:
    admin = a_key(scopes=frozenset({Scope.ADMIN}))
    others = [
        a_key(scopes=frozenset({Scope.INFERENCE})),
        a_key(scopes=frozenset({Scope.ADMIN}), expires_at=after(3)),
        a_key(scopes=frozenset({Scope.ADMIN}), revoked_at=after(1)),
    ]
    for key in (admin, *others):
        await keys.insert(key, events=[])

    assert await keys.revoke_unless_last_admin(admin.id, at=after(4), events=[an_event()]) is AccessWrite.LAST_ADMIN
    outcomes = [await keys.revoke_unless_last_admin(other.id, at=after(4), events=[]) for other in others[:3]]
    assert outcomes == [AccessWrite.DONE, AccessWrite.DONE, AccessWrite.STALE], "the second had expired"
    assert await keys.list(include_revoked=False) == [admin]
    assert await events.last_sequence() == 0


async def test_of_two_last_administrators_who_revoke_each_other_one_stays(keys: Keys) -> None:
    pair = [a_key(scopes=frozenset({Scope.ADMIN})) for _ in range(2)]
    for key in pair:
        await keys.insert(key, events=[])

    won = await asyncio.gather(*(keys.revoke_unless_last_admin(one.id, at=after(5), events=[]) for one in pair))

    assert sorted(won) == [AccessWrite.DONE, AccessWrite.LAST_ADMIN]
    assert len(await keys.list(include_revoked=False)) == 1


async def test_all_keys_of_exactly_one_node_are_revoked(keys: Keys, database: Database) -> None:
    mine = [a_key(node_id=NodeId("n")), a_key(node_id=NodeId("n")), a_key(node_id=NodeId("n"), revoked_at=after(1))]
    other = a_key(node_id=NodeId("n2"))
    for key in (*mine, other):
        await keys.insert(key, events=[])

    async with database.begin() as connection:
        await revoke_keys_of(connection, NodeId("n"), after(5))
        await revoke_keys_of(connection, NodeId("nobody"), after(5))

    assert await keys.list(include_revoked=False) == [other]


@pytest.mark.parametrize(
    ("type", "approved", "is_issued"), [("agent", True, True), ("agent", False, False), ("backend", True, False)]
)
async def test_only_an_approved_agent_gets_a_key_and_keeps_only_that(
    type: str, approved: bool, is_issued: bool, keys: Keys, nodes: Nodes, events: Events
) -> None:
    facts = NodeFacts(last_heartbeat=after(0), approved_at=after(0) if approved else None)
    node = a_node(type=NodeType(type), facts=facts)
    await nodes.admit(node, events=[], policy=AdmissionPolicy())
    await keys.insert(earlier := a_key(node_id=node.id), events=[])
    new = a_key(node_id=node.id, created_at=after(5))

    assert await keys.insert_for_agent(new, events=[an_event()]) is is_issued

    assert [key.id for key in await keys.list(include_revoked=False)] == [new.id if is_issued else earlier.id]
    assert await events.last_sequence() == int(is_issued)


async def test_two_keys_cannot_share_a_hash(keys: Keys, events: Events) -> None:
    await keys.insert(key := a_key(), events=[])
    with pytest.raises(ConstraintViolated):
        await keys.insert(a_key(hash=key.hash), events=[an_event()])

    assert await keys.list() == [key]
    assert await events.last_sequence() == 0


async def test_of_several_first_starts_exactly_one_makes_the_administrator_key(keys: Keys, events: Events) -> None:
    candidates = [a_key(scopes=frozenset({Scope.ADMIN})) for _ in range(5)]
    won = await asyncio.gather(*(keys.insert_first_admin(key, events=[an_event()]) for key in candidates))

    assert won.count(True) == 1
    assert await keys.list() == [candidates[won.index(True)]]
    assert await events.last_sequence() == 1


async def test_there_is_no_second_first_administrator_even_when_the_first_was_revoked(keys: Keys) -> None:
    first = a_key(scopes=frozenset({Scope.ADMIN}))
    await keys.insert_first_admin(first, events=[])
    await keys.revoke(first.id, at=after(1), events=[])

    assert not await keys.insert_first_admin(a_key(scopes=frozenset({Scope.ADMIN})), events=[])


async def test_an_administrator_key_made_by_other_means_counts(keys: Keys) -> None:
    await keys.insert(a_key(scopes=frozenset({Scope.INFERENCE})), events=[])
    await keys.insert(a_key(scopes=frozenset({Scope.ADMIN})), events=[])

    assert not await keys.insert_first_admin(a_key(scopes=frozenset({Scope.ADMIN})), events=[])


async def test_other_keys_do_not_stand_in_for_the_first_administrator(keys: Keys) -> None:
    await keys.insert(a_key(scopes=frozenset({Scope.INFERENCE, Scope.NODE})), events=[])

    assert await keys.insert_first_admin(a_key(scopes=frozenset({Scope.ADMIN})), events=[])


async def test_a_scope_of_a_newer_version_opens_nothing(database: Database, keys: Keys) -> None:
    await keys.insert(key := a_key(), events=[])
    async with database.begin() as connection:
        await connection.execute(api_keys.update().values(scopes=["inference", "time-travel"]))

    assert await keys.get(key.id) == key
