"""LocalAI's pages and programs look at models: galleries, builds, uses, and how far a load is."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.access.keys import KeyOwner
from corral.frontend.record.decide import EventKind
from corral.frontend.store.db import Database
from corral.wire.keys import Scope
from tests.kit.clock import ManualClock
from tests.kit.galleries import open_gallery_of_models
from tests.kit.world import MODEL, World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

INDEX = """
- name: talker
  description: Talks.
  license: mit
  tags: [llm, gguf]
  url: ''
  overrides: {backend: llama-cpp, trust_remote_code: true, parameters: {model: talker-8B-Q4_K_M.gguf}}
  files: [{filename: talker-8B-Q4_K_M.gguf, uri: 'hf://a/b/c.gguf', sha256: %s}]
  variants: [{model: talker-fast}, {model: lost}]
- name: talker-fast
  tags: [llm, MTP]
  overrides: {backend: llama-cpp, parameters: {model: f}}
  size: 4GB
- name: small
  tags: [embeddings]
  icon: i.png
  urls: [https://example.org/small]
  overrides: {backend: other, embeddings: true, parameters: {model: e.gguf}}
""" % ("a" * 64)


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    folder = tmp_path / "gallery"
    folder.mkdir()
    (folder / "models.yaml").write_text(INDEX, encoding="utf-8")
    async with (
        open_gallery_of_models(folder) as lookups,
        open_world(database, clock, bus, tmp_path, lookups=lookups) as world,
    ):
        await world.write(MODEL)
        await world.control.context.models.watch.look()
        yield world


async def get(world: World, path: str, *, status: int = 200, key: str | None = None) -> Any:
    answer = await world.frontend.call("GET", path, key=key)
    assert answer.status == status, answer.body
    return answer.json()


def names(page: Any) -> list[str]:
    return [item["name"] for item in page["models"]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["talker", "talker-fast", "small"]),
        ("?items=2&page=2", ["small"]),
        ("?items=x&page=-3", ["talker", "talker-fast", "small"]),
        ("?term=talk", ["talker", "talker-fast"]),
        ("?term=%20&collapse_variants=true", ["talker", "small"]),
        ("?term=fast&collapse_variants=true", ["talker-fast"]),
        ("?tag=gguf", ["talker"]),
        ("?tag=embeddings", ["small"]),
        ("?tag=chat,mtp", ["talker-fast"]),
        ("?tag=multimodal", []),
        ("?backend=other", ["small"]),
        ("?sort=name&order=desc", ["talker-fast", "talker", "small"]),
        ("?sort=status", ["small", "talker", "talker-fast"]),
        ("?sort=nonsense", ["talker", "talker-fast", "small"]),
    ],
)
async def test_a_page_of_the_galleries(world: World, query: str, expected: list[str]) -> None:
    assert names(await get(world, f"/api/models{query}")) == expected


async def test_a_page_tells_what_is_there_and_what_is_under_way(world: World) -> None:
    await world.worker("w1", "mock", is_corral=False)
    job = (await world.frontend.call("POST", "/api/models/delete/small")).json()["jobID"]
    page = await get(world, "/api/models")
    assert (page["availableModels"], page["currentPage"], page["totalPages"], page["nextPage"]) == (3, 1, 1, 1)
    assert page["repositories"][0]["name"] == "m"
    assert page["allTags"] == ["MTP", "embeddings", "gguf", "llm"]
    assert page["allBackends"] == ["llama-cpp", "other"]
    assert page["processingModels"] == {"small": job}
    assert page["taskTypes"] == {"small": "Deletion"}
    talker, fast, small = page["models"]
    assert talker["has_variants"] is True
    assert talker["trustRemoteCode"] is True
    assert talker["additionalFiles"] == [
        {"filename": "talker-8B-Q4_K_M.gguf", "sha256": "a" * 64, "uri": "hf://a/b/c.gguf"}
    ]
    assert "has_variants" not in fast
    assert fast["additionalFiles"] is None
    assert (small["processing"], small["jobID"], small["isDeletion"]) == (True, job, True)


async def test_programs_get_all_models_and_galleries(world: World) -> None:
    talker, fast, small = await get(world, "/models/available")
    assert (talker["name"], talker["license"], talker["gallery"]["name"]) == ("talker", "mit", "m")
    assert fast["size"] == "4GB"
    assert (small["installed"], small["icon"], small["urls"]) == (True, "i.png", ["https://example.org/small"])
    assert "installed" not in talker
    (gallery,) = await get(world, "/models/galleries")
    assert gallery["name"] == "m"
    assert gallery["url"].startswith("file://")


async def change(world: World, method: str, body: object, *, status: int = 200) -> Any:
    answer = await world.frontend.call(method, "/models/galleries", body)
    assert answer.status == status, answer.body
    return answer.json()


async def test_galleries_are_added_and_removed_for_all_frontends(world: World, tmp_path: Path) -> None:
    index = tmp_path / "more.yaml"
    index.write_text("- {name: more, overrides: {backend: echo}}", encoding="utf-8")
    listed = await change(world, "POST", {"name": "second", "url": index.as_uri()})
    assert [gallery["name"] for gallery in listed] == ["m", "second"]
    other = (await world.again()).context.models.galleries
    assert [source.name for source in await other.sources()] == ["m", "second"]
    assert "more" in [model["name"] for model in await get(world, "/models/available")]
    assert (await world.events(EventKind.MODEL_GALLERY_ADDED))[0].data == {"gallery": "second"}
    assert [gallery["name"] for gallery in await change(world, "DELETE", {"name": "Second"})] == ["m"]
    assert "more" not in [model["name"] for model in await get(world, "/models/available")]
    assert len(await world.events(EventKind.MODEL_GALLERY_REMOVED)) == 1


@pytest.mark.parametrize(
    ("method", "body", "status", "said"),
    [
        ("POST", {"name": "M", "url": "https://example.org/i.yaml"}, 409, "M already exists"),
        ("POST", {"name": "", "url": "https://example.org/i.yaml"}, 400, "name: must be one word"),
        ("POST", {"name": "a@b", "url": "https://example.org/i.yaml"}, 400, "name: must be one word"),
        ("POST", {"name": "n", "url": "gopher://example.org"}, 400, "url: "),
        ("POST", {"name": "n", "url": "https://me:secret@example.org/i.yaml"}, 400, "url: carries a login"),
        ("POST", {"name": "n", "url": "https://example.org/i.yaml", "mirrors": ["nonsense"]}, 400, "url: "),
        ("POST", {"name": "n", "url": "https://example.org/" + "x" * 3000}, 400, "url: must have at most"),
        ("POST", b"{", 400, "invalid request body: "),
        ("DELETE", {"name": "nobody"}, 404, "nobody is not currently registered"),
        ("DELETE", {"name": "m"}, 409, "m is named by the setting gallery.model_galleries"),
    ],
)
async def test_galleries_that_cannot_be_changed(
    world: World, method: str, body: object, status: int, said: str
) -> None:
    error = (await change(world, method, body, status=status))["error"]
    assert error["message"].startswith(said)
    assert "secret" not in error["message"]
    assert len(await get(world, "/models/galleries")) == 1


async def test_builds_of_a_model(world: World) -> None:
    found = await get(world, "/api/models/variants/m@talker")
    assert found["auto_selected"] == "talker"
    assert found["variants"] == [
        {
            "model": "talker",
            "backend": "llama-cpp",
            "memory_bytes": 4_800_000_000,
            "fits": True,
            "is_base": True,
            "quantization": "Q4_K_M",
        },
        {
            "model": "talker-fast",
            "backend": "llama-cpp",
            "memory_bytes": 4_000_000_000,
            "fits": False,
            "is_base": False,
            "features": ["mtp"],
        },
    ]
    assert await get(world, "/api/models/variants/small") == {"variants": [], "auto_selected": ""}
    assert await get(world, "/api/models/variants/nobody", status=404) == {"error": "model not found"}


async def test_uses_of_backends(world: World) -> None:
    assert (await get(world, "/api/backends/usecases"))["silero-vad"] == ["vad"]
    await get(world, "/models/available")
    assert (await get(world, "/api/backends/usecases"))["other"] == ["embeddings"]


async def user_key(world: World) -> str:
    made = await world.control.context.access.key_ring.create("u", [Scope.INFERENCE], by="test", lifetime=None)
    return made.key


async def test_users_see_what_models_are_for_and_administrators_where_they_run(world: World) -> None:
    worker = await world.worker("w1", "mock", is_corral=True)
    await world.loaded()
    key = await user_key(world)
    (seen,) = (await get(world, "/api/models/capabilities"))["data"]
    assert seen["id"] == "small"
    assert seen["loaded_on"] == [
        {"node_id": worker.node_id, "node_name": "w1", "state": "loaded", "node_status": "healthy"}
    ]
    (shown,) = (await get(world, "/api/models/capabilities", key=key))["data"]
    assert "loaded_on" not in shown
    assert await get(world, "/v1/models/capabilities", key=key) == {"data": [shown]}
    assert (shown["disabled"], shown["pinned"], shown["backend"]) == (False, False, seen["backend"])
    assert (await get(world, "/system"))["loaded_models"] == [{"id": "small"}]
    assert (await world.frontend.call("GET", "/system", key=key)).status == 403


async def test_a_limited_key_sees_aliases_of_its_models(world: World) -> None:
    for name, model in (
        ("other", "backend: mock\nparameters: {model: x}"),
        ("nick", "alias: small"),
        ("odd", "alias: other"),
    ):
        await world.control.context.models.changes.add(f"name: {name}\n{model}\n", by="me")
    owner = KeyOwner(models=frozenset({"small"}))
    ring = world.control.context.access.key_ring
    made = await ring.create("k", [Scope.INFERENCE], by="test", lifetime=None, owner=owner)
    shown = (await get(world, "/api/models/capabilities", key=made.key))["data"]
    assert [each["id"] for each in shown] == ["nick", "small"]


async def test_how_far_a_load_is(world: World) -> None:
    missing = await get(world, "/api/models/small/load-status", status=404)
    assert missing["error"] == {
        "code": 404,
        "message": "no load is running for model small",
        "type": "not_found_error",
    }
    await world.control.context.serving.loads.ensure("small")
    assert (await get(world, "/api/models/small/load-status", key=await user_key(world)))["state"] == "pending"
