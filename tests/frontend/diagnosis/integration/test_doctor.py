"""What the frontend's diagnostics say of models and operations that need a person."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.serving.adapted import NO_ADAPTER
from corral.frontend.store.db import Database
from corral.galleries.gallery import GalleryEntry, GallerySource
from corral.wire.models import LoadReason
from tests.kit.clock import ManualClock
from tests.kit.galleries import StaticCatalogue
from tests.kit.world import World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

GALLERY = StaticCatalogue(
    GallerySource(name="g", url="https://g.example/index.yaml"),
    GalleryEntry(name="lonely", gallery="g", uri="oci://r/lonely"),
)


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path, lookups=Lookups(galleries=GALLERY)) as world:
        yield world


async def finding_of(world: World, check: str) -> tuple[str, str, str]:
    report: Any = (await world.frontend.call("GET", "/api/v1/doctor")).json()
    (finding,) = [one for one in report["findings"] if one["check"] == check]
    return finding["level"], finding["summary"], finding["remedy"]


async def test_a_model_that_cannot_be_loaded_is_a_problem_until_it_is(world: World) -> None:
    await world.write("name: small\nbackend: echo\nparameters: {model: none}\n")
    await world.node("w1")
    world.loader.error = "no GPU"
    await world.loads.ensure("small")
    await world.loads.tick()
    assert await finding_of(world, "models") == (
        "problem",
        "1 of 1 could not be loaded: small",
        "`corral models show small` tells why.",
    )

    world.loader.error = ""
    await world.clock.advance(timedelta(minutes=5))
    await world.loaded()
    assert (await finding_of(world, "models"))[:2] == ("ok", "1 known, none failed to load")


async def test_a_control_without_an_adapter_says_which_models_cannot_be_asked(world: World) -> None:
    """LocalAI's workers give a replica no URL, and only the launcher of a frontend starts an adapter for it."""
    await world.worker("l", "echo", is_corral=False)
    replica = await world.loaded()

    assert (replica.state, replica.needs_adapter) == ("loaded", True)
    level, summary, _ = await finding_of(world, "models")
    assert (level, summary) == ("problem", f"small cannot be asked on workers of LocalAI's: {NO_ADAPTER}")
    status = await world.loads.ensure("small")
    assert (status.state, status.message, status.reason) == ("failed", NO_ADAPTER, LoadReason.NOT_REACHABLE)


async def test_a_model_whose_file_is_gone_is_no_problem_any_more(world: World) -> None:
    await world.write("name: small\nbackend: echo\nparameters: {model: none}\n")
    await world.node("w1")
    world.loader.error = "no GPU"
    await world.loads.ensure("small")
    await world.loads.tick()
    await world.delete()
    assert (await finding_of(world, "models"))[0] == "ok"


async def test_files_that_were_passed_over_are_warned_of(world: World) -> None:
    for number in range(7):
        await world.write("name: [", name=f"bad{number}.yaml")
    level, summary, _ = await finding_of(world, "models")
    assert level == "warning"
    assert summary == "files were passed over: bad0.yaml, bad1.yaml, bad2.yaml, bad3.yaml, bad4.yaml and 2 more"


async def test_keys_that_nobody_knows_are_warned_of_and_a_second_file_of_a_known_name_too(world: World) -> None:
    await world.write("name: small\nbackend: echo\nparameters: {model: none}\nthraeds: 1\n")
    assert (await finding_of(world, "models"))[:2] == ("warning", "keys that nobody knows are in small.yaml")
    model: Any = (await world.frontend.call("GET", "/api/v1/models/small")).json()
    assert model["warnings"] == ["line 4: unknown key 'thraeds', which has no effect; did you mean threads?"]

    await world.write("name: small\nbackend: other\nparameters: {model: none}\n", name="a.yaml")
    assert (await finding_of(world, "models"))[:2] == ("warning", "files were passed over: a.yaml")
    model = (await world.frontend.call("GET", "/api/v1/models/small")).json()
    assert (model["backend"], [one["source"] for one in model["problems"]]) == ("echo", ["a.yaml"])


async def test_models_without_a_file_are_looked_at_and_lone_weights_are_named(world: World) -> None:
    (world.models / "lone.gguf").write_bytes(b"w")
    await world.control.context.models.watch.look()
    lone = "1 known, none failed to load; weights that no model uses: lone.gguf"
    assert (await finding_of(world, "models"))[:2] == ("ok", lone)
    text = "name: big\nbackend: echo\nparameters: {model: none}\nthraeds: 1\n"
    await world.control.context.models.changes.add(text, by="me")
    assert (await finding_of(world, "models"))[:2] == ("warning", "keys that nobody knows are in big")


async def test_operations_that_failed_are_warned_of_until_somebody_takes_them_back(world: World) -> None:
    (await world.backends("w1")).faults.refusal = "says no"
    started: Any = (
        await world.frontend.call("POST", "/api/v1/operations", {"verb": "install", "backend": "lonely"})
    ).json()
    assert (await finding_of(world, "operations"))[:2] == ("ok", "none has failed")
    await world.control.context.operations.dispatcher.tick()
    id = started["id"]
    assert await finding_of(world, "operations") == (
        "warning",
        f"1 failed: install lonely ({id[:8]})",
        f"See what to do with `corral ops show {id[:8]}`.",
    )

    await world.frontend.call("POST", f"/api/v1/operations/{id}/cancel")
    assert (await finding_of(world, "operations"))[0] == "ok"


async def test_an_install_of_what_nobody_knows_is_refused_with_the_near_name(world: World) -> None:
    node = await world.backends("w1")
    answer = await world.frontend.call("POST", "/api/v1/operations", {"verb": "install", "backend": "lonley"})
    error: Any = answer.json()
    assert (answer.status, error["error"]["field"]) == (400, "backend")
    assert "no gallery has a backend 'lonley'; did you mean lonely?" in error["error"]["message"]
    assert node.requests == []

    GALLERY.closed = True
    try:
        accepted = await world.frontend.call("POST", "/api/v1/operations", {"verb": "install", "backend": "lonley"})
        assert accepted.status == 202
    finally:
        GALLERY.closed = False


async def test_localai_s_routes_accept_what_nobody_knows_and_doctor_sees_that_it_is_blocked(world: World) -> None:
    await world.backends("w1")
    assert (await world.frontend.call("POST", "/backends/apply", {"id": "lonley"})).status == 200
    level, summary, _ = await finding_of(world, "operations")
    assert (level, summary.startswith("1 failed: install lonley")) == ("warning", True)
