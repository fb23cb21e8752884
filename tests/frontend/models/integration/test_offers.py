"""What galleries of models offer: searched and shown, with the build that suits the fleet, and in spite of galleries
that are away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.bus.port import Bus
from corral.frontend.models.offers import ModelOffers
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from corral.galleries.gallery import GallerySource
from corral.galleries.model_entries import GalleryModel, ModelFile, ModelPlan
from tests.kit.clock import ManualClock
from tests.kit.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend
from tests.kit.galleries import open_gallery_of_models

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

INDEX = """
- name: talker
  description: Talks.
  license: mit
  tags: [llm]
  config_file: {backend: llama-cpp, context_size: 2048, parameters: {model: talker-8B-Q4_K_M.gguf}, sturgeon: 1}
  files: [{filename: talker-8B-Q4_K_M.gguf, uri: 'hf://a/b/c.gguf', sha256: %s}]
  variants: [{model: talker-large}, {model: talker-lost}]
- name: talker-large
  overrides: {backend: vllm, parameters: {model: a/b}}
  size: 300GB
- name: embedder
  tags: [embeddings]
  size: 90MB
  overrides: {backend: llama-cpp, embeddings: true, parameters: {model: e.gguf}}
- name: based
  url: file:///nowhere/base.yaml
  overrides: {parameters: {model: x}}
