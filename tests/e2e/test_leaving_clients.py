"""Half of two hundred clients hang up in mid-stream: each ends its own request, at the engine too, and no other."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from corral.base.tasks import end_tasks, start_task
from tests.kit.backend_scripts import GO_ON, OPENAI_PORT, PACED_ENGINE, Pipe, open_pipe, write_serving_backend
from tests.kit.models import write_model
from tests.kit.serving import ServingFleet, serving_fleet
from tests.kit.waiting import eventually, within_timeout

HALF = 100


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    with open_pipe(tmp_path / "said") as opened:
        yield opened


@pytest.fixture
async def fleet(tmp_path: Path, pipe: Pipe) -> AsyncIterator[ServingFleet]:
    """Its model `paced` is served by an engine that tells what becomes of every request."""
    async with serving_fleet(tmp_path, beat_seconds=5) as made:  # a slow machine makes no node silent
        engine = write_serving_backend(made.backends, "paced", pipe=pipe.path, body=PACED_ENGINE)
        (engine / "corral.json").write_text(OPENAI_PORT, encoding="utf-8")
        write_model(made.models, "paced", backend="paced")
        await eventually(lambda: knows(made, "paced"), "control to read the model")
        yield made


async def knows(fleet: ServingFleet, model: str) -> bool:
    return (await fleet.gateway.call("GET", f"/v1/models/{model}")).status == 200


async def said(pipe: Pipe, count: int) -> Counter[str]:
    """The next words of the engine, counted."""
    words = [await within_timeout(pipe.line(), lambda: "a word of the engine") for _ in range(count)]
    return Counter(words)


async def until_in_flight(fleet: ServingFleet, count: int) -> None:
    """As control hears it from the gateway."""

    async def has_them() -> bool:
        return [replica.in_flight for replica in await fleet.loaded("paced")] == [count]

    await eventually(has_them, f"{count} requests in flight")


async def test_clients_that_leave_end_their_own_request_and_no_other(fleet: ServingFleet, pipe: Pipe) -> None:
    async with AsyncExitStack() as stack:
        everybody = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        question = replace(fleet.question(model="paced"), session=everybody)
        leaving = [start_task(question.ask(), name=f"leaves {number}") for number in range(HALF)]
        staying = [start_task(question.ask(), name=f"stays {number}") for number in range(HALF)]
        stack.push_async_callback(end_tasks, *leaving, *staying)
        assert await said(pipe, 2 * HALF) == {"begun": 2 * HALF}
        await until_in_flight(fleet, 2 * HALF)

        await end_tasks(*leaving)

        assert await said(pipe, HALF) == {"aborted": HALF}
        await until_in_flight(fleet, HALF)
        last = await replace(question, text=GO_ON).ask()
        answers = [last, *[await task for task in staying]]
        assert [answer for answer in answers if not answer.is_served] == []
        assert await said(pipe, HALF + 2) == {"begun": 1, "finished": HALF + 1}
        await until_in_flight(fleet, 0)
