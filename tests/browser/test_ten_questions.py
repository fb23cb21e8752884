"""Ten questions of a tired operator, each answered as visible text after one or two clicks from the first page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.kit.gpu_machine import CARD_NAME
from tests.kit.troubled_fleet import BACKEND, FULL, HUGE, LOST, MODEL, SLOW, WITH_GPU, TroubledFleet, troubled_fleet

from .conftest import Visits


@pytest.fixture(scope="module")
def fleet(module_folder: Path) -> Iterator[TroubledFleet]:
    with troubled_fleet(module_folder) as fleet:
        yield fleet


class Person:
    """Somebody on the page of the fleet, whose clicks are counted. They use nothing but clicks."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, place: Locator) -> None:
        place.click()
        self.clicks += 1

    def open_node(self, name: str) -> Locator:
        """One click; what is shown beside the list."""
        self.click(self.page.get_by_role("button", name=re.compile(rf"^{name}\s")))
        return self.page.get_by_role("complementary", name=name)


@pytest.fixture
def person(visit: Visits, fleet: TroubledFleet) -> Person:
    page = visit(fleet.url, key=fleet.key).page
    expect(page.get_by_role("heading", name="Fleet", level=1)).to_be_visible()
    return Person(page)


def attention(page: Page, text: str) -> Locator:
    """The item of the attention list with this text."""
    return page.get_by_role("listitem").filter(has_text=text)


def test_which_node_blocks_this_upgrade_and_why(person: Person) -> None:
    item = attention(person.page, f"Upgrade {BACKEND} is blocked on {FULL}")
    person.click(item.get_by_role("link", name="Open operation"))
    row = person.page.get_by_role("row").filter(has_text=FULL)
    expect(row).to_contain_text("Blocked")
    expect(row).to_contain_text(re.compile("disk|room"))
    assert person.clicks == 1


def test_what_is_not_as_asked(person: Person) -> None:
    item = attention(person.page, f"{BACKEND} on {LOST} is not as it was asked for")
    person.click(item.get_by_role("link", name="Show drift"))
    row = person.page.get_by_role("row").filter(has_text=LOST)
    expect(row).to_contain_text(BACKEND)
    expect(row).to_contain_text("not installed")
    assert person.clicks == 1


def test_what_will_this_delete_touch(person: Person) -> None:
    panel = person.open_node(WITH_GPU)
    person.click(panel.get_by_role("button", name=f"Delete {BACKEND} on {WITH_GPU}…"))
    plan = person.page.get_by_role("dialog", name=f"Delete {BACKEND}")
    expect(plan).to_contain_text(WITH_GPU)
    expect(plan).to_contain_text(MODEL)
    expect(plan.get_by_role("button", name=f"Delete {BACKEND} on 1 node")).to_be_visible()
    assert person.clicks == 2


def test_who_installed_this_and_when(person: Person) -> None:
    page = person.page
    person.click(page.get_by_role("link", name="Activity", exact=True))
    person.click(page.get_by_role("link", name=f"Install {BACKEND}", exact=True))
    asked = page.get_by_role("definition")
    expect(asked.filter(has_text=re.compile("^admin"))).to_be_visible()
    expect(asked.filter(has_text=re.compile(r"\d\d:\d\d.*ago"))).to_be_visible()
    assert person.clicks == 2


def test_where_does_this_model_run_and_how_busy_is_it(person: Person) -> None:
    page = person.page
    person.click(page.get_by_role("link", name="Models", exact=True))
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=MODEL, exact=True))
    expect(row).to_contain_text("Loaded")
    expect(row.get_by_role("link", name=WITH_GPU, exact=True)).to_be_visible()
    expect(row.get_by_role("cell", name="1", exact=True)).to_be_visible()
    assert person.clicks == 1


def test_is_this_stuck_or_just_slow(person: Person) -> None:
    page = person.page
    person.click(page.get_by_role("banner").get_by_role("link", name=re.compile(f"install {SLOW}")))
    row = page.get_by_role("row").filter(has_text=WITH_GPU)
    expect(row).to_contain_text("Downloading")
    expect(row).to_contain_text(re.compile(r"[\d.]+ KiB/s"))
    expect(row).to_contain_text(re.compile(r"\d+ (s|min) left"))
    expect(row).to_contain_text(re.compile(r"now|\d+ s ago"))
    assert person.clicks == 1


def test_what_fills_this_gpu_used_and_reserved_and_by_whom(person: Person) -> None:
    card = person.open_node(WITH_GPU).get_by_role("list", name="GPUs").get_by_role("listitem")
    expect(card).to_contain_text(CARD_NAME)
    expect(card).to_contain_text(re.compile(r"4\.0 GiB of 24\.0 GiB used · \d+ MiB reserved"))
    expect(card).to_contain_text(re.compile(rf"used by {MODEL}#0 \(\d+ MiB reserved\)"))
    assert person.clicks == 1


def test_what_happened_on_this_node_last_night(person: Person) -> None:
    panel = person.open_node(WITH_GPU)
    person.click(panel.get_by_role("link", name="All events"))
    expect(person.page.get_by_role("heading", name=WITH_GPU, level=1)).to_be_visible()
    events = person.page.get_by_role("main").get_by_role("listitem")
    for what in ("node.registered", f"operation.started.*install.*{SLOW}", f"model.loaded.*{MODEL}"):
        expect(events.filter(has_text=re.compile(what))).to_contain_text(re.compile(r"\d\d:\d\d:\d\d"))
    assert person.clicks == 2


def test_can_i_take_this_machine_away_now(person: Person) -> None:
    panel = person.open_node(WITH_GPU)
    person.click(panel.get_by_role("button", name="Drain"))
    plan = person.page.get_by_role("dialog", name=f"Drain {WITH_GPU}")
    expect(plan.get_by_role("listitem").filter(has_text=MODEL)).to_contain_text(f"from {WITH_GPU} to w2")
    expect(plan).to_contain_text("1 request under way at what would end.")
    assert person.clicks == 2


def test_what_still_works_while_control_is_away(visit: Visits, fleet: TroubledFleet) -> None:
    watch = visit(fleet.url, key=fleet.key)
    watch.allow("status of 50[234]|ERR_")
    page = watch.page
    live, away = page.get_by_role("status").filter(has_text="Live"), page.get_by_text("models keep serving.")
    expect(live).to_be_visible()

    with fleet.control_away():
        expect(away).to_contain_text("Control is away since")
        expect(page.get_by_role("button", name=re.compile(rf"^{WITH_GPU}\s"))).to_be_visible()
        fleet.loop.run(fleet.begin_an_answer())

    expect(live).to_be_visible()
    expect(away).to_have_count(0)


def test_why_is_this_model_not_loading(person: Person) -> None:
    item = attention(person.page, HUGE)
    expect(item).to_contain_text("memory")
    person.click(item.get_by_role("link", name="See why"))
    expect(person.page.get_by_text(re.compile(r"× not enough RAM \(needs 1\.1 TiB, best free"))).to_be_visible()
    assert person.clicks == 1
