"""The page while things happen: one stream for all tabs, nothing asked while idle, a session that ends during an act,
control that is away, and keys instead of a mouse.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.kit.browser import PageWatch
from tests.kit.processes import words_of
from tests.kit.up import RunningUp, running_up

from .conftest import Visits

IDLE_MILLISECONDS = 5_000
"""That nothing is asked takes a while to see; there is no event to wait for."""

MOST_REQUESTS = 15
MOST_BYTES = 220_000
"""Of scripts and styles, compressed."""


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[RunningUp]:
    with running_up(module_folder, "--workers", "2") as running:
        running.until_ready()
        running.until_healthy("worker-1")
        running.until_healthy("worker-2")
        yield running


def node_id(up: RunningUp, name: str) -> str:
    nodes = up.api("GET", "/api/v1/nodes").json()["items"]
    return next(str(node["id"]) for node in nodes if node["name"] == name)


def is_live(page: Page) -> None:
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()


def label(up: RunningUp, name: str, value: str) -> None:
    answer = up.api("PATCH", f"/api/v1/nodes/{node_id(up, name)}/labels", {"rack": value})
    assert answer.status == 200, answer.body


def shows_label(page: Page, value: str) -> None:
    expect(page.get_by_role("table", name="Labels").get_by_text(value, exact=True)).to_be_visible()


def another_tab(context: BrowserContext, path: str) -> PageWatch:
    watch = PageWatch(context.new_page())
    watch.page.goto(path)
    return watch


def streams(watch: PageWatch) -> int:
    return sum("/api/v1/live?" in request for request in watch.requests)


def test_tabs_of_one_browser_share_a_stream_and_the_next_one_takes_over(visit: Visits, up: RunningUp) -> None:
    path = f"/ui/nodes/{node_id(up, 'worker-1')}?tab=settings"
    first = visit(up.url, key=up.admin_key, path=path)
    is_live(first.page)
    second = another_tab(first.page.context, path)
    is_live(second.page)
    label(up, "worker-1", "shared")
    shows_label(first.page, "shared")
    shows_label(second.page, "shared")
    assert streams(second) == 0

    first.page.close()
    label(up, "worker-1", "taken-over")

    shows_label(second.page, "taken-over")
    assert streams(second) == 1


def test_the_first_page_takes_few_requests_and_little_to_fetch(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url, key=up.admin_key, path="/ui/fleet")
    is_live(watch.page)
    expect(watch.page.get_by_role("button", name="worker-2")).to_be_visible()
    sizes: list[int] = watch.page.evaluate(
        """() => performance.getEntriesByType('resource')
          .filter(entry => /[.](js|css)$/.test(entry.name)).map(entry => entry.encodedBodySize)"""
    )

    assert len(watch.requests) <= MOST_REQUESTS, watch.requests
    assert min(sizes) > 0
    assert sum(sizes) <= MOST_BYTES


def test_an_open_page_asks_for_nothing_while_nobody_touches_it(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url, key=up.admin_key, path="/ui/fleet")
    is_live(watch.page)
    expect(watch.page.get_by_role("button", name="worker-2")).to_be_visible()
    watch.page.wait_for_load_state("load")
    watch.page.wait_for_timeout(1_000)
    before = list(watch.requests)

    watch.page.wait_for_timeout(IDLE_MILLISECONDS)

    assert watch.requests[len(before) :] == []


def test_a_session_that_ends_in_the_middle_of_an_act_loses_nothing(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url, key=up.admin_key, path=f"/ui/nodes/{node_id(up, 'worker-2')}")
    watch.allow("status of 401")
    page = watch.page
    page.get_by_role("button", name="Drain", exact=True).click()
    drain = page.get_by_role("button", name="Drain worker-2")
    expect(drain).to_be_visible()
    page.context.clear_cookies()

    drain.click()
    again = page.get_by_role("dialog", name="Your session has ended")
    again.get_by_label("Key").fill(up.admin_key)
    again.get_by_role("button", name="Sign in and go on").click()

    expect(page.get_by_text("worker-2 is being drained")).to_be_visible()
    page.get_by_role("button", name="Close").last.click()
    expect(page.get_by_text("Draining").first).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("Healthy").first).to_be_visible()


def test_a_revoked_session_asks_again_and_the_page_stays(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url, key=up.new_key("short-lived", "operator"), path="/ui/activity")
    watch.allow("status of 401")
    page = watch.page
    is_live(page)
    sessions = up.api("GET", "/api/v1/sessions").json()
    for session in sessions if isinstance(sessions, list) else sessions["items"]:
        if session["key_name"] == "short-lived":
            assert up.api("DELETE", f"/api/v1/sessions/{session['id']}").status == 204

    again = page.get_by_role("dialog", name="Your session has ended")
    expect(again).to_be_visible()
    again.get_by_label("Key").fill(up.admin_key)
    again.get_by_role("button", name="Sign in and go on").click()

    is_live(page)
    assert page.url == f"{up.url}/ui/activity"


def kill_control(up: RunningUp) -> None:
    """The gateway goes on, and `corral up` starts another control."""
    children = psutil.Process(up.process.pid).children(recursive=True)
    control = next(child for child in children if "control" in words_of(child))
    os.kill(control.pid, signal.SIGKILL)


def test_a_frontend_that_dies_while_somebody_watches_is_followed_again(visit: Visits, up: RunningUp) -> None:
    path = f"/ui/nodes/{node_id(up, 'worker-1')}?tab=settings"
    watch = visit(up.url, key=up.admin_key, path=path)
    watch.allow("status of 50[234]|ERR_")
    is_live(watch.page)

    kill_control(up)
    up.until_healthy("worker-1")
    label(up, "worker-1", "after-the-crash")

    shows_label(watch.page, "after-the-crash")
    is_live(watch.page)


def test_control_that_is_away_is_a_state_and_models_keep_serving(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url, key=up.admin_key, path="/ui/fleet")
    watch.allow("status of 50[234]|ERR_")
    page = watch.page
    is_live(page)
    page.route("**/api/v1/live?*", lambda route: route.abort())
    page.route("**/readyz", lambda route: route.fulfill(json={"control": {"state": "away", "for_seconds": 12.5}}))

    kill_control(up)

    expect(page.get_by_text("models keep serving.")).to_contain_text("Control is away since")
    expect(page.get_by_role("button", name="worker-1")).to_be_visible()
    up.until_healthy("worker-1", "worker-2")
    page.unroute_all()
    is_live(page)
    expect(page.get_by_text("models keep serving.")).to_have_count(0)


def test_everything_is_reached_by_keyboard(visit: Visits, up: RunningUp) -> None:
    page = visit(up.url, key=up.admin_key, path="/ui/fleet").page
    is_live(page)

    page.keyboard.press("g")
    page.keyboard.press("a")
    expect(page.get_by_role("heading", name="Activity", level=1)).to_be_visible()

    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
    page.keyboard.type("worker-2")
    # The node itself comes first, then what can be done with it.
    expect(page.get_by_role("option")).to_have_count(3)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="worker-2", level=1)).to_be_visible()

    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_have_count(0)
