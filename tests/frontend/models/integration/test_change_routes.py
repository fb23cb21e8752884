"""Corral's own routes that change models: what is stored, what is refused, and the way back."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.store.db import Database
from tests.kit.clock import ManualClock
from tests.kit.world import World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

TEXT = "# mine\nname: tiny\nbackend: echo\nparameters:\n  model: tiny.gguf\n"
CALLER = "admin"
EDITED = TEXT + "context_size: 512\n"


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path) as world:
        yield world


async def ask(world: World, method: str, path: str, body: object = None, *, status: int = 200) -> Any:
    answer = await world.frontend.call(method, f"/api/v1/{path}", body)
    assert answer.status == status, answer.body
    return answer.json()


async def add(world: World, text: str = TEXT) -> Any:
    return await ask(world, "POST", "models", {"config": text}, status=201)


async def history(world: World, name: str = "tiny") -> list[tuple[int, str]]:
    found = await ask(world, "GET", f"model-history/{name}")
    return [(item["number"], item["change"]) for item in found["items"]]


async def test_a_model_is_added_as_it_was_written(world: World) -> None:
    dry = await ask(world, "POST", "models", {"config": TEXT, "dry_run": True})
    assert (dry["name"], dry["number"], dry["change"]) == ("tiny", 1, "added")
    await ask(world, "GET", "model-history/tiny", status=404)
    assert await add(world) == dry
    (item,) = (await ask(world, "GET", "model-history/tiny"))["items"]
    assert (item["text"], item["revision"], item["changed_by"]) == (TEXT, dry["revision"], CALLER)


async def test_an_object_becomes_yaml(world: World) -> None:
    config = {"name": "tiny", "backend": "echo", "parameters": {"model": "t.gguf"}}
    await ask(world, "POST", "models", {"config": config}, status=201)
    (item,) = (await ask(world, "GET", "model-history/tiny"))["items"]
    assert "model: t.gguf" in item["text"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("", "config: is empty"),
        (TEXT + "context_size: many\n", "many"),
        (TEXT + "name: again\n", "name"),
        (TEXT + 'template: {chat: "{{ .Input "}\n', "chat"),
    ],
)
async def test_what_cannot_be_used_is_refused(world: World, config: str, words: str) -> None:
    refused = await ask(world, "POST", "models", {"config": config}, status=400)
    assert words in refused["error"]["message"]
    await ask(world, "GET", "model-history/tiny", status=404)


async def test_odd_keys_are_warned_about(world: World) -> None:
    added = await add(world, TEXT + "contxt_size: 5\n")
    assert "contxt_size" in added["warnings"][0]


async def test_a_name_is_given_once(world: World) -> None:
    await add(world)
    refused = await ask(world, "POST", "models", {"config": EDITED}, status=409)
    assert "there already" in refused["error"]["message"]


async def test_an_edit_needs_the_revision_that_it_was_made_from(world: World) -> None:
    first = await add(world)
    ask_for = {"config": EDITED, "if_revision": first["revision"]}
    dry = await ask(world, "PUT", "models/tiny", {**ask_for, "dry_run": True})
    assert (dry["number"], await history(world)) == (2, [(1, "added")])
    assert await ask(world, "PUT", "models/tiny", ask_for) == dry
    refused = await ask(world, "PUT", "models/tiny", {**ask_for, "config": TEXT}, status=409)
    assert f"changed by {CALLER}" in refused["error"]["message"]
    assert await history(world) == [(2, "edited"), (1, "added")]
    same = await ask(world, "PUT", "models/tiny", {"config": EDITED})
    assert (same["number"], same["change"]) == (2, "")


async def test_an_unknown_model_is_named_with_near_ones(world: World) -> None:
    await add(world)
    for method, path, body in (
        ("PUT", "models/tin", {"config": TEXT}),
        ("GET", "model-history/tin", None),
        ("POST", "model-rollbacks", {"name": "tin", "number": 1}),
        ("POST", "model-copies", {"name": "tin", "to": "x"}),
        ("POST", "model-states", {"name": "tin", "is_disabled": True}),
    ):
        refused = await ask(world, method, path, body, status=404)
        assert "did you mean tiny?" in refused["error"]["message"], path


async def test_the_way_back_is_a_change_of_its_own(world: World) -> None:
    await add(world)
    await ask(world, "PUT", "models/tiny", {"config": EDITED})
    back = await ask(world, "POST", "model-rollbacks", {"name": "tiny", "number": 1})
    assert (back["number"], back["change"]) == (3, "rolled_back")
    items = (await ask(world, "GET", "model-history/tiny"))["items"]
    assert [item["text"] for item in items] == [TEXT, EDITED, TEXT]
    await ask(world, "POST", "model-rollbacks", {"name": "tiny", "number": 9}, status=404)


async def test_a_copy_has_another_name_and_the_same_weights(world: World) -> None:
    await add(world)
    copied = await ask(world, "POST", "model-copies", {"name": "tiny", "to": "org/big"}, status=201)
    assert (copied["name"], copied["change"]) == ("org/big", "copied")
    (item,) = (await ask(world, "GET", "model-history/org%2Fbig"))["items"]
    assert item["text"].startswith("# mine\n")
    await ask(world, "POST", "model-copies", {"name": "tiny", "to": "org/big"}, status=409)


async def test_states_are_set_and_kept_in_the_history(world: World) -> None:
    await add(world)
    await ask(world, "POST", "model-states", {"name": "tiny", "is_disabled": True, "is_pinned": True})
    await ask(world, "POST", "model-states", {"name": "tiny", "is_disabled": False})
    assert [change for _, change in await history(world)] == ["enabled", "pinned", "disabled", "added"]
    refused = await ask(world, "POST", "model-states", {"name": "tiny"}, status=400)
    assert "is_disabled" in refused["error"]["message"]


async def test_operators_trust_no_code_that_comes_with_weights(world: World) -> None:
    """It would run on nodes, as a backend from elsewhere would."""
    key = (await ask(world, "POST", "keys", {"name": "o", "scopes": ["operator"]}, status=201))["key"]
    trusting = TEXT + "trust_remote_code: true\n"
    await add(world)
    await ask(world, "PUT", "models/tiny", {"config": trusting})
    await ask(world, "POST", "model-rollbacks", {"name": "tiny", "number": 1})
    config: dict[str, object] = {
        "name": "x",
        "backend": "echo",
        "parameters": {"model": "x"},
        "trust_remote_code": True,
    }
    asks: list[tuple[str, str, dict[str, object]]] = [
        ("POST", "/api/v1/models", {"config": trusting.replace("tiny", "other")}),
        ("PUT", "/api/v1/models/tiny", {"config": TEXT + "engine_args: {trust_remote_code: true}\n"}),
        ("PUT", "/api/v1/models/tiny", {"config": trusting, "dry_run": True}),
        ("POST", "/api/v1/model-rollbacks", {"name": "tiny", "number": 2}),
        ("PATCH", "/api/models/config-json/tiny", {"options": ["trust_remote_code:true"]}),
        ("POST", "/models/edit/tiny", {**config, "name": "tiny"}),
        ("POST", "/models/import", config),
    ]
    for method, path, body in asks:
        refused = await world.frontend.call(method, path, body, key=key)
        assert (refused.status, b"backends.trust" in refused.body) == (403, True), (path, refused.body)

    await ask(world, "PUT", "models/tiny", {"config": trusting})
    copied = await world.frontend.call("POST", "/api/v1/model-copies", {"name": "tiny", "to": "two"}, key=key)
    assert (copied.status, b"backends.trust" in copied.body) == (403, True)
    body = {"config": trusting + "context_size: 99\n"}
    assert (await world.frontend.call("PUT", "/api/v1/models/tiny", body, key=key)).status == 200
