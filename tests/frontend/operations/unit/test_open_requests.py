"""Requests to workers that were started anew or went offline are given up, once and for all."""

import asyncio

import pytest
from msgspec.structs import replace

from corral.base.tasks import start_task
from corral.frontend.operations.decide.intent import Before, Intent, Outstanding
from corral.frontend.operations.dispatcher import NodeWentAway, OpenRequests, WorkerRestarted
from tests.kit.clock import START
from tests.kit.samples import an_operation


def sent_to(life: str) -> Intent:
    _, [intent] = an_operation("op", "w")
    asked = Outstanding(
        generation=1, verb=intent.verb, sent_at=START, until=START, before=Before(present=False), life=life
    )
    return replace(intent, outstanding=asked)


async def test_a_worker_that_restarts_twice_is_given_up_once() -> None:
    """Whoever waits may need a moment to end, to take back what is being written for example."""
    requests, intent = OpenRequests(), sent_to("first")
    ending, may_end = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        async with requests.waiting(intent):
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await may_end.wait()

    waiting = start_task(wait(), name="wait")
    await asyncio.sleep(0)
    assert requests.nodes == {intent.node_id}
    requests.give_up(intent.node_id, life="second")
    await ending.wait()
    requests.give_up(intent.node_id, life="third")
    may_end.set()
    with pytest.raises(WorkerRestarted):
        await waiting
    assert not requests.nodes


async def test_whatever_a_node_was_asked_is_given_up_when_it_goes_offline() -> None:
    requests, intent = OpenRequests(), sent_to("")

    async def wait() -> None:
        async with requests.waiting(intent):
            await asyncio.Event().wait()

    waiting = start_task(wait(), name="wait")
    await asyncio.sleep(0)
    requests.give_up_offline(intent.node_id)
    with pytest.raises(NodeWentAway):
        await waiting
    assert not requests.nodes
