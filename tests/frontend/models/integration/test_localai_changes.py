"""LocalAI's editor and programs change configurations of models."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.store.db import Database
from tests.kit.clock import ManualClock
from tests.kit.galleries import open_gallery_of_models
from tests.kit.world import World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

TEXT = "# mine\nname: tiny\nbackend: echo\nparameters:\n  model: tiny.gguf\n  temperature: 0.5\n"
INDEX = """
- {name: offered, overrides: {backend: echo, parameters: {model: o.gguf}}, files: [{filename: o.gguf, uri: 'hf://a/b/o.gguf'}]}
- {name: broken, overrides: {backend: echo, context_size: many}}
"""


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    folder = tmp_path / "gallery"
    folder.mkdir()
    (folder / "models.yaml").write_text(INDEX, encoding="utf-8")
    async with (
        open_gallery_of_models(folder) as lookups,
        open_world(database, clock, bus, tmp_path, lookups=lookups) as world,
    ):
        yield world


async def ask(world: World, method: str, path: str, body: object = None, *, status: int = 200, **headers: str) -> Any:
    answer = await world.frontend.call(method, path, body, **headers)
    assert answer.status == status, answer.body
    return answer.json()


async def text_of(world: World, name: str = "tiny") -> str:
    found = await ask(world, "GET", f"/api/models/edit/{name}")
    assert found["name"] == name
    return str(found["config"])


async def test_yaml_is_kept_as_it_was_written(world: World) -> None:
    added = await ask(world, "POST", "/models/import", TEXT.encode(), content_type="application/x-yaml")
    assert added["success"] is True
    assert added["message"] == "Model configuration created successfully"
    assert (added["filename"], added["pending_cleanup"]) == ("tiny.yaml", 0)
    assert await text_of(world) == TEXT


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
async def test_json_is_taken_too(world: World, content_type: str) -> None:
    config = {"name": "tiny", "backend": "echo", "parameters": {"model": "t.gguf"}}
    await ask(world, "POST", "/models/import", config, content_type=content_type)
    assert "model: t.gguf" in await text_of(world)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "Request body is empty"),
        (b"  \n", "Request body is empty"),
        (b"{", "Failed to parse JSON: "),
        (b"[1]", "Failed to parse JSON: "),
    ],
)
async def test_what_is_no_configuration_is_refused(world: World, body: bytes, said: str) -> None:
    refused = await ask(world, "POST", "/models/import", body, status=400, content_type="application/json")
    assert refused["success"] is False
    assert refused["error"].startswith(said)


async def test_a_configuration_that_cannot_be_used_is_refused_with_its_line(world: World) -> None:
    wrong = TEXT + "context_size: many\n"
    refused = await ask(world, "POST", "/models/import", wrong.encode(), status=400, content_type="text/yaml")
    assert "context_size" in refused["error"]
    assert "7" in refused["error"]


async def test_a_model_that_is_there_is_not_overwritten_by_an_import(world: World) -> None:
    await ask(world, "POST", "/models/import", TEXT.encode(), content_type="text/yaml")
    refused = await ask(world, "POST", "/models/import", TEXT.encode(), status=409, content_type="text/yaml")
    assert "is there already" in refused["error"]


async def test_typing_errors_are_told_with_the_answer(world: World) -> None:
    odd = TEXT + "contxt_size: 5\n"
    added = await ask(world, "POST", "/models/import", odd.encode(), content_type="text/yaml")
    assert any("contxt_size" in detail for detail in added["details"])


async def test_a_model_is_edited(world: World) -> None:
    await ask(world, "POST", "/models/import", TEXT.encode(), content_type="text/yaml")
    before = await ask(world, "PUT", "/models/toggle-pinned/tiny/unpin")
    edited = await ask(world, "POST", "/models/edit/tiny", TEXT.replace("0.5", "0.25").encode())
    assert edited["message"] == "Model 'tiny' updated successfully"
    assert edited["config"]["parameters"]["temperature"] == 0.25
    assert edited["config_revision"] != before["config_revision"]
    assert (await ask(world, "POST", "/models/edit/none", TEXT.encode(), status=404))["success"] is False
    refused = await ask(world, "POST", "/models/edit/tiny", TEXT.replace("tiny", "other").encode(), status=400)
    assert "must stay 'tiny'" in refused["error"]


async def test_some_keys_are_changed(world: World) -> None:
    await ask(world, "POST", "/models/import", TEXT.encode(), content_type="text/yaml")
    change = {"context_size": 1024, "parameters": {"temperature": None, "top_k": 3}}
    patched = await ask(world, "PATCH", "/api/models/config-json/tiny", change)
    assert patched["success"] is True
    assert patched["pending_cleanup"] == 0
    text = await text_of(world)
    assert "context_size: 1024" in text
    assert "top_k: 3" in text
    assert "temperature" not in text


@pytest.mark.parametrize(
    ("name", "body", "status", "said"),
    [
        ("tiny", b"", 400, "request body is empty or unreadable"),
        ("tiny", b"{", 400, "invalid JSON: "),
        ("tiny", b"[]", 400, "invalid JSON: "),
        ("tiny", b'{"context_size": "many"}', 400, "config: "),
        ("tiny", b'{"name": "other"}', 400, "name: must stay"),
        ("tny", b'{"context_size": 1}', 404, "the model 'tny' does not exist; did you mean tiny?"),
    ],
)
async def test_changes_that_cannot_be_are_refused(world: World, name: str, body: bytes, status: int, said: str) -> None:
    await ask(world, "POST", "/models/import", TEXT.encode(), content_type="text/yaml")
    refused = await ask(world, "PATCH", f"/api/models/config-json/{name}", body, status=status)
    assert refused["error"].startswith(said)
    assert await text_of(world) == TEXT


async def test_models_are_switched(world: World) -> None:
    await ask(world, "POST", "/models/import", TEXT.encode(), content_type="text/yaml")
    for path, said in (
        ("toggle-state/tiny/disable", "Model 'tiny' has been disabled successfully. The model will not"),
        ("toggle-state/tiny/enable", "Model 'tiny' has been enabled successfully."),
        ("toggle-pinned/tiny/pin", "Model 'tiny' has been pinned successfully. The model will be"),
        ("toggle-pinned/tiny/unpin", "Model 'tiny' has been unpinned successfully."),
    ):
        assert (await ask(world, "PUT", f"/models/{path}"))["message"].startswith(said)
    await ask(world, "PUT", "/models/toggle-state/tiny/disable")
    await ask(world, "PUT", "/models/toggle-pinned/tiny/pin")
    small, seen = (await ask(world, "GET", "/api/models/capabilities"))["data"]
    assert (small["disabled"], small["pinned"]) == (False, False)
    assert (seen["id"], seen["disabled"], seen["pinned"]) == ("tiny", True, True)
    assert seen["capabilities"] == ["FLAG_CHAT", "FLAG_COMPLETION", "FLAG_EMBEDDINGS"]
    assert (await ask(world, "GET", "/api/models/config-json/tiny"))["backend"] == "echo"
    wrong = await ask(world, "PUT", "/models/toggle-state/tiny/pin", status=400)
    assert wrong == {"success": False, "error": "Action must be 'enable' or 'disable'"}
    assert (await ask(world, "PUT", "/models/toggle-pinned/none/pin", status=404))["success"] is False


async def test_a_gallerys_model_is_added_without_its_files(world: World) -> None:
    saved = await ask(world, "POST", "/api/models/config/m@offered")
    assert saved["message"] == "Configuration file saved"
    assert "model: o.gguf" in await text_of(world, "offered")
    assert "already" in (await ask(world, "POST", "/api/models/config/offered", status=409))["error"]
    assert await ask(world, "POST", "/api/models/config/none", status=404) == {"error": "model not found"}
    assert "context_size" in (await ask(world, "POST", "/api/models/config/broken", status=400))["error"]


async def test_a_model_that_nobody_has_has_no_configuration(world: World) -> None:
    missing = {"error": "model configuration not found"}
    assert await ask(world, "GET", "/api/models/config-json/none", status=404) == missing
    assert await ask(world, "GET", "/api/models/edit/none", status=404) == missing


async def test_reading_again_is_acknowledged(world: World) -> None:
    assert await ask(world, "POST", "/models/reload") == {
        "success": True,
        "message": "Model configurations reloaded successfully",
        "pending_cleanup": 0,
    }
