"""What a gallery's model needs, learned from the heads of its files at a hub that speaks Hugging Face's protocol."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import Conflict
from corral.bus.port import Bus
from corral.frontend.models.measures import FileMeasures, weights_of
from corral.frontend.models.offers import ModelOffers
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from corral.galleries.config import GalleriesConfig
from corral.galleries.gallery import GallerySource
from corral.galleries.model_entries import ModelFile, ModelPlan
from corral.galleries.model_galleries import open_model_galleries
from corral.hubs.access import HubAccess
from corral.hubs.config import HubsConfig
from tests.kit.clock import ManualClock
from tests.kit.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend
from tests.kit.galleries import NoRegistry, open_gallery_of_models
from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import HuggingFaceServer

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

WEIGHTS = gguf(**LLAMA)
LARGE = gguf(**LLAMA) + bytes(40_000_000)
INDEX = """
- name: talker
  overrides: {backend: llama-cpp, context_size: 1024, parameters: {model: t.gguf}, mmproj: p.gguf}
  files: [{filename: p.gguf, uri: 'hf://org/talker/p.gguf'}, {filename: t.gguf, uri: 'hf://org/talker/t.gguf'}]
  variants: [{model: talker-large}]
- name: talker-large
  overrides: {backend: llama-cpp, parameters: {model: large.gguf}}
  files: [{filename: large.gguf, uri: 'hf://org/talker/large.gguf'}]
- name: lost
  overrides: {backend: llama-cpp, parameters: {model: lost-8B-Q4_K_M.gguf}}
  files: [{filename: lost-8B-Q4_K_M.gguf, uri: 'hf://org/nothing/lost.gguf'}]
- name: odd
  overrides: {backend: vllm, parameters: {model: org/odd}}
