"""What is installed where, and what galleries offer, in LocalAI's forms: `/backends…` and the page `/api/backends`."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus, Message
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.store.db import Database
from corral.galleries.config import GalleriesConfig
from corral.galleries.gallery import GalleryEntry, GallerySource
from corral.wire import subjects
from corral.wire.backends import InstalledBackend
from tests.kit.clock import ManualClock
from tests.kit.frontend import REGISTRATION_TOKEN, TRUSTED_TOKEN
from tests.kit.galleries import StaticCatalogue
from tests.kit.world import World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

SOURCE = GallerySource(name="g", url="https://user:pass@g.example/index.yaml?token=t", mirrors=("https://m.example/i",))


def entry(name: str, **fields: object) -> GalleryEntry:
    return GalleryEntry(name=name, gallery="g", **fields)  # type: ignore[arg-type]


@pytest.fixture
def catalogue() -> StaticCatalogue:
    return StaticCatalogue(
        SOURCE,
        entry("llama", capabilities={"default": "cpu-llama", "nvidia": "cuda12-llama"}, tags=("LLM",), version="2"),
        entry("cpu-llama", uri="oci://r/cpu", alias="llama", license="mit"),
        entry("cuda12-llama", uri="oci://r/cuda", alias="llama"),
        entry("cpu-llama-development", uri="oci://r/dev", description="the newest"),
        entry("lonely", uri="oci://r/lonely", urls=("https://l.example",), icon="i"),
    )


@pytest.fixture
async def world(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, catalogue: StaticCatalogue
) -> AsyncIterator[World]:
    config = GalleriesConfig(sources=(SOURCE,), cache=tmp_path / "cache")
    async with open_world(
        database, clock, bus, tmp_path, lookups=Lookups(galleries=catalogue), galleries=config
    ) as world:
        yield world


async def get(world: World, path: str, status: int = 200) -> Any:
    answer = await world.frontend.call("GET", path)
    assert answer.status == status, answer.body
    return answer.json()


def installed(name: str, **fields: Any) -> InstalledBackend:
    return InstalledBackend(name=name, installed_at="2029-12-31T00:00:00Z", **fields)


# Who is asked.


async def test_healthy_and_unhealthy_nodes_are_asked_and_no_others(world: World) -> None:
    """control-plane.md 5.2: every node not pending, offline or draining; agents too, which is defect 20."""
    frontend = world.frontend
    nodes = {name: await world.backends(name, is_corral=False) for name in ("beats", "drained", "gone", "silent")}
    for node in nodes.values():
        node.disk["a"] = installed("a")
    others: Any = [
        (await frontend.register({"name": "pending", "address": "a:1"})).json(),
        (await frontend.register({"name": "agent", "node_type": "agent"}, token=TRUSTED_TOKEN)).json(),
    ]
    await frontend.call("POST", f"/api/nodes/{nodes['drained'].node_id}/drain")
    await frontend.call("POST", f"/api/node/{nodes['gone'].node_id}/deregister", key=REGISTRATION_TOKEN)
    await _be_silent(world, timedelta(seconds=40), but=[nodes[name].node_id for name in ("beats", "drained")])
    asked: list[str] = []

    async def on_list(message: Message) -> None:
        asked.append(message.subject)

    for id in (*(one["id"] for one in others), *(one.node_id for one in nodes.values())):
        subscription = await world.bus.subscribe(subjects.backend_list(id), on_list)
        world.stack.push_async_callback(subscription.close)
    (row,) = await get(world, "/backends?refresh=1")
    assert [(one["node_name"], one["node_status"]) for one in row["nodes"]] == [
        ("beats", "healthy"),
        ("silent", "unhealthy"),
    ]
    assert sorted(asked) == sorted(subjects.backend_list(nodes[name].node_id) for name in ("beats", "silent"))


async def _be_silent(world: World, time: timedelta, *, but: Sequence[str]) -> None:
    """All nodes are, while control hears; some are heard at the end."""
    for _ in range(int(time / timedelta(seconds=1))):
        await world.clock.advance(timedelta(seconds=1))
        await world.frontend.settle()
    for id in but:
        await world.frontend.call("POST", f"/api/node/{id}/heartbeat", {}, key=REGISTRATION_TOKEN)


async def test_the_first_node_speaks_for_all_and_each_for_itself(world: World) -> None:
    """control-plane.md 5.2: merged by name; first node's metadata wins at top level; per-node refs."""
    (await world.backends("w1")).disk["a"] = installed("a", version="1", uri="oci://r/a:1", gallery_url="http://g")
    (await world.backends("w2")).disk["a"] = installed("a", version="2", digest="sha256:2", is_meta=True)
    (row,) = await get(world, "/backends?refresh=1")
    nodes = [{key: value for key, value in one.items() if key != "corral"} for one in row.pop("nodes")]
    assert row == {
        "Name": "a",
        "RunFile": "",
        "IsMeta": False,
        "IsSystem": False,
        "Metadata": {
            "name": "a",
            "gallery_url": "http://g",
            "installed_at": "2029-12-31T00:00:00Z",
            "version": "1",
            "uri": "oci://r/a:1",
        },
    }
    assert [(one["node_name"], one["version"], one.get("digest"), one.get("uri")) for one in nodes] == [
        ("w1", "1", None, "oci://r/a:1"),
        ("w2", "2", "sha256:2", None),
    ]


