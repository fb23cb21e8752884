"""Two frontends on one database: both show the same, and who watches one that dies goes on at the other."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.kit.browser import remember, remembered
from tests.kit.databases import DatabaseSource
from tests.kit.images import a_layer
from tests.kit.loop_thread import LoopThread
from tests.kit.nginx import nginx_preferring
from tests.kit.registry import FakeRegistry, trickling
from tests.kit.simulated_fleet import Behave, Join
from tests.kit.simulated_site import SimulatedSite, simulated_site
from tests.kit.waiting import eventually

from .conftest import Visits

pytestmark = pytest.mark.postgres
SIMULATED = 11
NODES = SIMULATED + 1
IMAGE_BYTES = 800_000
RESUMED_MILLISECONDS = 5_000
ON_THE_WAY = 2
"""Values of the frontend that dies, which may still arrive after its end."""
BYTES = r"[\d.]+ (?:B|KiB) of \d+ KiB"


@dataclass(frozen=True)
class Pair:
    loop: LoopThread
    site: SimulatedSite
    registry: FakeRegistry
    url: str
    """Of a proxy that prefers the first frontend."""
    rest: asyncio.Event
    """Until it is set, downloads of the real worker crawl."""

    @property
    def key(self) -> str:
        return self.site.admin_key

    def install(self, name: str) -> str:
        """Ask the second frontend; the id of the operation."""
        ask = {"verb": "install", "uri": f"oci://{self.registry.reference(name)}", "name": name}
        answer = self.loop.run(self.site.frontends[1].call("POST", "/api/v1/operations", ask))
        assert answer.status == 202, answer.body
        return str(json.loads(answer.body)["id"])

    def let_it_finish(self) -> None:
        async def set_it() -> None:
            self.rest.set()

        self.loop.run(set_it())


@pytest.fixture(scope="module")
def pair(module_folder: Path, database_source: DatabaseSource) -> Iterator[Pair]:
    with LoopThread() as loop:
        registry = loop.enter(FakeRegistry())
        content = {"run.sh": b"#!/bin/sh\n", "weights": os.urandom(IMAGE_BYTES)}
        digest = registry.add_image("big", [a_layer(content)]).digest
        url = loop.enter(database_source.blank_url("postgres"))
        site = loop.enter(simulated_site(module_folder, database=url, count=2))
        home = module_folder / "nginx"
        home.mkdir()
        port = loop.enter(nginx_preferring([frontend.port for frontend in site.frontends], home))
        loop.run(site.fleet.do(Join(count=SIMULATED)))
        loop.run(site.fleet.do(Behave(digest=digest)))
        loop.enter(site.worker("real"))

        async def all_healthy() -> bool:
            nodes = await site.frontends[1].nodes()
            return [node.status for node in nodes.values()] == ["healthy"] * NODES

        loop.run(eventually(all_healthy, "all nodes", seconds=120))
        rest = asyncio.Event()
        registry.faults["GET /v2/big/blobs"] = [trickling(2_000, pause_seconds=0.05, until=rest)] * 10
        yield Pair(loop, site, registry, f"http://127.0.0.1:{port}", rest)


def pulse(page: Page) -> str:
    return re.sub(r"\s+", " ", page.get_by_role("region", name="Pulse of the fleet").inner_text())


def counts_of(page: Page, name: str) -> list[int]:
    return [int(text.split()[0]) for text in remembered(page, name)]


def bytes_of(page: Page, name: str) -> list[float]:
    """What had arrived, each time that it was another amount."""
    amounts = [text.split()[:2] for text in remembered(page, name)]
    return [float(number) * (1024 if unit == "KiB" else 1) for number, unit in amounts]


def test_both_show_the_same_and_an_act_at_one_is_seen_at_the_other(visit: Visits, pair: Pair) -> None:
    pages = [visit(frontend.url, key=pair.key).page for frontend in pair.site.frontends]
    for page in pages:
        expect(page.get_by_role("button", name=re.compile(rf"{NODES}\s+healthy"))).to_be_visible()

    pages[0].get_by_role("button", name="node-00003").click()
    pages[0].get_by_role("complementary", name="node-00003").get_by_role("button", name="Drain").click()
    dialog = pages[0].get_by_role("dialog", name="Drain node-00003")
    expect(dialog).to_contain_text("Nothing runs there: the machine can be taken away at once.")
    dialog.get_by_role("button", name="Drain node-00003").click()

    expect(pages[1].get_by_role("button", name=re.compile(r"1\s+draining"))).to_be_visible()
    expect(pages[1].get_by_role("button", name=re.compile(r"node-00003\s*Draining"))).to_be_visible()
    pages[1].get_by_role("button", name="node-00003").click()
    pages[1].get_by_role("complementary", name="node-00003").get_by_role("button", name="Resume").click()
    for page in pages:
        expect(page.get_by_role("button", name=re.compile(rf"{NODES}\s+healthy"))).to_be_visible()


def test_who_watches_a_frontend_that_dies_goes_on_at_the_other_and_nothing_goes_back(visit: Visits, pair: Pair) -> None:
    watch = visit(pair.url, key=pair.key, path="/ui/activity")
    watch.allow(r"ERR_|status of 50[234]")  # connections break: that is what happens here
    page = watch.page
    operation = pair.install("big")
    page.goto(f"/ui/activity/{operation}")
    legend = page.get_by_role("list", name="Nodes by state")
    remember(page, "done", r"\d+ done")
    remember(page, "bytes", BYTES, within="[aria-label='Nodes of this operation']")
    remember(page, "all bytes", BYTES, within="main header")
    real = page.get_by_role("row").filter(has_text="real")
    expect(legend).to_contain_text(re.compile(rf"{SIMULATED}\s+done"))
    expect(real).to_contain_text(re.compile(r"[1-9]\d+ KiB of"))
    seen = len(bytes_of(page, "bytes"))

    pair.loop.run(pair.site.frontends[0].kill())

    resumed = "seen => window.remembered.bytes.length > seen"
    page.wait_for_function(resumed, arg=seen + ON_THE_WAY, timeout=RESUMED_MILLISECONDS)
    pair.let_it_finish()
    expect(legend).to_contain_text(re.compile(rf"{NODES}\s+done"))
    expect(page.get_by_role("row").filter(has_text="Done")).to_have_count(NODES)
    assert counts_of(page, "done") == sorted(counts_of(page, "done"))
    for name in ("bytes", "all bytes"):
        assert bytes_of(page, name) == sorted(bytes_of(page, name))
        assert len(bytes_of(page, name)) > 1
