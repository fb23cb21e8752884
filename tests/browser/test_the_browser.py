"""The browser that other tests use: it draws text, and its watch sees what pages must not do."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.kit.browser import PageWatch, accessibility_faults
from tests.kit.waiting import wait_until

HOST = "http://page.test"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src *"
GOOD = '<!doctype html><html lang="en"><title>A page</title><main><h1>Corral</h1>{}</main></html>'


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context()
    yield context.new_page()
    context.close()


def shown(page: Page, html: str, script: str = "") -> PageWatch:
    """A page with a strict policy and a script of its own; nobody but the browser is asked for it."""

    def answer(route: Route) -> None:
        if route.request.url.endswith("script.js"):
            route.fulfill(body=script, content_type="text/javascript")
        elif not route.request.url.startswith(HOST):
            route.fulfill(body="{}", headers={"Access-Control-Allow-Origin": "*"})
        else:
            body = html.replace("</main>", '</main><script src="/script.js"></script>')
            route.fulfill(body=body, content_type="text/html", headers={"Content-Security-Policy": POLICY})

    watch = PageWatch(page)
    page.route("**/*", answer)
    page.goto(HOST)
    return watch


def test_a_page_that_does_nothing_wrong_has_no_faults(page: Page) -> None:
    assert shown(page, GOOD.format("<p>Fine.</p>")).faults() == []


def test_text_and_the_glyphs_of_states_are_drawn(page: Page) -> None:
    shown(page, GOOD.format("<p></p>"))
    pictures = set()
    for text in "Cg●◐○◔✕⊘–":
        page.evaluate("text => document.querySelector('p').textContent = text", text)
        pictures.add(page.locator("p").screenshot())
    assert len(pictures) == 9


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("console.error('something broke')", "something broke"),
        ("console.warn('each child needs a key')", "each child needs a key"),
        ("throw new Error('nobody caught this')", "nobody caught this"),
        ("document.body.setAttribute('style', 'color: red')", "Content Security Policy"),
        (
            "document.body.append(Object.assign(document.createElement('style'), {textContent: 'a{}'}))",
            "Security Policy",
        ),
        ("eval('1')", "Content Security Policy"),
        ("fetch('http://elsewhere.test/')", "another host: http://elsewhere.test/"),
    ],
)
def test_what_a_page_must_not_do_is_a_fault(page: Page, script: str, fault: str) -> None:
    watch = shown(page, GOOD.format(""), script)

    def is_seen() -> bool:
        page.evaluate("0")  # hears what the browser has to say meanwhile
        return any(fault in text for text in watch.faults())

    wait_until(is_seen, fault)
    watch.allow(r".")
    assert watch.faults() == []


def test_axe_finds_what_people_cannot_use(page: Page) -> None:
    watch = shown(page, GOOD.format('<input type="text">'))
    [fault] = accessibility_faults(page)
    assert "label" in fault
    assert watch.faults() == []
