"""The worker that serves is killed, in the middle of a stream and while nobody asks: who notices, and for how long.

Nothing starts it again. Its engine dies with it, the other node loads the model, and only the stream that had begun is
cut off: whoever had no byte yet waits for the other node.
"""

import asyncio
import itertools
import time
from contextlib import AsyncExitStack
from typing import Final

from chaos.round import Workshop
from corral.base.tasks import end_tasks, start_task
from tests.kit.load_clients import ANSWER_TIMEOUT_SECONDS, StreamOutcome, counted, under_load
from tests.kit.processes import WorkerProcess
from tests.kit.serving import ServingFleet, serving_fleet, until_gone

CLIENTS: Final = 4
_LONG: Final = 400
"""Tokens of a stream that is still under way when its worker dies."""


async def of_the_worker_that_serves(workshop: Workshop) -> None:
    """Each step is one death; the dead worker is started again, and takes over when the other one dies."""
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(serving_fleet(workshop.directory))
        first = await fleet.question().ask()
        assert first.is_served, first
        for death in itertools.islice(itertools.cycle([_in_mid_stream, _while_idle]), workshop.steps):
            victim = await fleet.serving()
            processes = {process.pid: process.name() for process in victim.started()}
            told = await death(fleet, victim)
            await until_gone(processes)
            successor = await fleet.serving()
            assert successor is not victim
            workshop.story.measure(f"{victim.name} killed {told}; {successor.name} serves")
            victim.start()
            await fleet.until_healthy(victim.name)


async def _in_mid_stream(fleet: ServingFleet, victim: WorkerProcess) -> str:
    async with under_load(fleet.question(), clients=CLIENTS) as load:
        cut, died = await _cut_off(fleet, victim)
        first = await load.until_served(since=died)
    assert cut.is_cut_off, f"a stream whose engine died must break off: {cut}"
    failed = [answer for answer in load.answers if not answer.is_served]
    assert not failed, counted(failed)
    return (
        f"in mid-stream: that stream was cut off, {len(failed)} of {len(load.answers)} other requests failed,"
        f" the next answer came after {first.ended - died:.1f} s"
    )


async def _while_idle(fleet: ServingFleet, victim: WorkerProcess) -> str:
    processes = {process.pid: process.name() for process in victim.started()}
    await victim.kill()
    await until_gone(processes)  # an engine that is still dying may take the question, and then it is in mid-stream
    answer = await fleet.question().ask()
    assert answer.is_served, answer
    return f"while idle: the next request was answered after {answer.seconds:.1f} s"


async def _cut_off(fleet: ServingFleet, victim: WorkerProcess) -> tuple[StreamOutcome, float]:
    """What became of a stream that had begun, and when its worker was killed."""
    begun = asyncio.Event()
    asking = start_task(fleet.question(tokens=_LONG).ask(on_event=begun.set), name="a long stream")
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
            await begun.wait()
        died = time.monotonic()
        await victim.kill()
        return await asking, died
    finally:
        await end_tasks(asking)
