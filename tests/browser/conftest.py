"""People with browsers: real fleets, a Chromium per module, a context of its own for each visit.

Every visit is watched: an error on the console, a violation of the content security policy or a request to another host
fails the test, whatever it is about. When a test fails, its pages are kept as pictures and as HTML.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, expect

from tests.kit.browser import PageWatch, open_browser
from tests.kit.waiting import wait_until

PATIENCE_MILLISECONDS = 30_000
"""Far more than it takes: how quickly something is seen depends on what else the machine does."""
DESKTOP = (1280, 800)
PHONE = (390, 844)
Theme = Literal["light", "dark"]

expect.set_options(timeout=PATIENCE_MILLISECONDS)
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember for the fixtures whether the test failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


class Visits:
    """The visits of one test."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._open: list[tuple[BrowserContext, PageWatch]] = []

    def __call__(
        self,
        url: str,
        *,
        key: str = "",
        path: str = "/ui/",
        size: tuple[int, int] = DESKTOP,
        theme: Theme = "light",
    ) -> PageWatch:
        """Open a page in a context of its own, signed in with a key where one is given."""
        width, height = size
        context = self._browser.new_context(
            base_url=url, viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
        )
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        if key:
            answer = context.request.post("/api/v1/session", data={"key": key})
            assert answer.status == 201, answer.text()
            # A gateway that has just lost its control hears of a session a moment later.
            wait_until(lambda: context.request.get("/api/v1/session").ok, "the gateway to know the session", seconds=30)
        watch = PageWatch(context.new_page())
        self._open.append((context, watch))
        watch.page.goto(path)
        return watch

    def keep(self, folder: Path) -> str:
        """Write down what each visitor sees; return where, and what their pages asked for last."""
        lines = []
        for number, (_, watch) in enumerate(self._open, 1):
            with suppress(Error):  # a page that crashed has nothing to show
                watch.page.screenshot(path=folder / f"page-{number}.png", timeout=5000)
                (folder / f"page-{number}.html").write_text(watch.page.content())
                lines.append(f"page {number} was {watch.page.url}: see {folder}/page-{number}.png and .html")
            lines += watch.requests[-20:]
        return "\n".join(lines)

    def close(self) -> list[str]:
        """End all visits; return what the pages did wrong."""
        faults = [fault for _, watch in self._open for fault in watch.faults()]
        for context, _ in self._open:
            context.close()
        return faults


@pytest.fixture
def visit(chromium: Browser, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Visits]:
    visits = Visits(chromium)
    yield visits
    if request.node.stash.get(FAILED, False):
        request.node.add_report_section("teardown", "pages", visits.keep(tmp_path))
    if faults := visits.close():
        pytest.fail("the page did what no page should:\n" + "\n".join(f"  - {fault}" for fault in faults))
