"""A fleet in which something of everything is the matter: for the questions of a tired operator.

Two real workers, of which one has a GPU and a model that answers a request for ever. Beside them is a simulated node
whose disk became full: it blocks the upgrade of a backend, and one that lost it. A model fits nowhere, and a download
crawls.
"""

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from tests.kit.backend_scripts import OPENAI_PORT, PACED_ENGINE, write_serving_backend
from tests.kit.gpu_machine import write_gpu_machine
from tests.kit.images import a_layer
from tests.kit.loop_thread import LoopThread
from tests.kit.models import write_model
from tests.kit.processes import running_below
from tests.kit.registry import FakeRegistry, trickling
from tests.kit.simulated_fleet import Behave, FleetCommand, Join
from tests.kit.simulated_node import SimulatedMachine
from tests.kit.simulated_site import MixedFleet, simulated_site
from tests.kit.waiting import wait_until

WITH_GPU: Final = "w1"
WORKERS: Final = (WITH_GPU, "w2")
MODEL: Final = "chat"
"""Runs on the machine with the GPU, where one request never ends."""
HUGE: Final = "huge"
"""A model with so long a context that no machine has the memory."""
BACKEND: Final = "engine"
SLOW: Final = "slow"
"""A backend whose download crawls on the machine with the GPU."""
FULL: Final = "full-00000"
"""The simulated node without room."""
LOST: Final = "lost-00001"
"""The simulated node that lost the backend behind everybody's back."""
_WEIGHTS: Final = 100_000
_SLOW_WEIGHTS: Final = 20_000_000
_WAIT_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubledFleet(MixedFleet):
    def node_id(self, name: str) -> str:
        return next(str(node["id"]) for node in self.api("GET", "/api/v1/nodes")["items"] if node["name"] == name)

    def operate(self, verb: str, backend: str, *nodes: str) -> str:
        """Begin an operation, on all nodes unless some are named; its id."""
        ids = [self.node_id(name) for name in nodes]
        return str(self.api("POST", "/api/v1/operations", {"verb": verb, "backend": backend, "nodes": ids})["id"])

    @contextmanager
    def control_away(self) -> Iterator[None]:
        """Control dies, and nobody starts it again until the end."""
        launcher = self.site.frontends[0].pid
        os.kill(launcher, signal.SIGSTOP)
        try:
            for control in running_below(launcher, "control"):
                control.kill()
            yield
        finally:
            os.kill(launcher, signal.SIGCONT)

    async def begin_an_answer(self) -> None:
        """Ask the model, and hang up when the answer begins."""
        async with _asking(self.url, self.key):
            pass

    def until_state(self, operation: str, state: str) -> None:
        def has_it() -> bool:
            found = self.api("GET", f"/api/v1/operations/{operation}")
            assert found["state"] in (state, "running", "waiting"), json.dumps(found)
            return bool(found["state"] == state)

        wait_until(has_it, f"the operation to be {state}", seconds=_WAIT_SECONDS)

    def until_nodes(self, count: int) -> None:
        def are_healthy() -> bool:
            nodes = self.api("GET", "/api/v1/nodes")["items"]
            return [node["status"] for node in nodes] == ["healthy"] * count

        wait_until(are_healthy, f"{count} healthy nodes", seconds=_WAIT_SECONDS)

    def until_full(self) -> None:
        """Until control has heard that the disk is full."""
        path = f"/api/v1/nodes/{self.node_id(FULL)}"
        wait_until(lambda: self.api("GET", path)["available_disk"] == 0, "a full disk", seconds=_WAIT_SECONDS)

    def until_drift(self) -> None:
        """Until control has heard that a backend is gone."""

        def is_heard() -> bool:
            found = [item["node_name"] for item in self.api("GET", "/api/v1/drift")["items"]]
            return LOST in found

        wait_until(is_heard, "drift", seconds=_WAIT_SECONDS)

    def until_busy(self) -> None:
        """Until control has heard of the request that never ends."""

        def is_busy() -> bool:
            replicas = self.api("GET", "/api/v1/replicas")["items"]
            return [each["in_flight"] for each in replicas if each["state"] == "loaded"] == [1]

        wait_until(is_busy, "a request in flight", seconds=_WAIT_SECONDS)

    def until_attention(self, *kinds: str) -> None:
        """Until something of each kind needs somebody."""

        def all_there() -> bool:
            found = {item["kind"] for item in self.api("GET", "/api/v1/fleet/summary")["attention"]}
            return found >= set(kinds)

        wait_until(all_there, f"{', '.join(kinds)} in the attention list", seconds=_WAIT_SECONDS)


