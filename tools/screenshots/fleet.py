"""The fleet in the pictures: something to see on every page, and something of everything that can be the matter.

Two real workers serve a small model. Beside them are simulated machines in three racks, one of LocalAI's among them.
One is silent, one is being emptied, one has a full disk, two wait for approval. A backend is out of date, another was
lost on one worker, a third is being installed and never done; a model fits nowhere, and one cannot be loaded.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.kit.backend_scripts import write_serving_backend
from tests.kit.images import a_layer
from tests.kit.loop_thread import LoopThread
from tests.kit.models import QUESTION, write_model
from tests.kit.registry import FakeRegistry, stalling
from tests.kit.simulated_fleet import Behave, Join
from tests.kit.simulated_node import SimulatedMachine
from tests.kit.simulated_site import MixedFleet, simulated_site
from tests.kit.waiting import wait_until

WORKERS: Final = ("desk-1", "desk-2")
MODEL: Final = "smollm2"
HUGE: Final = "qwen3-235b"
"""A model with so long a context that no machine has the memory."""
BROKEN: Final = "gemma-3-4b"
"""A model of which half a file is there."""
ENGINE: Final = "vllm"
"""On every machine with a GPU, and out of date there."""
LOST: Final = "whisper"
"""Demanded everywhere, and lost on one worker."""
COMING: Final = "sglang"
"""Is being installed as long as the pictures are taken."""
FULL: Final = "gpu-a-12"
SILENT: Final = "gpu-b-07"
DRAINED: Final = "gpu-a-04"
DESCRIPTIONS: Final = {
    ENGINE: ("Serves large models on GPUs, with paged attention.", "1.2.0", "Apache-2.0", "text-to-text"),
    LOST: ("Turns speech into text, in a hundred languages.", "1.8.2", "MIT", "speech-to-text"),
    COMING: ("Serves models with structured generation.", "0.6.1", "Apache-2.0", "text-to-text"),
    "diffusers": ("Makes pictures from words.", "0.38.0", "Apache-2.0", "image-generation"),
    "kokoro": ("Reads text aloud, in eight languages.", "0.9.4", "Apache-2.0", "text-to-speech"),
    "rerankers": ("Sorts documents by how well they fit a question.", "0.10.0", "Apache-2.0", "rerank"),
}
L40S: Final = {"rack": "a", "gpu": "l40s"}
H100: Final = {"rack": "b", "gpu": "h100"}
_IMAGE_BYTES: Final = 24_000_000
_HELD_AFTER: Final = 11_000_000
_WAIT_SECONDS: Final = 180.0


def _gpus(labels: Mapping[str, str], *, cards: int, memory: int, free: int, **more: Any) -> SimulatedMachine:
    name = "NVIDIA " + labels["gpu"].upper()
    return SimulatedMachine(
        cards=cards,
        card_name=name,
        card_memory=memory,
        free_card_memory=free,
        labels=dict(labels),
        one_disk=True,
        **more,
    )


_A: Final = {"ram": 512, "free_ram": 331, "disk": 3840, "free_disk": 1900}
_B: Final = {"ram": 1024, "free_ram": 640, "disk": 7680, "free_disk": 5200}
CROWD: Final = (
    Join(count=4, prefix="gpu-a", first=1, machine=_gpus(L40S, cards=4, memory=48, free=44, **_A)),
    Join(count=4, prefix="gpu-a", first=5, machine=_gpus(L40S, cards=4, memory=48, free=17, **_A)),
    Join(count=3, prefix="gpu-a", first=9, machine=_gpus(L40S, cards=4, memory=48, free=6, **_A)),
    Join(
        count=1,
        prefix="gpu-a",
        first=12,
        machine=_gpus(L40S, cards=4, memory=48, free=44, **{**_A, "free_disk": 0}),
    ),
    Join(count=6, prefix="gpu-b", first=1, machine=_gpus(H100, cards=8, memory=80, free=31, **_B)),
    Join(
        count=2, prefix="gpu-b", first=7, interval_seconds=2.0, machine=_gpus(H100, cards=8, memory=80, free=74, **_B)
    ),
    Join(
        count=4,
        prefix="cpu",
        first=1,
        machine=SimulatedMachine(ram=128, free_ram=90, labels={"rack": "c"}, one_disk=True),
    ),
    Join(
        count=1,
        prefix="localai",
        first=1,
        is_corral=False,
        machine=SimulatedMachine(ram=64, free_ram=40, labels={"rack": "c"}),
    ),
)
NEWCOMERS: Final = Join(count=2, prefix="gpu-c", first=1, machine=_gpus(H100, cards=8, memory=80, free=79, **_B))


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFleet(MixedFleet):
    def do(self, command: Join | Behave) -> None:
        self.loop.run(self.site.fleet.do(command))

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.api("GET", "/api/v1/nodes?limit=500")["items"]}

    def node_id(self, name: str) -> str:
        return str(self.nodes()[name]["id"])

    def operate(self, verb: str, backend: str, **where: object) -> str:
        """Begin an operation, on all nodes unless it says where; its id."""
        return str(self.api("POST", "/api/v1/operations", {"verb": verb, "backend": backend, **where})["id"])

    def until_over(self, operation: str) -> None:
        def is_over() -> bool:
            asked = self.api("GET", f"/api/v1/operations/{operation}")
            return asked["state"] in ("done", "failed", "cancelled") or not set(asked["counts"]) - {
                "success",
                "blocked",
                "error",
            }

        wait_until(is_over, f"the end of operation {operation}", seconds=_WAIT_SECONDS)

    def until_healthy(self, count: int) -> None:
        def are_healthy() -> bool:
            statuses = [node["status"] for node in self.nodes().values()]
            return statuses.count("healthy") == count

        wait_until(are_healthy, f"{count} healthy nodes", seconds=_WAIT_SECONDS)


@contextmanager
def picture_fleet(folder: Path) -> Iterator[PictureFleet]:
    models, index = folder / "models", folder / "index.yaml"
    _write_models(models)
    galleries = json.dumps([{"name": "house", "url": f"file://{index}"}])
    settings = {
        "CORRAL_BACKEND_GALLERIES": galleries,
        "CORRAL_MODEL_GALLERIES": json.dumps([{"name": "corral", "url": "corral:builtin"}]),
        "CORRAL_GALLERY_CACHE": str(folder / "galleries"),
        "CORRAL_MODELS_PATH": str(models),
        "CORRAL_AUTO_APPROVE": "false",
        "CORRAL_EXPOSE_NODE": "true",
        "CORRAL_PUBLIC_URL": "https://corral.example",
    }
    with LoopThread() as loop:
        registry = loop.enter(FakeRegistry())
        digests = {name: _publish(registry, folder, name) for name in DESCRIPTIONS}
        index.write_text("".join(_entry(registry, name) for name in DESCRIPTIONS), encoding="utf-8")
        site = loop.enter(simulated_site(folder, settings=settings, worker_settings=settings))
        workers = {name: loop.enter(site.worker(name)) for name in WORKERS}
        fleet = PictureFleet(loop=loop, site=site, registry=registry, workers=workers)
        _populate(fleet)
        _equip(fleet, digests)
        _trouble(fleet, folder, digests)
        yield fleet


def _write_models(folder: Path) -> None:
    write_model(folder, MODEL, parameters={"model": "chat.gguf", "temperature": 0})
    write_model(folder, HUGE, context_size=50_000_000)
    write_model(folder, BROKEN, parameters={"model": "gemma.gguf"})
    for file in folder.glob("*.yaml"):
        file.write_text(yaml.safe_dump(json.loads(file.read_text()), sort_keys=False), encoding="utf-8")
    whole = (folder / "chat.gguf").read_bytes()
    (folder / "gemma.gguf").write_bytes(whole[: len(whole) // 2])


def _publish(registry: FakeRegistry, folder: Path, name: str, *, again: str = "") -> str:
    """Put an image of a backend that works into the registry; its digest."""
    made = write_serving_backend(folder / f"images{again}", name)
    content = {path.name: path.read_bytes() for path in made.iterdir()} | {"weights": os.urandom(_IMAGE_BYTES)}
    return registry.add_image(f"backends/{name}", [a_layer(content)]).digest


def _entry(registry: FakeRegistry, name: str) -> str:
    description, version, licence, tag = DESCRIPTIONS[name]
    entry = {
        "name": name,
        "uri": f"oci://{registry.reference(f'backends/{name}')}",
        "description": description,
        "version": version,
        "license": licence,
        "tags": [tag],
    }
    return f"- {json.dumps(entry)}\n"


def _populate(fleet: PictureFleet) -> None:
    for join in CROWD:
        join.digits = 2
        fleet.do(join)
    everybody = len(WORKERS) + sum(join.count for join in CROWD)
    wait_until(lambda: len(fleet.nodes()) == everybody, f"{everybody} nodes", seconds=_WAIT_SECONDS)
    for node in fleet.nodes().values():
        fleet.api("POST", f"/api/v1/nodes/{node['id']}/approve")
    fleet.until_healthy(everybody)
    NEWCOMERS.digits = 2
    fleet.do(NEWCOMERS)


def _equip(fleet: PictureFleet, digests: Mapping[str, str]) -> None:
    """What somebody has done before the pictures are taken."""
    for backend, labels in ((LOST, {}), (ENGINE, {"gpu": "h100"}), (ENGINE, {"gpu": "l40s"})):
        fleet.do(Behave(digest=digests[backend], version=DESCRIPTIONS[backend][1]))
        fleet.until_over(fleet.operate("install", backend, labels=labels))
    for worker in WORKERS:
        fleet.api("PATCH", f"/api/v1/nodes/{fleet.node_id(worker)}/labels", {"rack": "desk"})
    for model, most in ((MODEL, 4), (BROKEN, 1)):
        rule = {"min_replicas": 0, "max_replicas": most, "node_selector": {"rack": "desk"}}
        fleet.api("PUT", f"/api/v1/scheduling/{model}", rule)
    question = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8}
    fleet.api("POST", "/v1/chat/completions", question)
    fleet.api("PATCH", f"/api/v1/scheduling/{MODEL}", {"min_replicas": 2})
    for name, role in {"maria": "operator", "jonas": "viewer", "ci": "inference"}.items():
        fleet.api("POST", "/api/v1/users", {"name": name, "role": role, "password": f"the password of {name}"})
    for name, scopes in {"grafana": ["viewer"], "chat-app": ["inference"], "deploy": ["operator"]}.items():
        fleet.api("POST", "/api/v1/keys", {"name": name, "scopes": scopes, "expires_in": "720h"})
    fleet.api("POST", "/api/v1/invitations", {"expires_in": "24h", "uses": 8, "labels": {"rack": "c"}})
    rules = [
        {"name": "speech-everywhere", "backend": LOST},
        {"name": "vllm-on-h100", "backend": ENGINE, "labels": {"gpu": "h100"}},
    ]
    fleet.loop.run(_declare(fleet, {"rules": rules}))


async def _declare(fleet: PictureFleet, rules: object) -> None:
    frontend = fleet.site.frontends[0]
    revision = json.loads((await frontend.call("GET", "/api/v1/fleet-rules")).body)["revision"]
    headers = {"Authorization": f"Bearer {fleet.key}", "Content-Type": "application/json", "If-Match": f'"{revision}"'}
    answer = await frontend.send("PUT", "/api/v1/fleet-rules", json.dumps(rules).encode(), headers)
    if answer.status >= 300:
        raise RuntimeError(f"the rules were answered with {answer.status}: {answer.body!r}")


def _trouble(fleet: PictureFleet, folder: Path, digests: Mapping[str, str]) -> None:
    _publish(fleet.registry, folder, ENGINE, again="-newer")
    fleet.api("POST", "/api/v1/backends/upgrades/check", {})
    fleet.api("POST", f"/api/v1/nodes/{fleet.node_id(DRAINED)}/drain", {})
    _lose(fleet, LOST, WORKERS[1])
    for model in (HUGE, BROKEN):
        fleet.api("POST", "/api/v1/model-loads", {"name": model})
    fleet.loop.run(_hold_back(fleet.registry))
    fleet.do(Behave(digest=digests[COMING], version=DESCRIPTIONS[COMING][1]))
    for share, name in ((12.0, "gpu-b-01"), (37.0, "gpu-b-02"), (64.0, "gpu-a-05"), (81.0, "gpu-b-08")):
        fleet.do(Behave(names=[name], tells=share, work_seconds=(36000, 36000)))
    fleet.do(Behave(names=[SILENT], beats=False))


async def _hold_back(registry: FakeRegistry) -> None:
    never = asyncio.Event()
    registry.faults[f"GET /v2/backends/{COMING}/blobs"] = [stalling(_HELD_AFTER, never) for _ in range(20)]


def _lose(fleet: PictureFleet, backend: str, worker: str) -> None:
    """A backend is gone from the disk of a worker behind everybody's back."""
    [folder] = fleet.site.folder.glob(f"{worker}/backends/{backend}")
    process = fleet.workers[worker]

    async def start() -> None:
        process.start()

    fleet.loop.run(process.kill())
    shutil.rmtree(folder)
    fleet.loop.run(start())
    asked = f"/api/v1/operations?backend={backend}"
    wait_until(lambda: len(fleet.api("GET", asked)["items"]) > 1, "the rule to miss it", seconds=_WAIT_SECONDS)
