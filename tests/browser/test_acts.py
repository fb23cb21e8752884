"""Acts on real workers, as people do them: choose, plan, confirm, watch every node, see the proof. And what comes in
between: a worker dies, a layer is lost, a session ends, somebody else was quicker, there is no mouse.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.kit.workshop import Workshop, open_workshop

from .conftest import PHONE, Visits

WORKERS = [f"w{number}" for number in range(1, 5)]
FETCHING = re.compile(r"(\d+) % · (\d+) KiB of (\d+) KiB")
SLOWLY_MILLISECONDS = 120_000
"""For what takes several heartbeats, or the start of a worker."""
MOST_KEYS = 80
"""Far more than there is to step over."""


@pytest.fixture(scope="module")
def workshop(module_folder: Path) -> Iterator[Workshop]:
    with open_workshop(module_folder, WORKERS, ("alpha", "beta", "gamma", "delta")) as workshop:
        yield workshop


def begin(page: Page, backend: str, verb: str = "Install", *, nodes: int = len(WORKERS)) -> Locator:
    """Open the dialog of an act on all nodes, from the gallery."""
    page.get_by_role("button", name=backend, exact=True).click()
    page.get_by_role("complementary").get_by_role("button", name=f"{verb}…").click()
    dialog = page.get_by_role("dialog", name=f"{verb} {backend}")
    expect(dialog).to_contain_text(f"{nodes} nodes")
    dialog.get_by_role("button", name="Show the plan").click()
    return dialog


def row(place: Locator, text: str | re.Pattern[str]) -> Locator:
    """Rows of nodes with a word or a name."""
    return place.get_by_role("table", name="Nodes of this operation").get_by_role("row").filter(has_text=text)


def test_an_install_shows_every_node_and_the_one_that_died_goes_on_when_it_is_back(
    visit: Visits, workshop: Workshop
) -> None:
    with workshop.guest("w5") as guest:
        page = visit(workshop.url, key=workshop.key, path="/ui/backends").page
        dialog = begin(page, "gamma", nodes=5)
        expect(dialog.get_by_role("region", name="Fits: 5 nodes")).to_be_visible()
        with workshop.half_downloads("gamma", times=5):
            dialog.get_by_role("button", name="Install gamma on 5 nodes").click()
            expect(row(dialog, FETCHING)).to_have_count(5)
            is_of_one_scale(row(dialog, "w5"))
            guest.kill()
        expect(row(dialog, "Done")).to_have_count(4)
        expect(row(dialog, "digest")).to_have_count(4)
        expect(row(dialog, "w5")).to_contain_text("Queued", timeout=SLOWLY_MILLISECONDS)
        expect(row(dialog, "w5")).to_contain_text("waits for the node")

        guest.start()

        expect(row(dialog, "Done")).to_have_count(5, timeout=SLOWLY_MILLISECONDS)
        expect(row(dialog, "w5")).to_contain_text("digest")


def is_of_one_scale(shown: Locator) -> None:
    """The percentage is that of the bytes beside it."""
    match = FETCHING.search(shown.inner_text())
    assert match is not None, shown.inner_text()
    percentage, current, total = (int(number) for number in match.groups())
    assert abs(percentage - 100 * current / total) <= 1


def test_one_node_that_failed_is_tried_again_alone(visit: Visits, workshop: Workshop) -> None:
    workshop.operate("install", "beta", [name for name in WORKERS if name != "w3"])
    watch = visit(workshop.url, key=workshop.key, path="/ui/backends")
    with workshop.missing_layer("beta"):
        dialog = begin(watch.page, "beta")
        dialog.get_by_role("button", name="Install beta on").click()
        expect(row(dialog, "w3")).to_contain_text("Failed")
        expect(row(dialog, "w3")).to_contain_text("404")
        expect(row(dialog, "Done")).to_have_count(3)
        dialog.get_by_role("button", name="Close").last.click()
        watch.page.get_by_role("link", name="Activity", exact=True).click()
        watch.page.get_by_role("link", name=re.compile("beta")).first.click()
        main = watch.page.get_by_role("main")
        expect(row(main, "w3")).to_contain_text("Failed")

    row(main, "w3").get_by_role("button", name="Retry on w3").click()

    expect(row(main, "Done")).to_have_count(4)
    expect(watch.page.get_by_text("Trying again on w3.")).to_be_visible()


def test_a_delete_tells_first_what_it_would_touch(visit: Visits, workshop: Workshop) -> None:
    workshop.operate("install", "gamma")
    page = visit(workshop.url, key=workshop.key, path="/ui/backends").page
    dialog = begin(page, "gamma", "Delete")
    expect(dialog.get_by_role("region", name="Fits: 4 nodes")).to_contain_text("w4")
    dialog.get_by_text("As text, and as a command").click()
    expect(dialog.get_by_text("corral backends delete gamma")).to_be_visible()

    dialog.get_by_role("button", name="Delete gamma on 4 nodes").click()

    expect(row(dialog, "Done")).to_have_count(4)
    assert [name for name in WORKERS if workshop.folder(name, "gamma").exists()] == []


def test_two_people_on_one_plan_and_the_second_sees_the_new_one(visit: Visits, workshop: Workshop) -> None:
    watch = visit(workshop.url, key=workshop.key, path="/ui/backends")
    watch.allow("status of 409")
    dialog = begin(watch.page, "delta")
    expect(dialog.get_by_role("region", name="Fits: 4 nodes")).to_be_visible()

    workshop.operate("install", "delta")
    dialog.get_by_role("button", name="Install delta on 4 nodes").click()

    expect(dialog).to_contain_text("The fleet has changed since you looked. This is the plan of now; nothing was done.")
    expect(dialog.get_by_role("region", name="Already: 4 nodes")).to_be_visible()
    expect(dialog).to_contain_text("There is nothing to do: every node is as it should be.")


def test_drift_appears_and_is_mended(visit: Visits, workshop: Workshop) -> None:
    workshop.operate("install", "delta")
    folder = workshop.folder("w2", "delta")
    page = visit(workshop.url, key=workshop.key, path="/ui/backends/drift").page
    expect(page.get_by_text("Everything is as it was asked for.")).to_be_visible()

    shutil.rmtree(folder)

    drift = page.get_by_role("table", name="What is not as asked").get_by_role("row").filter(has_text="w2")
    expect(drift).to_contain_text("delta", timeout=SLOWLY_MILLISECONDS)
    expect(drift).to_contain_text("not installed")
    drift.get_by_role("button", name="delta").click()
    dialog = page.get_by_role("dialog", name="Install delta")
    dialog.get_by_role("button", name="Install delta on 1 node").click()
    expect(row(dialog, "Done")).to_have_count(1)
    dialog.get_by_role("button", name="Close").last.click()
    expect(page.get_by_text("Everything is as it was asked for.")).to_be_visible()
    assert folder.is_dir()


def test_the_search_leads_to_the_dialog_of_an_act(visit: Visits, workshop: Workshop) -> None:
    page = visit(workshop.url, key=workshop.key, path="/ui/fleet").page
    expect(page.get_by_role("main").get_by_text("w2").first).to_be_visible()
    page.keyboard.press("/")
    page.get_by_role("searchbox", name="Search").fill("drain w2")
    page.get_by_role("option", name="Drain w2").click()

    dialog = page.get_by_role("dialog", name="Drain w2")
    expect(dialog.get_by_role("button", name="Drain w2")).to_be_visible()
    dialog.get_by_role("button", name="Close").first.click()

    expect(dialog).to_have_count(0)
    expect(page).to_have_url(re.compile(r"/ui/nodes/[^?]+$"))


def press_until(page: Page, key: str, name: str) -> None:
    """Press a key until the focus is on the button of this name, as somebody does who hears where it is."""
    for _ in range(MOST_KEYS):
        page.keyboard.press(key)
        if page.evaluate("() => (document.activeElement.ariaLabel ?? document.activeElement.innerText).trim()") == name:
            return
    pytest.fail(f"the focus never came to {name!r}")


def test_the_whole_install_is_done_by_keyboard_alone(visit: Visits, workshop: Workshop) -> None:
    page = visit(workshop.url, key=workshop.key).page
    expect(page.get_by_role("heading", name="Fleet", level=1)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("b")
    opener = page.get_by_role("button", name="Install alpha")
    expect(opener).to_be_visible()

    press_until(page, "Tab", "Install alpha")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Install alpha")
    expect(dialog).to_contain_text("4 nodes")
    press_until(page, "Tab", "Show the plan")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("region", name="Fits: 4 nodes")).to_be_visible()
    expect(dialog.get_by_role("group", name="Plan")).to_be_focused()
    press_until(page, "Tab", "Install alpha on 4 nodes")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("group", name="Progress")).to_be_focused()

    expect(row(dialog, "Done")).to_have_count(4)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()


def test_a_session_that_ends_as_an_act_is_confirmed_is_renewed_in_place_and_the_act_happens_once(
    visit: Visits, workshop: Workshop
) -> None:
    workshop.operate("install", "alpha")
    watch = visit(workshop.url, key=workshop.key, path="/ui/backends")
    watch.allow("status of 401")
    page = watch.page
    dialog = begin(page, "alpha", "Delete")
    expect(dialog.get_by_role("region", name="Fits: 4 nodes")).to_be_visible()
    asked: list[str] = []

    def end_session_before(route: Route) -> None:
        """The first time: what was confirmed arrives after the end of the session."""
        if route.request.method == "POST":
            asked.append(route.request.headers["idempotency-key"])
            if len(asked) == 1:
                workshop.end_sessions()
        route.continue_()

    page.route("**/api/v1/operations", end_session_before)
    before = len(workshop.operations("delete", "alpha"))
    dialog.get_by_role("button", name="Delete alpha on 4 nodes").click()
    again = page.get_by_role("dialog", name="Your session has ended")
    again.get_by_label("Key", exact=True).fill(workshop.key)
    assert len(workshop.operations("delete", "alpha")) == before
    again.get_by_role("button", name="Sign in and go on").click()

    expect(row(dialog, "Done")).to_have_count(4)
    assert len(workshop.operations("delete", "alpha")) == before + 1
    assert set(asked) == {asked[0]}
    assert [name for name in WORKERS if workshop.folder(name, "alpha").exists()] == []


def test_what_is_installed_fits_a_phone_however_many_backends_there_are(visit: Visits, workshop: Workshop) -> None:
    """The table is scrolled to the side inside of its frame; the words for screen readers in it must be, too."""
    for backend in ("alpha", "beta", "gamma", "delta"):
        workshop.operate("install", backend)
        workshop.operate("delete", backend, ["w2"])
    page = visit(workshop.url, key=workshop.key, path="/ui/backends/installed", size=PHONE).page
    expect(page.get_by_text("not there").first).to_be_attached()
    expect(page.get_by_role("row").filter(has_text="w2")).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") == PHONE[0]
