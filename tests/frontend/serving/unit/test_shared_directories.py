"""Asking nodes whether they have the models directory: a few at a time, and not again and again."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import cast

from corral.base.ids import NodeId
from corral.frontend.models.catalogue import Models
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.serving.staging.shared_directories import SharedDirectories
from tests.kit.clock import ManualClock

NODES = [NodeId(f"n{number}") for number in range(40)]


class Answers:
    """Nodes that answer when the test lets them."""

    def __init__(self, clock: ManualClock) -> None:
        self.asked: Counter[NodeId] = Counter()
        self.sharing = set(NODES[::2])
        self.at_once = self.most_at_once = 0
        self.go_on, self.are_many = asyncio.Event(), asyncio.Event()
        self.shared = SharedDirectories(self.ask, cast(Fleet, None), cast(Models, None), clock)

    async def ask(self, id: NodeId) -> bool:
        self.asked[id] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once == 16:
            self.are_many.set()
        try:
            await self.go_on.wait()
            await asyncio.sleep(0)
        finally:
            self.at_once -= 1
        return id in self.sharing


async def test_a_few_at_a_time_and_once_a_minute(clock: ManualClock) -> None:
    answers = Answers(clock)
    answers.go_on.set()

    await answers.shared.look(NODES)
    assert (answers.most_at_once, answers.shared.nodes) == (16, frozenset(NODES[::2]))
    answers.sharing = set()
    await clock.advance(timedelta(seconds=59))
    await answers.shared.look(NODES)
    assert set(answers.asked.values()) == {1}

    await clock.advance(timedelta(seconds=1))
    await answers.shared.look(NODES)
    assert (set(answers.asked.values()), answers.shared.nodes) == ({2}, frozenset())


async def test_nobody_waits_for_a_node_that_somebody_else_asks(clock: ManualClock) -> None:
    answers = Answers(clock)
    looking = asyncio.create_task(answers.shared.look(NODES[:1]))
    await asyncio.sleep(0)

    await answers.shared.look(NODES[:1])
    assert answers.shared.nodes == frozenset()

    answers.go_on.set()
    await looking
    assert (answers.shared.nodes, answers.asked[NODES[0]]) == (frozenset(NODES[:1]), 1)


async def test_whom_a_cancelled_look_has_not_heard_is_asked_again(clock: ManualClock) -> None:
    answers = Answers(clock)
    looking = asyncio.create_task(answers.shared.look(NODES))
    await answers.are_many.wait()
    looking.cancel()
    await asyncio.wait([looking])

    answers.go_on.set()
    await answers.shared.look(NODES)

    assert answers.shared.nodes == frozenset(NODES[::2])
