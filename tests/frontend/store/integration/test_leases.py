"""Leases on both databases: one holder at a time, and a guard for what the holder writes."""

import asyncio
from collections import Counter
from dataclasses import replace

from sqlalchemy import select, update

from corral.base.ids import LeaseToken
from corral.frontend.backends.decide.backend import with_alias_kept
from corral.frontend.backends.store import write_reports
from corral.frontend.operations.decide.intent import Before, Outstanding, Verb
from corral.frontend.operations.store.intents import IntentChange, Intents
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.store.db import Database
from corral.frontend.store.leases import Leases, free_all, guard
from corral.frontend.store.schema import hearing
from corral.frontend.store.secrets import Secrets, SecretsKey
from tests.kit.samples import a_load_job, after, an_operation

A, B = LeaseToken("a"), LeaseToken("b")


async def claim(leases: Leases, token: LeaseToken, *, now: float = 0, until: float = 10, name: str = "work") -> bool:
    return await leases.claim(name, token, holder="frontend", now=after(now), until=after(until))


async def test_a_lease_has_one_holder(leases: Leases) -> None:
    assert await claim(leases, A)
    assert not await claim(leases, B, now=9.999999)


async def test_an_expired_lease_may_be_taken_and_its_old_holder_is_out(leases: Leases) -> None:
    await claim(leases, A)

    assert await claim(leases, B, now=10, until=20)
    assert not await leases.extend("work", A, now=after(11), until=after(30))
    assert not await leases.release("work", A)
    assert await leases.extend("work", B, now=after(11), until=after(30))


async def test_claiming_again_with_the_same_token_is_harmless(leases: Leases) -> None:
    await claim(leases, A)

    assert await claim(leases, A, now=1, until=11)
    assert not await claim(leases, B, now=10)


async def test_an_extended_lease_lasts_longer(leases: Leases) -> None:
    await claim(leases, A)
    assert await leases.extend("work", A, now=after(9), until=after(30))

    assert not await claim(leases, B, now=29)
    assert await claim(leases, B, now=30, until=40)


async def test_an_expired_lease_cannot_be_extended(leases: Leases) -> None:
    await claim(leases, A)

    assert not await leases.extend("work", A, now=after(10), until=after(30))


async def test_a_released_lease_is_free_at_once(leases: Leases) -> None:
    await claim(leases, A)
    assert await leases.release("work", A)
    assert not await leases.release("work", A)

    assert await claim(leases, B, now=1)


async def test_names_do_not_disturb_each_other(leases: Leases) -> None:
    assert await claim(leases, A, name="one")
    assert await claim(leases, B, name="two")


async def test_four_claimers_of_five_hundred_leases_never_get_one_twice(leases: Leases) -> None:
    names = [f"job-{number}" for number in range(500)]

    async def claimer(number: int) -> list[str]:
        token = LeaseToken(f"token-{number}")
        wanted = names[:250] if number % 2 else names[250:]  # each lease is wanted by two, in the same order
        return [name for name in wanted if await claim(leases, token, name=name)]

    claimed = await asyncio.gather(*(claimer(number) for number in range(4)))

    assert Counter(name for some in claimed for name in some) == Counter(names)


async def test_racing_for_one_expired_lease_has_one_winner(leases: Leases) -> None:
    await claim(leases, A)
    won = await asyncio.gather(*(claim(leases, LeaseToken(f"{n}"), now=10, until=20) for n in range(8)))

    assert won.count(True) == 1


async def write_guarded(database: Database, token: LeaseToken) -> bool:
    async with database.begin() as connection:
        result = await connection.execute(
            update(hearing).where(hearing.c.id == 1, guard("work", token)).values(until=after(99))
        )
    return result.rowcount == 1


async def test_a_guarded_write_applies_only_while_the_token_holds(database: Database, leases: Leases) -> None:
    async with database.begin() as connection:
        await connection.execute(hearing.insert().values(id=1, since=after(0), until=after(0)))
    await claim(leases, A)
    assert not await write_guarded(database, B)
    assert await write_guarded(database, A)

    await claim(leases, B, now=10, until=20)
    assert not await write_guarded(database, A)


async def test_a_lease_cannot_be_taken_between_a_guarded_write_and_its_commit(
    database: Database, leases: Leases
) -> None:
    await claim(leases, A)
    taken: list[bool] = []

    async def take_over() -> None:
        taken.append(await claim(leases, B, now=10, until=20))

    async with asyncio.TaskGroup() as group, database.begin() as connection:
        assert (await connection.execute(select(guard("work", A)))).scalar_one()
        group.create_task(take_over())
        for _ in range(20):
            assert (await connection.execute(select(guard("work", A)))).scalar_one()
        assert taken == []

    assert taken == [True]


async def test_whoever_is_alone_frees_all_that_the_dead_held(database: Database, leases: Leases) -> None:
    jobs = LoadJobs(database, await Secrets.open(database, SecretsKey(bytes(32)), at=after(0)))
    intents, job = Intents(database, write_reports), a_load_job()
    operation, wishes = an_operation("op1", "w1")
    await OperationStore(database, with_alias_kept).start(operation, wishes, events=[])
    await jobs.open(job)
    await claim(leases, A)
    assert await intents.claim(A, now=after(1), until=after(7), limit=1)
    assert await jobs.claim(job, A, now=after(1), until=after(30))
    assert not await intents.claim(B, now=after(2), until=after(8), limit=1)
    assert not await jobs.due(after(2))

    await free_all(database, at=after(2))

    assert await claim(leases, B, now=2)
    assert await intents.claim(B, now=after(2), until=after(8), limit=1)
    assert [one.model for one in await jobs.due(after(2))] == [job.model]


async def test_what_a_node_was_asked_for_is_left_to_it_for_a_while(database: Database) -> None:
    intents = Intents(database, write_reports)
    operation, wishes = an_operation("op1", "w1", "w2")
    await OperationStore(database, with_alias_kept).start(operation, wishes, events=[])
    first, _ = await intents.claim(A, now=after(1), until=after(7), limit=2)
    request = Outstanding(
        generation=1, verb=Verb.INSTALL, sent_at=after(1), until=after(90), before=Before(present=False)
    )
    sent = IntentChange(intent=replace(first, outstanding=request), keeps_lease=True, is_corral=True)
    assert await intents.store(A, [sent]) == [True]

    await free_all(database, at=after(2))

    (free,) = await intents.claim(B, now=after(2), until=after(8), limit=2)
    assert free.node_id != first.node_id
    assert [one.node_id for one in await intents.claim(B, now=after(7), until=after(9), limit=2)] == [first.node_id]


def test_only_who_holds_the_lock_of_a_file_is_alone(database: Database) -> None:
    assert database.is_ours_alone is (database.dialect == "sqlite")