async def test_lists_are_answered_from_reports_and_say_how_old_they_are(world: World) -> None:
    node = await world.backends("w1")
    node.disk["a"] = installed("a")
    assert await get(world, "/backends") == []
    assert (await get(world, "/api/backends"))["corral"] == {"oldest_seconds": 0.0, "unheard": ["w1"]}
    await get(world, "/backends?refresh=1")
    del node.disk["a"]
    await world.clock.advance(timedelta(seconds=7))
    (row,) = await get(world, "/backends")
    assert row["nodes"][0]["corral"] == {"seen_at": "2030-01-01T00:00:00Z", "age_seconds": 7.0}
    page = await get(world, "/api/backends")
    assert page["corral"] == {"oldest_seconds": 7.0, "unheard": []}
    (native,) = (await get(world, "/api/v1/backends"))["items"]
    assert native["nodes"][0]["age_seconds"] == 7.0
    assert await get(world, "/backends?refresh=1") == []


async def test_a_listing_ends_an_install_that_it_shows_and_no_upgrade(world: World) -> None:
    """control-plane.md 2.2: after each cluster backend listing, `install` rows whose (node, backend) is reported
    installed are deleted. Upgrade and delete rows are not cleared this way."""
    node = await world.backends("w1")
    node.faults.refusal = "no"
    jobs = [(await _job(world, f"/api/backends/install/{name}")) for name in ("lonely", "cpu-llama")]
    await world.control.context.operations.dispatcher.tick()
    node.disk["lonely"] = installed("lonely")
    node.disk["cpu-llama"] = installed("cpu-llama")
    sent = len(node.requests)
    await get(world, "/backends?refresh=1")
    await world.control.context.operations.dispatcher.tick()
    assert [(await get(world, f"/api/backends/job/{job}")).get("completed") for job in jobs] == [True, True]
    assert len(node.requests) == sent
    upgrade = await _job(world, "/api/backends/upgrade/lonely")
    await world.control.context.operations.dispatcher.tick()
    await get(world, "/backends?refresh=1")
    await world.control.context.operations.dispatcher.tick()
    assert "completed" not in await get(world, f"/api/backends/job/{upgrade}")


async def _job(world: World, path: str) -> str:
    answer: Any = (await world.frontend.call("POST", path)).json()
    return str(answer["jobID"])


# The page.


async def test_the_page_has_all_that_localais_page_reads(world: World) -> None:
    node = await world.backends("w1")
    node.disk["cpu-llama"] = installed("cpu-llama", version="1")
    node.gate.clear()
    world.stack.callback(node.gate.set)
    job = await _job(world, "/api/backends/install/g@lonely")
    page = await get(world, "/api/backends?refresh=1")
    items = page.pop("backends")
    assert page == {
        "repositories": [{"url": "https://g.example/index.yaml", "name": "g", "mirrors": ["https://m.example/i"]}],
        "allTags": ["LLM"],
        "processingBackends": {"g@lonely": job},
        "taskTypes": {"g@lonely": "Installation"},
        "availableBackends": 5,
        "installedBackends": 1,
        "currentPage": 1,
        "totalPages": 1,
        "prevPage": 1,
        "nextPage": 1,
        "systemCapability": "default",
        "preferDevelopmentBackends": False,
        "corral": {"oldest_seconds": 0.0, "unheard": []},
    }
    meta, cpu, _, development, lonely = items
    assert meta == {
        "id": "g@llama",
        "name": "llama",
        "description": "",
        "icon": "",
        "license": "",
        "urls": None,
        "tags": ["LLM"],
        "gallery": "g",
        "installed": False,
        "version": "2",
        "processing": False,
        "jobID": "",
        "isDeletion": False,
        "isMeta": True,
        "isAlias": False,
        "isDevelopment": False,
        "capabilities": {"default": "cpu-llama", "nvidia": "cuda12-llama"},
        "metaBackendFor": "",
        "nodes": None,
    }
    assert (cpu["installed"], cpu["isAlias"], cpu["metaBackendFor"]) == (True, True, "llama")
    assert [(one["node_name"], one["version"]) for one in cpu["nodes"]] == [("w1", "1")]
    assert (development["isDevelopment"], development["isAlias"]) == (True, False)
    assert (lonely["processing"], lonely["jobID"], lonely["isDeletion"]) == (True, job, False)


@pytest.mark.parametrize(
    ("query", "names", "numbers"),
    [
        ("term=newest", ["cpu-llama-development"], (1, 1)),
        ("tag=llm", ["llama"], (1, 1)),
        ("sort=name&order=desc&items=2", ["lonely", "llama"], (5, 3)),
        ("sort=name&items=2&page=3", ["lonely"], (5, 3)),
        ("page=nonsense&items=-3", ["llama", "cpu-llama", "cuda12-llama", "cpu-llama-development", "lonely"], (5, 1)),
    ],
)
async def test_the_page_is_searched_sorted_and_cut(
    world: World, query: str, names: list[str], numbers: tuple[int, int]
) -> None:
    page = await get(world, f"/api/backends?{query}")
    assert [one["name"] for one in page["backends"]] == names
    assert (page["availableBackends"], page["totalPages"]) == numbers


