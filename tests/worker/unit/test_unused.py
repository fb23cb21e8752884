"""Processes of administrators' installs end when no model has asked for them, and no others do."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from corral.base.tasks import end_tasks, start_task
from corral.wire.replicas import ProcessKey
from corral.worker.installing.backend_directory import Home
from corral.worker.processes.process import Launch
from corral.worker.processes.supervisor import UnusedProcesses
from tests.kit.clock import ManualClock

MINUTE = timedelta(minutes=1)


def a_launch(mark: str) -> Launch:
    return Launch(
        key=ProcessKey("mock", 0), backend="mock", home=Home(name="mock", executable=Path("/x/run.sh")), model_id="",
        bind_host="127.0.0.1", port=1, http_port=None, token="", http_key="", mark=mark, environment={},
    )  # fmt: skip


class Rig:
    def __init__(self, after: timedelta) -> None:
        self.clock = ManualClock()
        self.ended: list[str] = []
        self.unused = UnusedProcesses(self.end, clock=self.clock, after=after)

    async def end(self, launch: Launch) -> None:
        self.ended.append(launch.mark)
        await asyncio.sleep(0)

    def asked(self, mark: str, *, by_model: bool = False) -> None:
        self.unused.asked_for(a_launch(mark), by_model=by_model)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig(10 * MINUTE)
    task = start_task(rig.unused.run(), name="unused")
    yield rig
    await end_tasks(task)


async def test_one_ends_when_its_time_is_over(rig: Rig) -> None:
    assert rig.clock.sleeping == 0
    rig.asked("a")
    await rig.clock.advance(9 * MINUTE)
    assert rig.ended == []
    await rig.clock.advance(MINUTE)
    assert rig.ended == ["a"]
    assert rig.clock.sleeping == 0


async def test_asking_again_begins_its_time_anew(rig: Rig) -> None:
    rig.asked("a")
    await rig.clock.advance(6 * MINUTE)
    rig.asked("a")
    await rig.clock.advance(6 * MINUTE)
    assert rig.ended == []
    await rig.clock.advance(4 * MINUTE)
    assert rig.ended == ["a"]


async def test_what_a_model_asked_for_stays(rig: Rig) -> None:
    rig.asked("a")
    rig.asked("a", by_model=True)
    rig.asked("a")
    rig.asked("b", by_model=True)
    await rig.clock.advance(60 * MINUTE)
    assert rig.ended == []


async def test_each_has_its_own_time_and_the_dead_are_forgotten(rig: Rig) -> None:
    rig.asked("a")
    await rig.clock.advance(5 * MINUTE)
    rig.asked("b")
    rig.asked("c")
    rig.unused.forget(a_launch("c"))
    await rig.clock.advance(5 * MINUTE)
    assert rig.ended == ["a"]
    await rig.clock.advance(5 * MINUTE)
    assert rig.ended == ["a", "b"]


async def test_no_time_at_all_means_for_ever() -> None:
    rig = Rig(timedelta(0))
    rig.asked("a")
    await rig.unused.sweep()
    assert rig.ended == []
