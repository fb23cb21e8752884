"""Workers that are only their messages: what their journals tell, and how they die."""

from datetime import timedelta

import msgspec
import pytest

from corral.base.errors import BusTimeout
from corral.base.ids import NodeId
from corral.base.tasks import running
from corral.bus.port import Bus
from corral.wire import subjects
from corral.wire.backends import DeleteRequest, InstallRequest, UpgradeRequest
from tests.kit.clock import ManualClock
from tests.kit.loop_time import let_loop_time_pass
from tests.kit.simulated_backends import SimulatedBackends

NODE = NodeId("n")
LONG = timedelta(seconds=30)


async def ask(bus: Bus, subject: str, request: object) -> bytes:
    return await bus.request(subject, msgspec.json.encode(request), timeout=LONG)


async def install(bus: Bus, operation: str) -> None:
    await ask(bus, subjects.backend_install(NODE), InstallRequest(backend="echo", force=True, op_id=operation))


async def report(bus: Bus) -> None:
    await ask(bus, subjects.backend_list(NODE), {})


async def test_a_download_is_repeated_only_when_a_report_had_shown_it(bus: Bus, clock: ManualClock) -> None:
    worker = SimulatedBackends(NODE, clock)
    await worker.listen(bus)
    await install(bus, "one")
    await install(bus, "one")  # nobody could know
    await report(bus)
    await install(bus, "two")
    await report(bus)
    upgrade = UpgradeRequest(backend="echo", op_id="two")
    await ask(bus, subjects.backend_upgrade(NODE), upgrade)
    await report(bus)
    await ask(bus, subjects.backend_delete(NODE), DeleteRequest(backend="echo"))
    await worker.stop()
    assert [(one.operation, bool(one.uri), one.is_repeated) for one in worker.journal] == [
        ("one", True, False),
        ("one", True, False),
        ("two", True, False),
        ("two", True, True),
        ("", False, False),
    ]


async def _dies_once_it_works(worker: SimulatedBackends) -> None:
    await worker.begun.wait()
    worker.die()
    worker.gate.set()
    let_loop_time_pass(LONG)


@pytest.mark.parametrize("is_corral", [True, False])
async def test_what_a_worker_works_on_is_lost_when_it_dies(bus: Bus, clock: ManualClock, is_corral: bool) -> None:
    worker = SimulatedBackends(NODE, clock, is_corral)
    await worker.listen(bus)
    worker.gate.clear()
    request = ask(bus, subjects.backend_install(NODE), InstallRequest(backend="echo"))
    async with running(_dies_once_it_works(worker), name="a death"):
        with pytest.raises(BusTimeout):
            await request
    assert (worker.disk, worker.journal) == ({}, [])
    await install(bus, "next life")
    assert list(worker.disk) == ["echo"]
    await worker.stop()