""" % ("a" * 64)


@pytest.fixture
async def frontend(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[Frontend]:
    (tmp_path / "models.yaml").write_text(INDEX, encoding="utf-8")
    config = frontend_config(tmp_path)
    async with (
        open_gallery_of_models(tmp_path) as lookups,
        open_frontend(database, clock, bus, config, key=SecretsKey.generate(), lookups=lookups) as opened,
    ):
        yield opened


async def found(frontend: Frontend, query: str = "") -> Any:
    answer = await frontend.call("GET", f"/api/v1/gallery-models{query}")
    assert answer.status == 200, answer.body
    return answer.json()


def names(page: Any) -> list[str]:
    return [item["name"] for item in page["items"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["talker", "talker-large", "embedder", "based"]),
        ("?term=talk", ["talker", "talker-large"]),
        ("?tag=embeddings", ["embedder"]),
        ("?use=chat", ["talker"]),
        ("?backend=vllm", ["talker-large"]),
        ("?max_bytes=1GB", ["embedder"]),
        ("?max_bytes=5GB", ["talker", "embedder"]),
        ("?license=MIT", ["talker"]),
        ("?gallery=m&per_page=1&page=2", ["talker-large"]),
        ("?gallery=other", []),
    ],
)
async def test_models_are_found(frontend: Frontend, query: str, expected: list[str]) -> None:
    assert names(await found(frontend, query)) == expected


async def test_a_page_tells_how_galleries_are_known(frontend: Frontend) -> None:
    page = await found(frontend, "?per_page=3")
    assert (page["total"], page["page"], page["pages"]) == (4, 1, 2)
    assert [(one["name"], one["entries"], one["problem"]) for one in page["galleries"]] == [("m", 4, "")]
    talker = page["items"][0]
    assert (talker["bytes"], talker["is_size_guessed"], talker["is_installed"]) == (4_800_000_000, True, False)
    assert (await found(frontend, "?term=embeder"))["near"] == ["embedder"]


@pytest.mark.parametrize("query", ["?page=x", "?page=0", "?per_page=5000", "?max_bytes=much", "?page=99999999999"])
async def test_numbers_that_are_none_are_refused(frontend: Frontend, query: str) -> None:
    answer = await frontend.call("GET", f"/api/v1/gallery-models{query}")
    assert answer.status == 400
    assert answer.json()["error"]["field"] in query


async def test_an_entry_is_shown_as_it_would_be_pulled(frontend: Frontend) -> None:
    await frontend.register(
        {"name": "n", "address": "a:1", "total_ram": 16_000_000_000, "available_ram": 1}, token=TRUSTED_TOKEN
    )
    await frontend.settle()
    shown = (await frontend.call("GET", "/api/v1/gallery-models/m@talker")).json()
    assert (shown["build"], shown["name"], shown["license"]) == ("talker", "talker", "mit")
    assert shown["config"]["context_size"] == 2048
    assert [(file["path"], file["sha256"][:3]) for file in shown["files"]] == [("talker-8B-Q4_K_M.gguf", "aaa")]
    verdicts = {build["name"]: (build["is_usable"], build["is_chosen"], build["reason"]) for build in shown["builds"]}
    assert verdicts["talker"][:2] == (True, True)
    assert "about 4.5 GiB fit into" in verdicts["talker"][2]
    assert verdicts["talker-large"][:2] == (False, False)
    assert verdicts["talker-lost"] == (False, False, "the gallery has no such entry")
    assert any("sturgeon" in problem for problem in shown["problems"])


async def test_a_list_tells_how_many_nodes_an_entry_fits(frontend: Frontend) -> None:
    assert [item["fit"]["verdict"] for item in (await found(frontend))["items"]] == ["unknown"] * 4
    for name, memory in (("small", 4_000_000_000), ("large", 16_000_000_000)):
        await frontend.register(
            {"name": name, "address": f"{name}:1", "total_ram": memory, "available_ram": 1}, token=TRUSTED_TOKEN
        )
    await frontend.settle()
    fits = {item["name"]: item["fit"] for item in (await found(frontend))["items"]}
    counts = {name: (fit["verdict"], fit["fitting"], fit["nodes"]) for name, fit in fits.items()}
    assert counts == {
        "talker": ("fits", 1, 2),
        "talker-large": ("blocked", 0, 2),
        "embedder": ("fits", 2, 2),
        "based": ("unknown", 0, 2),
    }
    assert "do not fit into" in fits["talker-large"]["reason"]
    assert fits["talker"]["build"] == "talker"


async def test_a_build_may_be_named_and_keeps_the_name_of_what_was_asked_for(frontend: Frontend) -> None:
    galleries = frontend.control.context.models.galleries
    taken = await galleries.take("talker", build="TALKER-large")
    assert (taken.entry.name, taken.plan.name, taken.plan.backend) == ("talker-large", "talker", "vllm")
    assert (await galleries.take("talker", as_name="mine")).plan.name == "mine"
    with pytest.raises(InvalidInput, match="talker has no variant"):
        await galleries.take("talker", build="talker-small")


async def test_what_no_gallery_has_is_said_with_near_names(frontend: Frontend) -> None:
    answer = await frontend.call("GET", "/api/v1/gallery-models/talkr")
    assert answer.status == 404
    assert "did you mean talker" in answer.json()["error"]["message"]
    galleries = frontend.control.context.models.galleries
    with pytest.raises(NotFound):
        await galleries.find("nobody")
    assert (await galleries.find("EMBEDDER")).name == "embedder"


async def test_a_base_that_cannot_be_used_is_named(frontend: Frontend) -> None:
    galleries = frontend.control.context.models.galleries
    with pytest.raises(Conflict, match=r"file:///nowhere/base\.yaml cannot be read"):
        await galleries.take("based")
    assert (await frontend.call("GET", "/api/v1/gallery-models/based")).status == 409


async def test_nobody_is_asked_before_somebody_looks(frontend: Frontend) -> None:
    galleries = frontend.control.context.models.galleries
    await galleries.look()
    assert galleries.known == ()
    assert "nobody has looked" in await finding(frontend)
    await found(frontend)
    await galleries.look()
    assert "1 read, 4 models" in await finding(frontend)


async def finding(frontend: Frontend) -> str:
    report = (await frontend.call("GET", "/api/v1/doctor")).json()
    (one,) = (one for one in report["findings"] if one["check"] == "model galleries")
    return f"{one['level']}: {one['summary']}"


async def test_a_frontend_without_galleries_offers_nothing(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    async with open_frontend(database, clock, bus, frontend_config(tmp_path), key=SecretsKey.generate()) as frontend:
        assert (await found(frontend))["items"] == []
        assert (await frontend.call("GET", "/api/v1/gallery-models/x")).status == 404


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """Accepts connections, and never says a word."""
    heard: list[asyncio.StreamWriter] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(writer)

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/index.yaml", heard
    finally:
        server.close()
        for writer in heard:
            writer.close()


async def test_a_silent_gallery_holds_up_nobody_for_long_and_hides_no_other(
    frontend: Frontend, clock: ManualClock, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "models.yaml").write_text(INDEX, encoding="utf-8")
    fleet = frontend.control.context.nodes.fleet
    async with (
        silent_server() as (url, heard),
        open_gallery_of_models(tmp_path / "second", GallerySource(name="silent", url=url)) as lookups,
    ):
        offers = ModelOffers(lookups.models, fleet, clock, patience=timedelta(milliseconds=50))
        for _ in range(3):
            readings = await offers.readings()
            assert len(readings.catalogue.entries) == 4
            assert "has not answered" in readings.readings[1].problem
            await clock.advance(timedelta(seconds=1))
        assert len(heard) == 1
        with pytest.raises(NotFound, match="The gallery silent cannot be read: has not answered"):
            await offers.find("nobody")


async def test_a_gallery_that_failed_is_left_alone_for_a_while(
    frontend: Frontend, clock: ManualClock, tmp_path: Path
) -> None:
    index = tmp_path / "late.yaml"
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "models.yaml").write_text(INDEX, encoding="utf-8")
    fleet = frontend.control.context.nodes.fleet
    async with open_gallery_of_models(tmp_path / "third", GallerySource(name="late", url=index.as_uri())) as lookups:
        offers = ModelOffers(lookups.models, fleet, clock)
        assert not (await offers.readings()).readings[1].is_known
        index.write_text("- {name: late, overrides: {backend: b}}", encoding="utf-8")
        assert not (await offers.readings()).readings[1].is_known
        assert (await offers.readings(newest=True)).readings[1].is_known
        index.unlink()
        assert not (await offers.readings(newest=True)).readings[1].is_known
        index.write_text("- {name: late, overrides: {backend: b}}", encoding="utf-8")
        await clock.advance(timedelta(minutes=2))
        assert (await offers.readings()).readings[1].is_known


async def test_the_doctor_names_a_gallery_that_cannot_be_read(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    (tmp_path / "models.yaml").write_text(INDEX, encoding="utf-8")
    lost = GallerySource(name="lost", url=(tmp_path / "lost.yaml").as_uri())
    config = frontend_config(tmp_path)
    async with (
        open_gallery_of_models(tmp_path, lost) as lookups,
        open_frontend(database, clock, bus, config, key=SecretsKey.generate(), lookups=lookups) as frontend,
    ):
        assert (await found(frontend))["galleries"][1]["problem"]
        assert (await finding(frontend)).startswith("warning: lost cannot be read; its models cannot be found")


@pytest.mark.parametrize(
    "uri",
    [
        "http://169.254.169.254/x.gguf",
        "HTTP://127.0.0.1/x.gguf",
        "oci://127.0.0.1:5000/team/model:1",
        "ollama://[::1]:80/team/model",
        "OLLAMA://localhost/team/model:1",
        "FILE:///etc/passwd",
    ],
)
async def test_a_gallery_of_the_internet_names_no_files_of_the_own_network(frontend: Frontend, uri: str) -> None:
    plan = ModelPlan(name="m", config={}, files=(ModelFile(filename="x.gguf", uri=uri),))
    entry = GalleryModel(name="m")
    with pytest.raises(Conflict, match=r"a gallery from elsewhere must not name"):
        await frontend.control.context.models.galleries.check_files(entry, plan, "https://93.184.215.14/index.yaml")
    await frontend.control.context.models.galleries.check_files(
        entry, replace(plan, files=(ModelFile(filename="x.gguf", uri="ollama://gemma:2b"),)), "https://93.184.215.14/i"
    )