# The lists for programs.


async def test_what_is_available_is_what_some_healthy_node_can_run(world: World) -> None:
    """control-plane.md 5.5: union of capabilities of healthy backend nodes."""
    body = {"name": "w1", "address": "a:1", "capability": "default"}
    await world.frontend.register(body, token=TRUSTED_TOKEN)
    assert [one["name"] for one in await get(world, "/backends/available")] == [
        "llama",
        "cpu-llama",
        "cpu-llama-development",
        "lonely",
    ]
    await world.frontend.register({**body, "name": "w2", "capability": "nvidia-cuda-12"}, token=TRUSTED_TOKEN)
    available = await get(world, "/backends/available")
    assert "cuda12-llama" in [one["name"] for one in available]
    assert available[-1] == {
        "name": "lonely",
        "urls": ["https://l.example"],
        "icon": "i",
        "gallery": {"url": "https://g.example/index.yaml", "name": "g", "mirrors": ["https://m.example/i"]},
        "uri": "oci://r/lonely",
    }


async def test_known_backends_are_names_to_ask_for(world: World) -> None:
    (await world.backends("w1")).disk["cpu-llama"] = installed("cpu-llama")
    (await world.backends("w2")).disk["mine"] = installed("mine")
    known = await get(world, "/backends/known?refresh=1")
    assert [(one["name"], one["installed"]) for one in known] == [
        ("cpu-llama", True),
        ("cpu-llama-development", False),
        ("llama", False),
        ("lonely", False),
        ("mine", True),
    ]
    assert known[1] == {
        "name": "cpu-llama-development",
        "modality": "",
        "auto_detect": False,
        "description": "the newest",
        "installed": False,
    }


async def test_galleries_are_shown_without_their_logins(world: World) -> None:
    (shown,) = await get(world, "/backends/galleries")
    assert shown == {"url": "https://g.example/index.yaml", "name": "g", "mirrors": ["https://m.example/i"]}


async def test_galleries_that_cannot_be_read_are_no_empty_ones(world: World, catalogue: StaticCatalogue) -> None:
    catalogue.closed = True
    assert "galleries" in (await get(world, "/api/backends", 503))["error"]
    told = (await get(world, "/backends/available", 503))["error"]
    assert (told["code"], told["type"]) == (503, "")
    assert await get(world, "/backends") == []


# Corral's own list of what galleries offer.


async def test_the_fleets_galleries_say_which_nodes_can_use_what(world: World) -> None:
    plain = await world.backends("plain")
    await world.frontend.register({"name": "gpu", "address": "a:1", "capability": "nvidia"}, token=TRUSTED_TOKEN)
    plain.disk["cpu-llama"] = installed("cpu-llama")
    await get(world, "/backends?refresh=1")
    found = await get(world, "/api/v1/galleries")
    assert found["scope"] == "fleet"
    llama = found["items"][0]
    assert (llama["id"], llama["meta"]) == ("g@llama", True)
    fits = {tuple(one["nodes"]): (one["verdict"], one["build"], one["installed_on"]) for one in llama["fits"]}
    assert fits == {("plain",): ("fits", "cpu-llama", ["plain"]), ("gpu",): ("fits", "cuda12-llama", [])}
    cuda = next(one for one in found["items"] if one["name"] == "cuda12-llama")
    assert {tuple(one["nodes"]): one["verdict"] for one in cuda["fits"]} == {("plain",): "blocked", ("gpu",): "fits"}
    (gallery,) = found["galleries"]
    assert (gallery["name"], gallery["entries"]) == ("g", 5)
    assert "pass" not in gallery["url"] + gallery["read_from"]


async def test_the_fleets_galleries_can_be_searched(world: World) -> None:
    assert [one["name"] for one in (await get(world, "/api/v1/galleries?term=newest"))["items"]] == [
        "cpu-llama-development"
    ]
    nothing = await get(world, "/api/v1/galleries?term=lonley")
    assert (nothing["items"], nothing["near"]) == ([], ["lonely"])


async def test_one_backend_of_the_fleets_galleries(world: World) -> None:
    await world.backends("plain")
    found = await get(world, "/api/v1/galleries/backends/g@llama")
    assert [(one["nodes"], one["build"]) for one in found["fits"]] == [(["plain"], "cpu-llama")]
    missing = await get(world, "/api/v1/galleries/backends/lonley", status=404)
    assert "did you mean lonely?" in missing["error"]["message"]


async def test_galleries_that_cannot_be_read_are_not_shown_as_empty_ones(
    world: World, catalogue: StaticCatalogue
) -> None:
    catalogue.closed = True
    for path in ("/api/v1/galleries", "/api/v1/galleries?refresh=1", "/api/v1/galleries/backends/llama"):
        assert (await get(world, path, status=503))["error"]["code"] == "galleries_unread"