@contextmanager
def troubled_fleet(folder: Path, crowd: Sequence[Join] = ()) -> Iterator[TroubledFleet]:
    """All troubles are there on entry."""
    models, index = folder / "models", folder / "index.yaml"
    write_model(models, HUGE, context_size=50_000_000)
    write_model(models, MODEL, backend=BACKEND)
    settings = {
        "CORRAL_BACKEND_GALLERIES": json.dumps([{"name": "g", "url": f"file://{index}"}]),
        "CORRAL_MODELS_PATH": str(models),
    }
    with LoopThread() as loop:
        registry = loop.enter(FakeRegistry())
        index.write_text("".join(_entry(registry, name) for name in (BACKEND, SLOW)), encoding="utf-8")
        first = _publish(registry, folder, BACKEND, _WEIGHTS)
        _publish(registry, folder, SLOW, _SLOW_WEIGHTS)
        site = loop.enter(simulated_site(folder, settings=settings, worker_settings=settings))
        workers = {name: site.worker(name) for name in WORKERS}
        for name, value in write_gpu_machine(folder / "gpu").items():
            workers[WITH_GPU].set_variable(name, value)
        for worker in workers.values():
            loop.enter(worker)
        full = Join(count=1, prefix="full", interval_seconds=1.0, machine=SimulatedMachine(one_disk=True))
        commands: list[FleetCommand] = [full, Join(count=1, prefix="lost"), *crowd, Behave(digest=first)]
        for command in commands:
            loop.run(site.fleet.do(command))
        fleet = TroubledFleet(loop=loop, site=site, registry=registry, workers=workers)
        fleet.until_nodes(len(WORKERS) + 2 + sum(join.count for join in crowd))
        _trouble(fleet, folder)
        yield fleet


def _publish(registry: FakeRegistry, folder: Path, name: str, weights: int) -> str:
    """Put an image of a backend that works into the registry, another one each time; its digest."""
    made = folder / name
    if not made.exists():
        write_serving_backend(folder, name, pipe=Path(os.devnull), body=PACED_ENGINE)
        (made / "corral.json").write_text(OPENAI_PORT, encoding="utf-8")
    content = {path.name: path.read_bytes() for path in made.iterdir()} | {"weights": os.urandom(weights)}
    return registry.add_image(f"backends/{name}", [a_layer(content)]).digest


def _entry(registry: FakeRegistry, name: str) -> str:
    return f"- name: {name}\n  uri: oci://{registry.reference(f'backends/{name}')}\n"


def _trouble(fleet: TroubledFleet, folder: Path) -> None:
    fleet.api("POST", "/api/v1/model-loads", {"name": HUGE})
    fleet.until_state(fleet.operate("install", BACKEND), "done")
    fleet.loop.run(fleet.site.fleet.do(Behave(names=[FULL], lies={"available_disk": 0})))
    fleet.until_full()
    second = _publish(fleet.registry, folder, BACKEND, _WEIGHTS)
    fleet.loop.run(fleet.site.fleet.do(Behave(names=[LOST], digest=second)))
    fleet.until_state(fleet.operate("upgrade", BACKEND), "failed")
    fleet.loop.run(fleet.site.fleet.do(Behave(names=[LOST], forgets=[BACKEND])))
    fleet.until_drift()
    fleet.registry.faults[f"GET /v2/backends/{SLOW}/blobs"] = [trickling(2_000, pause_seconds=0.1)] * 10
    fleet.operate("install", SLOW, WITH_GPU)
    fleet.api("POST", "/api/v1/model-loads", {"name": MODEL, "node": WITH_GPU})
    fleet.loop.enter(_asking(fleet.url, fleet.key))
    fleet.until_busy()
    fleet.until_attention("targets_blocked", "drift")  # that a model finds no place is told after half a minute


@asynccontextmanager
async def _asking(url: str, key: str) -> AsyncIterator[None]:
    """A question whose answer has begun and does not end."""
    question = {"model": MODEL, "messages": [{"role": "user", "content": "wait"}], "stream": True}
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
        session.post(f"{url}/v1/chat/completions", json=question, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        await answer.content.readline()
        yield
