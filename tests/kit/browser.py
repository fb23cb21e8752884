"""A real browser for tests of the page: Chromium as `make setup` left it in `.build`, and an eye on what pages must not
do whatever the test is about.
"""

import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypedDict
from urllib.parse import urlsplit

from playwright.async_api import Browser as AsyncBrowser
from playwright.async_api import async_playwright
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

ROOT: Final = Path(__file__).resolve().parents[2]
OPTIONS: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
"""No sandbox: it needs rights that tests in a container lack. The pages are our own."""
SERIOUS: Final = ("serious", "critical")
_INSIDE: Final = ("data", "blob", "about")
"""Schemes of addresses that nobody is asked for."""
_HEARD: Final = ("error", "warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledBrowser:
    """What `tools/environment/browser.py` wrote down about it."""

    program: str
    environment: Mapping[str, str]
    node: str
    """Runs Playwright: the one that comes with its package needs a library that small systems lack."""
    axe: str
    """The script with the rules of accessibility."""


def installed_browser() -> InstalledBrowser:
    """Fails where there is none: tests of the page are never skipped."""
    descriptions = sorted(ROOT.glob(".build/browser-*/browser.json"), key=lambda file: file.stat().st_mtime)
    if not descriptions:
        raise AssertionError("there is no browser in .build: run `make setup`, which says why it can have none")
    return InstalledBrowser(**json.loads(descriptions[-1].read_text()))


class Launch(TypedDict):
    """Arguments of Playwright's `launch`."""

    executable_path: str
    args: list[str]
    env: dict[str, str | float | bool]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium of its own. While it is open, this thread cannot run an event loop: Playwright does."""
    launch = _launch()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launch)
        try:
            yield browser
        finally:
            browser.close()


@asynccontextmanager
async def open_async_browser() -> AsyncIterator[AsyncBrowser]:
    """A headless Chromium of its own, for those who have an event loop."""
    launch = _launch()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**launch)
        try:
            yield browser
        finally:
            await browser.close()


def _launch() -> Launch:
    installed = installed_browser()
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = installed.node
    environment = {"PATH": os.environ.get("PATH", os.defpath), **installed.environment}
    return Launch(executable_path=installed.program, args=list(OPTIONS), env={**environment})


@dataclass
class PageWatch:
    """What a page does that is a fault in any test: errors and warnings on its console, violations of its content
    security policy among them, exceptions that nobody caught, and requests to other hosts."""

    page: Page
    allowed: list[str] = field(default_factory=list)
    """Patterns of messages that the test is about, such as the refusal of a wrong key."""
    requests: list[str] = field(default_factory=list)
    """Method and address of everything that the page asked for, in order."""
    _messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self._messages.append(f"uncaught: {error}"))
        self.page.on("request", self._see)

    def allow(self, pattern: str) -> None:
        self.allowed.append(pattern)

    def faults(self) -> list[str]:
        return [text for text in self._messages if not any(re.search(pattern, text) for pattern in self.allowed)]

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in _HEARD:
            self._messages.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _see(self, request: Request) -> None:
        asked, own = urlsplit(request.url), urlsplit(self.page.url)
        self.requests.append(f"{request.method} {request.url}")
        if asked.scheme in _INSIDE or own.scheme in _INSIDE or request.is_navigation_request():
            return
        if asked.netloc != own.netloc:
            self._messages.append(f"a request to another host: {request.url}")


def accessibility_faults(page: Page, *rules: str) -> list[str]:
    """What axe-core calls serious or critical, each with the element that it is about; by all of its rules, or only by
    these."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(Path(installed_browser().axe).read_text())
    options: dict[str, object] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = list(rules)
    result: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{fault['impact']}: {fault['id']}: {fault['help']}: {node['html'][:200]}: {node['failureSummary']}"
        for fault in result["violations"]
        if fault["impact"] in SERIOUS
        for node in fault["nodes"]
    ]


def remember(page: Page, name: str, pattern: str, *, within: str = "body") -> None:
    """From now on, keep what a part of the page shows that matches a pattern of JavaScript, each time that it is
    another."""
    page.evaluate(
        """([name, pattern, within]) => {
          const kept = ((window.remembered ??= {})[name] = []);
          const look = () => {
            const shown = document.querySelector(within)?.innerText ?? '';
            for (const [text] of shown.matchAll(new RegExp(pattern, 'g')))
              if (kept.at(-1) !== text) kept.push(text);
          };
          new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
          look();
        }""",
        [name, pattern, within],
    )


def remembered(page: Page, name: str) -> list[str]:
    """What was kept since `remember`, in order; a page that was loaded again has forgotten it."""
    kept: list[str] = page.evaluate("name => window.remembered[name]", name)
    return kept
