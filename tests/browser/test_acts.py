"""Acts on five real workers, as people do them: choose, plan, confirm, watch every node, see the proof."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from corral.base.ids import NodeId
from tests.kit.backend_scripts import write_serving_backend
from tests.kit.images import a_layer
from tests.kit.loop_thread import LoopThread
from tests.kit.processes import WorkerProcess
from tests.kit.registry import FakeRegistry
from tests.kit.simulated_site import SimulatedSite, simulated_site
from tests.kit.waiting import eventually

from .conftest import Visits

WORKERS = [f"w{number}" for number in range(1, 6)]
BACKENDS = ("gamma", "delta")


@dataclass
class Workshop:
    """Five real workers, and a registry."""

    loop: LoopThread
    site: SimulatedSite
    registry: FakeRegistry
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    ids: dict[str, NodeId] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.site.frontends[0].url

    @property
    def key(self) -> str:
        return self.site.admin_key

    def install(self, backend: str) -> None:
        """Beside the page, as by another person; returns when all have it."""

        async def done() -> None:
            frontend = self.site.frontends[0]
            answer = await frontend.call("POST", "/api/v1/operations", {"verb": "install", "backend": backend})
            assert answer.status == 202, answer.body
            id = json.loads(answer.body)["id"]

            async def is_done() -> bool:
                operation = json.loads((await frontend.call("GET", f"/api/v1/operations/{id}")).body)
                assert operation["state"] != "failed", json.dumps(operation)
                return bool(operation["state"] == "done")

            await eventually(is_done, f"{backend} everywhere", seconds=120)

        self.loop.run(done())


@pytest.fixture(scope="module")
def workshop(module_folder: Path) -> Iterator[Workshop]:
    index = module_folder / "index.yaml"
    galleries = json.dumps([{"name": "g", "url": f"file://{index}"}])
    with LoopThread() as loop:
        registry = loop.enter(FakeRegistry())
        for name in BACKENDS:
            made = write_serving_backend(module_folder, name)
            content = {path.name: path.read_bytes() for path in made.iterdir()}
            registry.add_image(f"backends/{name}", [a_layer(content)])
        entries = [f"- name: {name}\n  uri: oci://{registry.reference(f'backends/{name}')}\n" for name in BACKENDS]
        index.write_text("".join(entries), encoding="utf-8")
        settings = {"CORRAL_BACKEND_GALLERIES": galleries}
        site = loop.enter(simulated_site(module_folder, settings=settings, worker_settings=settings))
        workshop = Workshop(loop, site, registry, {name: site.worker(name) for name in WORKERS})
        for worker in workshop.workers.values():
            loop.enter(worker)

        async def all_healthy() -> bool:
            nodes = await site.frontends[0].nodes()
            workshop.ids = {node.name: id for id, node in nodes.items()}
            return [node.status for node in nodes.values()] == ["healthy"] * len(WORKERS)

        loop.run(eventually(all_healthy, "five workers", seconds=120))
        yield workshop


def begin(page: Page, backend: str, verb: str = "Install") -> Locator:
    """Open the dialog of an act on all nodes, from the gallery."""
    page.get_by_role("button", name=backend, exact=True).click()
    page.get_by_role("complementary").get_by_role("button", name=f"{verb}…").click()
    dialog = page.get_by_role("dialog", name=f"{verb} {backend}")
    expect(dialog).to_contain_text("5 nodes")
    dialog.get_by_role("button", name="Show the plan").click()
    return dialog


def row(place: Locator, text: str) -> Locator:
    """Rows of nodes with a word or a name."""
    return place.get_by_role("table", name="Nodes of this operation").get_by_role("row").filter(has_text=text)


def test_an_install_shows_every_node_until_its_proof(visit: Visits, workshop: Workshop) -> None:
    page = visit(workshop.url, key=workshop.key, path="/ui/backends").page
    dialog = begin(page, "gamma")
    expect(dialog.get_by_role("region", name="Fits: 5 nodes")).to_be_visible()

    dialog.get_by_role("button", name="Install gamma on 5 nodes").click()

    expect(row(dialog, "Done")).to_have_count(5)
    expect(row(dialog, "digest")).to_have_count(5)


def test_a_delete_tells_first_what_it_would_touch(visit: Visits, workshop: Workshop) -> None:
    workshop.install("gamma")
    page = visit(workshop.url, key=workshop.key, path="/ui/backends").page
    dialog = begin(page, "gamma", "Delete")
    expect(dialog.get_by_role("region", name="Fits: 5 nodes")).to_contain_text("w4")
    dialog.get_by_text("As text, and as a command").click()
    expect(dialog.get_by_text("corral backends delete gamma")).to_be_visible()

    dialog.get_by_role("button", name="Delete gamma on 5 nodes").click()

    expect(row(dialog, "Done")).to_have_count(5)
    assert list(workshop.site.folder.glob("w*/backends/gamma")) == []


def test_two_people_on_one_plan_and_the_second_sees_the_new_one(visit: Visits, workshop: Workshop) -> None:
    watch = visit(workshop.url, key=workshop.key, path="/ui/backends")
    watch.allow("status of 409")
    dialog = begin(watch.page, "delta")
    expect(dialog.get_by_role("region", name="Fits: 5 nodes")).to_be_visible()

    workshop.install("delta")
    dialog.get_by_role("button", name="Install delta on 5 nodes").click()

    expect(dialog).to_contain_text("The fleet has changed since you looked. This is the plan of now; nothing was done.")
    expect(dialog.get_by_role("region", name="Already: 5 nodes")).to_be_visible()
    expect(dialog).to_contain_text("There is nothing to do: every node is as it should be.")
