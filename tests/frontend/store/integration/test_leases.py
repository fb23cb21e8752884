"""Leases on both databases: one holder at a time, and only the holder writes."""

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from corral.base.ids import LeaseToken
from corral.frontend.backends.decide.backend import with_alias_kept
from corral.frontend.backends.store import write_reports
from corral.frontend.operations.decide.intent import Before, Outstanding, Verb
from corral.frontend.operations.store.intents import IntentChange, Intents
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.serving.decide.load_job import LoadPolicy, may_claim
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.store.db import Database
from corral.frontend.store.leases import Leases, free_all
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
    assert not await claim(leases, A, now=11, until=30)
    assert not await leases.release("work", A)
    assert await claim(leases, B, now=11, until=30)


async def test_claiming_again_with_the_same_token_is_harmless(leases: Leases) -> None:
    await claim(leases, A)

    assert await claim(leases, A, now=1, until=11)
    assert not await claim(leases, B, now=10)


async def test_an_extended_lease_lasts_longer(leases: Leases) -> None:
    await claim(leases, A)
    assert await claim(leases, A, now=9, until=30)

    assert not await claim(leases, B, now=29)
    assert await claim(leases, B, now=30, until=40)


async def test_an_expired_lease_that_nobody_took_can_be_held_on(leases: Leases) -> None:
    await claim(leases, A)

    assert await claim(leases, A, now=10, until=30)
    assert not await claim(leases, B, now=29)


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


@pytest.fixture
async def intents(database: Database) -> Intents:
    """The intents of one operation on one node."""
    operation, wishes = an_operation("op1", "w1")
    await OperationStore(database, with_alias_kept).start(operation, wishes, events=[])
    return Intents(database, write_reports)


async def test_a_guarded_write_applies_only_while_the_token_holds(intents: Intents) -> None:
    (intent,) = await intents.claim(A, now=after(1), until=after(7), limit=1)
    change = IntentChange(intent=intent, keeps_lease=True, is_corral=True)
    assert await intents.store(B, [change]) == [False]
    assert await intents.store(A, [change]) == [True]

    assert await intents.claim(B, now=after(7), until=after(9), limit=1)
    assert await intents.store(A, [change]) == [False]


async def test_a_lease_that_is_taken_while_its_holder_writes_is_written_by_one_of_them(intents: Intents) -> None:
    (intent,) = await intents.claim(A, now=after(1), until=after(7), limit=1)
    written = IntentChange(intent=replace(intent, attempts=5), keeps_lease=True, is_corral=True)

    (stored,), taken = await asyncio.gather(
        intents.store(A, [written]), intents.claim(B, now=after(7), until=after(9), limit=1)
    )

    # PostgreSQL passes over a row that is being written: then it is there for the next who asks.
    (seen,) = taken or await intents.claim(B, now=after(7), until=after(9), limit=1)
    assert stored is (seen.attempts == 5), "whoever took the lease has what its last holder wrote"
    assert await intents.store(A, [written]) == [False]


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
    assert not [one for one in await jobs.waiting() if may_claim(one, after(2), LoadPolicy())]

    await free_all(database, at=after(2))

    assert await claim(leases, B, now=2)
    assert await intents.claim(B, now=after(2), until=after(8), limit=1)
    assert [one.model for one in await jobs.waiting() if may_claim(one, after(2), LoadPolicy())] == [job.model]


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


async def test_files_that_a_dead_frontend_brought_to_a_node_are_taken_over_at_once(database: Database) -> None:
    intents = Intents(database, write_reports)
    operation, wishes = an_operation("op1", "w1", verb=Verb.STAGE)
    await OperationStore(database, with_alias_kept).start(operation, wishes, events=[])
    (staging,) = await intents.claim(A, now=after(1), until=after(7), limit=1)
    request = Outstanding(
        generation=1, verb=Verb.STAGE, sent_at=after(1), until=after(90), before=Before(present=False)
    )
    sent = IntentChange(intent=replace(staging, outstanding=request), keeps_lease=True, is_corral=True)
    assert await intents.store(A, [sent]) == [True]

    await free_all(database, at=after(2))

    assert await intents.claim(B, now=after(2), until=after(8), limit=1)


def test_only_who_holds_the_lock_of_a_file_is_alone(database: Database) -> None:
    assert database.is_ours_alone is (database.dialect == "sqlite")