"""


@pytest.fixture
def server() -> Iterator[HuggingFaceServer]:
    with HuggingFaceServer() as server:
        server.add_repository("org/talker", {"t.gguf": WEIGHTS, "p.gguf": b"12345", "large.gguf": LARGE})
        yield server


@pytest.fixture
async def hub(server: HuggingFaceServer) -> AsyncIterator[HubAccess]:
    async with HubAccess.open(HubsConfig(hf_url=server.base)) as hub:
        yield hub


@pytest.fixture
async def frontend(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, hub: HubAccess
) -> AsyncIterator[Frontend]:
    (tmp_path / "models.yaml").write_text(INDEX, encoding="utf-8")
    config = frontend_config(tmp_path)
    async with (
        open_gallery_of_models(tmp_path, hub=hub) as lookups,
        open_frontend(database, clock, bus, config, key=SecretsKey.generate(), lookups=lookups) as opened,
    ):
        yield opened


async def get(frontend: Frontend, path: str, status: int = 200) -> Any:
    answer = await frontend.call("GET", path)
    assert answer.status == status, answer.body
    return answer.json()


async def test_an_entry_tells_what_it_needs(frontend: Frontend) -> None:
    shown = await get(frontend, "/api/v1/gallery-models/talker")
    estimate = shown["estimate"]
    assert estimate["bytes"] == len(WEIGHTS) + 5
    assert (estimate["architecture"], estimate["context"]) == ("llama", 1024)
    assert estimate["memory_bytes"] > estimate["bytes"]
    assert estimate["problems"] == []
    assert {file["path"]: file["bytes"] for file in shown["files"]} == {"p.gguf": 5, "t.gguf": len(WEIGHTS)}


async def test_nobody_is_asked_who_need_not_be(frontend: Frontend, server: HuggingFaceServer) -> None:
    assert (await get(frontend, "/api/v1/gallery-models/lost?estimate=0"))["estimate"] is None
    assert server.requests == []


async def test_the_build_is_chosen_by_its_real_size(frontend: Frontend) -> None:
    body = {"name": "n", "address": "a:1", "total_ram": 30_000_000, "available_ram": 1}
    await frontend.register(body, token=TRUSTED_TOKEN)
    await frontend.settle()
    builds = {build["name"]: build for build in (await get(frontend, "/api/v1/gallery-models/talker"))["builds"]}
    assert builds["talker-large"]["bytes"] == len(LARGE)
    assert not builds["talker-large"]["is_usable"]
    assert builds["talker"]["is_chosen"]


async def test_localai_gets_an_estimate_per_context(frontend: Frontend) -> None:
    found = await get(frontend, "/api/models/estimate/m@talker?contexts=1024,x,-3,2048")
    assert found["sizeBytes"] == len(WEIGHTS) + 5
    assert list(found["estimates"]) == ["1024", "2048"]
    assert found["estimates"]["1024"]["contextLength"] == 1024
    assert found["estimates"]["1024"]["vramBytes"] < found["estimates"]["2048"]["vramBytes"]
    assert list((await get(frontend, "/api/models/estimate/talker"))["estimates"]) == ["8192"]


async def test_localai_gets_the_estimate_of_the_entry_itself(frontend: Frontend) -> None:
    body = {"name": "n", "address": "a:1", "total_ram": 64_000_000_000, "available_ram": 1}
    await frontend.register(body, token=TRUSTED_TOKEN)
    await frontend.settle()
    assert (await get(frontend, "/api/v1/gallery-models/talker"))["build"] == "talker-large"
    assert (await get(frontend, "/api/models/estimate/talker"))["sizeBytes"] == len(WEIGHTS) + 5
    assert (await get(frontend, "/api/models/estimate/talker-large"))["sizeBytes"] == len(LARGE)


async def test_a_hub_that_does_not_have_it_leaves_a_guess_and_a_sentence(frontend: Frontend) -> None:
    estimate = (await get(frontend, "/api/v1/gallery-models/lost"))["estimate"]
    assert (estimate["bytes"], estimate["is_size_guessed"]) == (4_800_000_000, True)
    assert "org/nothing" in estimate["problems"][0]
    assert (await get(frontend, "/api/models/estimate/lost"))["sizeBytes"] == 4_800_000_000


async def test_nothing_is_known_of_a_model_without_files(frontend: Frontend) -> None:
    assert await get(frontend, "/api/models/estimate/odd") == {"sizeBytes": 0, "sizeDisplay": "", "estimates": None}
    assert await get(frontend, "/api/models/estimate/nobody", 404) == {"error": "model not found"}


PLAN = ModelPlan(name="m", config={}, files=(ModelFile(filename="t.gguf", uri="hf://org/talker/t.gguf"),))


async def test_what_was_learned_is_kept(
    database: Database, hub: HubAccess, server: HuggingFaceServer, clock: ManualClock
) -> None:
    measures = FileMeasures(hub, clock)
    first = await measures.measure(PLAN)
    asked = len(server.requests)
    assert await measures.measure(PLAN) == first
    assert len(server.requests) == asked
    await clock.advance(timedelta(hours=2))
    await measures.measure(PLAN)
    assert len(server.requests) > asked


async def test_a_hub_that_is_silent_costs_a_moment(database: Database, clock: ManualClock) -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with HubAccess.open(HubsConfig(hf_url=url)) as hub:
        measured = await FileMeasures(hub, clock, patience=timedelta(milliseconds=100)).measure(PLAN)
    server.close()
    assert measured.bytes is None
    assert measured.problems == ("t.gguf: no answer within 0 s",)


async def test_a_refused_head_is_a_sentence(
    database: Database, hub: HubAccess, server: HuggingFaceServer, clock: ManualClock
) -> None:
    server.add_repository("org/talker", {"t.gguf": b"no weights"})
    measured = await FileMeasures(hub, clock).measure(PLAN)
    assert "does not begin like a GGUF file" in measured.problems[0]


@pytest.mark.parametrize(
    ("config", "names", "expected"),
    [
        ({"parameters": {"model": "b.gguf"}}, ["a.gguf", "b.gguf"], ["b.gguf"]),
        ({"mmproj": "a.gguf"}, ["a.gguf", "b.gguf"], ["b.gguf"]),
        ({}, ["mmproj-x.gguf", "c.bin", "D.GGUF"], ["D.GGUF"]),
        ({}, ["c.bin"], []),
        ({"parameters": {"model": 3}}, [], []),
    ],
)
def test_weights_are_told_from_other_files(
    database: Database, config: dict[str, object], names: list[str], expected: list[str]
) -> None:
    files = tuple(ModelFile(filename=name, uri="u") for name in names)
    assert weights_of(ModelPlan(name="m", config=config, files=files)) == expected


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "/etc/passwd", "~/x", "corral:first-model"])
async def test_a_gallery_from_elsewhere_names_no_file_of_this_machine(
    frontend: Frontend, clock: ManualClock, tmp_path: Path, server: HuggingFaceServer, uri: str
) -> None:
    index = f"- {{name: thief, overrides: {{backend: b}}, files: [{{filename: f, uri: '{uri}'}}]}}"
    source = GallerySource(name="far", url=server.add("/index.yaml", index.encode()))
    config = GalleriesConfig(sources=(), model_sources=(source,), cache=tmp_path / "c")
    async with open_model_galleries(config, registry=NoRegistry(), clock=clock) as galleries:
        offers = ModelOffers(galleries, frontend.control.context.nodes.fleet, clock)
        with pytest.raises(Conflict, match="is a file of this machine"):
            await offers.take("thief")
