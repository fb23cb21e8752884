"""Those who store together share a transaction; nobody waits for one that never comes, and nobody falls for another."""

import asyncio
from collections.abc import Sequence

import pytest

from corral.base.errors import DatabaseUnavailable
from corral.base.ids import LeaseToken
from corral.base.tasks import end_tasks, start_task
from corral.control.intent_writer import IntentWriter
from corral.state.db import Database
from corral.state.intents import Change, Intents
from corral.testing.samples import an_operation

TOKEN = LeaseToken("t")


class HeldIntents(Intents):
    """Each transaction waits at a gate, and may fail."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.batches: list[list[str]] = []
        self.begun = asyncio.Semaphore(0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing = False

    async def store(self, token: LeaseToken, changes: Sequence[Change]) -> list[bool]:
        self.batches.append([change.intent.node_id for change in changes])
        self.begun.release()
        await self.gate.wait()
        if self.failing:
            self.failing = False
            raise DatabaseUnavailable("away")
        return [change.intent.node_id != "lost" for change in changes]


@pytest.fixture
def intents(database: Database) -> HeldIntents:
    return HeldIntents(database)


pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def changes(*nodes: str) -> list[Change]:
    return [Change(intent=one, keeps_lease=False, is_corral=True) for one in an_operation("op", *nodes)[1]]


async def storing(
    writer: IntentWriter, intents: HeldIntents, first: str, *others: str
) -> tuple["asyncio.Task[bool]", list["asyncio.Task[bool]"]]:
    """The first is in its transaction, at the gate; the others wait for theirs."""
    intents.gate.clear()
    tasks = []
    for change in changes(first, *others):
        tasks.append(start_task(writer.store(change), name=change.intent.node_id))
        await asyncio.sleep(0)
    await intents.begun.acquire()
    return tasks[0], tasks[1:]


async def test_one_alone_is_stored_at_once(intents: HeldIntents) -> None:
    (change,) = changes("w1")
    assert await IntentWriter(intents, TOKEN).store(change)
    assert intents.batches == [["w1"]]


async def test_those_who_come_meanwhile_share_the_next_transaction(intents: HeldIntents) -> None:
    first, others = await storing(IntentWriter(intents, TOKEN), intents, "w1", "w2", "lost", "w3")
    intents.gate.set()
    assert await first
    assert [await one for one in others] == [True, False, True]
    assert intents.batches == [["w1"], ["w2", "lost", "w3"]]


async def test_a_transaction_that_fails_fails_for_those_in_it_only(intents: HeldIntents) -> None:
    first, others = await storing(IntentWriter(intents, TOKEN), intents, "w1", "w2", "w3")
    intents.failing = True
    intents.gate.set()
    with pytest.raises(DatabaseUnavailable):
        await first
    assert [await one for one in others] == [True, True]


async def test_one_that_is_cancelled_while_it_writes_takes_nobody_along(intents: HeldIntents) -> None:
    writer = IntentWriter(intents, TOKEN)
    first, others = await storing(writer, intents, "w1", "w2", "w3")
    await end_tasks(first)
    intents.gate.set()
    assert [await one for one in others] == [True, True]
    assert first.cancelled()
    assert intents.batches == [["w1"], ["w2", "w3"]]


async def test_one_that_is_cancelled_while_it_waits_takes_nobody_along(intents: HeldIntents) -> None:
    first, (second, third) = await storing(IntentWriter(intents, TOKEN), intents, "w1", "w2", "w3")
    await end_tasks(second)
    intents.gate.set()
    assert await first
    assert await third
