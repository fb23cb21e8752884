"""The page of the fleet, with more nodes than machines: simulated nodes on a real frontend."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.kit.loop_thread import LoopThread
from tests.kit.simulated_fleet import Behave, Join, names_of
from tests.kit.simulated_node import SimulatedMachine
from tests.kit.simulated_site import SimulatedSite, simulated_site

from .conftest import Visits

MARKUP = '<img src=x onerror="document.title=1"><script>document.title=2</script>&amp;'
MOST_ROWS = 80
"""In the document; all others are drawn when somebody scrolls to them."""


@dataclass(frozen=True)
class Crowd:
    """A frontend with many simulated nodes."""

    loop: LoopThread
    site: SimulatedSite

    @property
    def url(self) -> str:
        return self.site.frontends[0].url

    @property
    def key(self) -> str:
        return self.site.admin_key

    def do(self, command: Join | Behave) -> list[str]:
        return names_of(self.loop.run(self.site.fleet.do(command)))

    def node_id(self, name: str) -> str:
        nodes = self.loop.run(self.site.frontends[0].nodes())
        return next(id for id, node in nodes.items() if node.name == name)


@pytest.fixture(scope="module")
def crowd(module_folder: Path) -> Iterator[Crowd]:
    """Thirty nodes with GPUs in two racks, one that is soon missed, and one with a name that is no name."""
    with LoopThread() as loop:
        site = loop.enter(simulated_site(module_folder))
        crowd = Crowd(loop, site)
        for rack in ("a", "b"):
            machine = SimulatedMachine(
                cards=2, card_name="L40S", card_memory=48, free_card_memory=30, labels={"rack": rack}
            )
            crowd.do(Join(count=15, prefix=f"gpu-{rack}", machine=machine))
        crowd.do(Join(count=1, prefix=MARKUP))
        crowd.do(Join(count=1, prefix="soon-missed", interval_seconds=2.0))
        yield crowd


def open_fleet(visit: Visits, crowd: Crowd, query: str = "") -> Page:
    page = visit(crowd.url, key=crowd.key, path=f"/ui/fleet{query}").page
    expect(page.get_by_role("button", name="healthy").first).to_be_visible()
    return page


def cells(page: Page) -> list[str]:
    """Names of the nodes in the grid."""
    return [cell.inner_text() for cell in page.locator("section[aria-label] button[aria-pressed] [class*=name]").all()]


def test_every_node_is_in_the_grid_and_filters_are_in_the_address(visit: Visits, crowd: Crowd) -> None:
    page = open_fleet(visit, crowd)
    expect(page.get_by_role("heading", name="Nodes, 32")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^gpu-"))).to_have_count(30)

    page.get_by_role("searchbox", name="Find nodes").fill("gpu-b")
    expect(page.get_by_role("heading", name="Nodes, 15 of 32")).to_be_visible()
    expect(page).to_have_url(re.compile(r"text=gpu-b"))
    page.reload()
    expect(page.get_by_role("heading", name="Nodes, 15 of 32")).to_be_visible()
    page.go_back()


def test_a_name_full_of_markup_is_text_everywhere(visit: Visits, crowd: Crowd) -> None:
    page = open_fleet(visit, crowd)
    cell = page.get_by_role("button", name=MARKUP)
    expect(cell).to_be_visible()
    cell.click()
    expect(page.get_by_role("heading", name=MARKUP)).to_be_visible()
    page.get_by_role("link", name="Open node").click()
    expect(page.get_by_role("heading", name=MARKUP, level=1)).to_be_visible()
    assert page.locator("main img").count() == 0
    assert page.title().startswith(MARKUP)
    page.goto("/ui/fleet?view=table")
    expect(page.get_by_role("link", name=MARKUP)).to_be_visible()


def test_a_node_that_falls_silent_is_counted_explained_and_forgiven(visit: Visits, crowd: Crowd) -> None:
    page = open_fleet(visit, crowd)
    [silent] = [name for name in crowd.do(Behave(names=["-"])) if name.startswith("soon-missed")]
    crowd.do(Behave(names=[silent], beats=False))

    page.get_by_role("button", name=re.compile(r"1\s+(unhealthy|offline)")).click()

    expect(page.get_by_role("heading", name="Nodes, 1 of 32")).to_be_visible()
    attention = page.get_by_role("listitem").filter(has_text=silent)
    expect(attention).to_contain_text(re.compile(rf"{silent} is (unhealthy|offline)\s*missed more than \d heartbeats"))
    expect(attention.locator("time")).to_contain_text("ago")
    page.get_by_role("button", name=re.compile(rf"^{silent}")).click()
    expect(page.get_by_role("complementary")).to_contain_text(re.compile(r"missed more than \d heartbeats"))

    crowd.do(Behave(names=[silent], beats=True))

    expect(page.get_by_role("heading", name="Nodes, 0 of 32")).to_be_visible()
    expect(page.get_by_role("complementary")).to_contain_text("Healthy")
    expect(page.get_by_text("Nothing needs attention.")).to_be_visible()


def test_many_nodes_are_as_many_buttons_and_few_rows(visit: Visits, crowd: Crowd) -> None:
    crowd.do(Join(count=120, prefix="many", interval_seconds=60.0))
    page = open_fleet(visit, crowd, "?text=many")
    expect(page.get_by_role("button", name=re.compile("^many-"))).to_have_count(120)

    page.get_by_role("radio", name="Table").click()

    expect(page.get_by_role("link", name=re.compile("^many-")).first).to_be_visible()
    assert page.get_by_role("row").count() <= MOST_ROWS
    page.get_by_role("main").evaluate("main => main.scrollTo(0, main.scrollHeight)")
    expect(page.get_by_role("link", name="many-00151")).to_be_visible()
    assert page.get_by_role("row").count() <= MOST_ROWS
