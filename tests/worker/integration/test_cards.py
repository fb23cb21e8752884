"""Real processes that see only the GPUs that they were given."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.processes import worker as worker_process
from corral.wire import go_json, subjects
from corral.wire.backends import CorralInstall, InstallReply, InstallRequest
from corral.worker.config import SupervisionConfig, WorkerConfig
from corral.worker.hardware.gpus import MeasuredGpu, Nvidia, Vendor
from corral.worker.hardware.visible_devices import DEVICE_VARIABLES
from corral.worker.processes.process import Launch
from tests.kit.backend_node import BackendNode
from tests.kit.backend_scripts import write_serving_backend
from tests.kit.clock import ManualClock
from tests.kit.nvml import Device, Library, Memory, as_module
from tests.kit.ports import lasting_port
from tests.kit.worker_client import NODE, WorkerClient

GIB = 1024**3
CARDS = [
    MeasuredGpu(vendor=Vendor.NVIDIA, id=f"GPU-{letter}", index=index, total=12 * GIB, free=12 * GIB)
    for index, letter in enumerate("abc")
]
SHOWS_ITS_ENVIRONMENT = """
import json
with open({path!r} + "/" + str(os.getpid()), "w") as file:
    json.dump(dict(os.environ), file)
"""


class Machine(BackendNode):
    """Has three GPUs and a backend whose processes write down what they see."""

    def __init__(self, folder: Path, clock: ManualClock, environment: dict[str, str]) -> None:
        super().__init__(
            folder=folder,
            clock=clock,
            ranges=[range(port, port + 1) for port in (lasting_port(), lasting_port(), lasting_port())],
            limits=SupervisionConfig(),
            environment={"PATH": os.defpath, **environment},
            cards=CARDS,
        )
        self.seen = folder / "seen"
        self.seen.mkdir()
        write_serving_backend(self.installed, "seer", body=SHOWS_ITS_ENVIRONMENT.format(path=str(self.seen)))

    async def start(self, *, cards: list[str] | None) -> Launch:
        corral = CorralInstall() if cards is None else CorralInstall(cards=cards)
        return await self.deliver(InstallRequest(backend="seer", model_id="m", corral=corral))

    def devices(self, launch: Launch) -> dict[str, str]:
        """The variables about GPUs that a process found in its environment."""
        process = self.supervisor.find(launch.key)
        assert process is not None
        variables = json.loads((self.seen / str(process.pid)).read_text())
        return {name: value for name, value in variables.items() if name in DEVICE_VARIABLES}


@pytest.fixture
def environment() -> dict[str, str]:
    return {}


@pytest.fixture
async def machine(tmp_path: Path, clock: ManualClock, environment: dict[str, str]) -> AsyncIterator[Machine]:
    async with Machine(tmp_path, clock, environment) as machine:
        yield machine


async def test_a_process_sees_its_cards_and_no_others(machine: Machine) -> None:
    assert machine.devices(await machine.start(cards=["GPU-c", "GPU-a"])) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,0",
        "NVIDIA_VISIBLE_DEVICES": "GPU-c,GPU-a",
        "GGML_VK_VISIBLE_DEVICES": "2,0",
    }


async def test_a_process_without_a_card_sees_none(machine: Machine) -> None:
    assert machine.devices(await machine.start(cards=[]))["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize("cards", [None, [card.id for card in CARDS]])
@pytest.mark.parametrize("environment", [{"HIP_VISIBLE_DEVICES": "1", "GGML_VK_VISIBLE_DEVICES": "0"}])
async def test_a_process_that_may_see_all_inherits_what_the_worker_has(
    machine: Machine, environment: dict[str, str], cards: list[str] | None
) -> None:
    assert machine.devices(await machine.start(cards=cards)) == environment


@pytest.mark.parametrize("environment", [{"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0,1,2"}])
async def test_what_is_inherited_never_mixes_with_what_is_given(machine: Machine, environment: dict[str, str]) -> None:
    devices = machine.devices(await machine.start(cards=["GPU-b"]))

    assert devices["CUDA_VISIBLE_DEVICES"] == "1"
    assert "HIP_VISIBLE_DEVICES" not in devices


async def test_a_process_with_the_same_cards_is_used_again_and_one_with_others_started_anew(machine: Machine) -> None:
    first = await machine.start(cards=["GPU-a", "GPU-b"])
    assert await machine.start(cards=["GPU-b", "GPU-a"]) is first
    assert await machine.start(cards=None) is first, "a frontend that names none takes what is there"

    second = await machine.start(cards=["GPU-c"])

    assert second.mark != first.mark
    assert machine.devices(second)["CUDA_VISIBLE_DEVICES"] == "2"
    assert machine.supervisor.launches() == [second]


async def test_a_process_that_was_started_for_all_has_all(machine: Machine) -> None:
    first = await machine.start(cards=None)

    assert await machine.start(cards=["GPU-a", "GPU-b", "GPU-c"]) is first


@pytest.mark.parametrize("force", [False, True])
async def test_a_card_that_is_not_there_is_refused_and_what_runs_is_left_alone(machine: Machine, force: bool) -> None:
    running = await machine.start(cards=["GPU-a"])
    request = InstallRequest(backend="seer", model_id="m", force=force, corral=CorralInstall(cards=["GPU-gone"]))

    answer = await machine.ask("backend.install", go_json.encode(request))

    assert answer is not None
    reply = go_json.decode(answer, InstallReply)
    assert (reply.success, reply.error) == (False, "this node has no GPU 'GPU-gone'; it has GPU-a, GPU-b, GPU-c")
    assert machine.supervisor.running() == [running]


async def test_a_whole_worker_tells_of_its_cards_and_starts_a_process_on_one(
    worker: Any,
    on_nats: WorkerConfig,
    frontend: Any,
    answer: Any,
    bus_client: WorkerClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver's library is the only part that is made up."""
    library = Library([Device("NVIDIA L4", Memory(24 * GIB, 20 * GIB), uuid=f"GPU-{letter}") for letter in "ab"])
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    gpus = [Nvidia(lambda: as_module(library), root=tmp_path)]
    monkeypatch.setattr(worker_process, "detectors_of_this_machine", lambda _: gpus)
    seen = tmp_path / "seen"
    seen.mkdir()
    write_serving_backend(on_nats.backends_path, "seer", body=SHOWS_ITS_ENVIRONMENT.format(path=str(seen)))
    frontend.will_answer("register", answer(201, {"id": NODE, "corral": {"version": "1", "features": ["cards"]}}))

    async with worker(on_nats) as running:
        await frontend.until_received("register")
        library.devices[1].memory = Memory(24 * GIB, 5 * GIB)
        while len(frontend.received) < 2:  # others than the heartbeat may wait for the clock, too
            await running.pass_time(seconds=10)
        reply = await bus_client.ask(
            subjects.backend_install, b'{"backend": "seer", "model_id": "m", "corral": {"cards": ["GPU-b"]}}'
        )

    told = [request.body["corral"]["cards"] for request in frontend.received[:2]]
    assert [[(card["id"], card["free"] // GIB) for card in cards] for cards in told] == [
        [("GPU-a", 20), ("GPU-b", 20)],
        [("GPU-a", 20), ("GPU-b", 5)],
    ]
    assert reply["success"], reply
    [file] = seen.iterdir()
    assert json.loads(file.read_text())["CUDA_VISIBLE_DEVICES"] == "1"
