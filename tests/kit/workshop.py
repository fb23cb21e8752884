"""Real workers and a registry that stops, loses and finds images as it is told: for acts of people with browsers."""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from corral.oci.manifests import Descriptor
from tests.kit.backend_scripts import write_serving_backend
from tests.kit.images import a_layer
from tests.kit.loop_thread import LoopThread
from tests.kit.processes import WorkerProcess
from tests.kit.registry import FakeRegistry, pausing
from tests.kit.simulated_site import SimulatedSite, simulated_site
from tests.kit.up import Answer, call
from tests.kit.waiting import wait_until

_LAYER_BYTES: Final = 400_000
"""Bytes that cannot be compressed: enough to stop in the middle of them."""
_WAIT_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Guest:
    """A worker that is killed and started again."""

    loop: LoopThread
    process: WorkerProcess

    def kill(self) -> None:
        self.loop.run(self.process.kill())

    def start(self) -> None:
        self.loop.run(_start(self.process))


async def _start(process: WorkerProcess) -> None:
    process.start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """A frontend with real workers, and a registry with an image for each backend."""

    loop: LoopThread
    site: SimulatedSite
    registry: FakeRegistry
    layers: dict[str, Descriptor]
    """The only layer of each backend's image."""
    workers: dict[str, WorkerProcess]

    @property
    def url(self) -> str:
        return self.site.frontends[0].url

    @property
    def key(self) -> str:
        return self.site.admin_key

    def folder(self, worker: str, backend: str) -> Path:
        """Where a worker has a backend on its disk."""
        return self.site.folder / worker / "backends" / backend

    def call(self, method: str, path: str, body: object = None) -> Answer:
        """As the administrator."""
        return call(method, self.url + path, body, key=self.key)

    def read(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()

    def node_ids(self) -> dict[str, str]:
        return {node["name"]: node["id"] for node in self.read("/api/v1/nodes")["items"]}

    def operations(self, verb: str, backend: str) -> list[Any]:
        """All that were ever asked for."""
        items: list[Any] = self.read(f"/api/v1/operations?verb={verb}&backend={backend}")["items"]
        return items

    def until_healthy(self, *more: str) -> None:
        """All workers, and these."""
        names = sorted([*self.workers, *more])

        def are_healthy() -> bool:
            nodes = self.read("/api/v1/nodes")["items"]
            return sorted(node["name"] for node in nodes if node["status"] == "healthy") == names

        wait_until(are_healthy, f"{', '.join(names)} to be healthy", seconds=_WAIT_SECONDS)

    @contextmanager
    def guest(self, name: str) -> Iterator[Guest]:
        """One more worker, which may die. It leaves no node behind."""
        worker = self.site.worker(name)
        guest = Guest(self.loop, worker)
        guest.start()
        try:
            self.until_healthy(name)
            yield guest
        finally:
            guest.kill()
            answer = self.call("DELETE", f"/api/v1/nodes/{self.node_ids()[name]}")
            assert answer.status == 204, answer.body

    # Beside the page, as by another person.

    def operate(self, verb: str, backend: str, workers: Sequence[str] = ()) -> None:
        """Install or delete a backend, on all workers unless some are named; returns when it is done."""
        ids = self.node_ids()
        answer = self.call(
            "POST",
            "/api/v1/operations",
            {"verb": verb, "backend": backend, "nodes": [ids[name] for name in workers]},
        )
        assert answer.status == 202, answer.body
        path = f"/api/v1/operations/{answer.json()['id']}"

        def is_done() -> bool:
            operation = self.read(path)
            assert operation["state"] != "failed", json.dumps(operation)
            return bool(operation["state"] == "done")

        wait_until(is_done, f"{verb} of {backend}", seconds=_WAIT_SECONDS)

    def end_sessions(self) -> None:
        """End all sessions of browsers."""
        for session in self.read("/api/v1/sessions"):
            answer = self.call("DELETE", f"/api/v1/sessions/{session['id']}")
            assert answer.status in (202, 204), answer.body

    # What the registry does.

    @contextmanager
    def half_downloads(self, backend: str, *, times: int) -> Iterator[None]:
        """Meanwhile who asks gets half of the image, for so many times; the rest comes afterwards."""
        go_on = self.loop.run(self._hold(backend, times))
        try:
            yield
        finally:
            self.loop.run(_set(go_on))

    @contextmanager
    def missing_layer(self, backend: str) -> Iterator[None]:
        """Meanwhile the registry has lost the content of the image."""
        digest = self.layers[backend].digest
        content = self.registry.blobs.pop(digest)
        try:
            yield
        finally:
            self.registry.blobs[digest] = content

    async def _hold(self, backend: str, times: int) -> asyncio.Event:
        go_on = asyncio.Event()
        faults = [pausing(_LAYER_BYTES // 2, go_on)] * times
        self.registry.faults[f"GET /v2/backends/{backend}/blobs"] = faults
        return go_on


async def _set(event: asyncio.Event) -> None:
    event.set()


@contextmanager
def open_workshop(folder: Path, workers: Sequence[str], backends: Sequence[str]) -> Iterator[Workshop]:
    """All workers are healthy, and have none of the backends that the gallery offers."""
    index = folder / "index.yaml"
    settings = {"CORRAL_BACKEND_GALLERIES": json.dumps([{"name": "g", "url": f"file://{index}"}])}
    with LoopThread() as loop:
        registry = loop.enter(FakeRegistry())
        layers = {name: _publish(registry, folder, name) for name in backends}
        entries = [f"- name: {name}\n  uri: oci://{registry.reference(f'backends/{name}')}\n" for name in backends]
        index.write_text("".join(entries), encoding="utf-8")
        site = loop.enter(simulated_site(folder, settings=settings, worker_settings=settings))
        started = {name: loop.enter(site.worker(name)) for name in workers}
        workshop = Workshop(loop=loop, site=site, registry=registry, layers=layers, workers=started)
        workshop.until_healthy()
        yield workshop


def _publish(registry: FakeRegistry, folder: Path, name: str) -> Descriptor:
    """Put an image of a backend that works into the registry; its layer."""
    made = write_serving_backend(folder, name)
    layer = a_layer({path.name: path.read_bytes() for path in made.iterdir()} | {"weights": os.urandom(_LAYER_BYTES)})
    registry.add_image(f"backends/{name}", [layer])
    return registry.add_blob(layer)
