"""Who gets in, who does not, and what each sees."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.kit.up import RunningUp, running_up

from .conftest import Visits

REFUSED = r"status of 401"
SIGN_IN = "Sign in to Corral"
ACTS = re.compile(r"^(Add|Install|Upgrade|Delete|Remove|Drain|Make|New|Create|Invite|Pull|Load|Unload|Retry)\b")
"""What buttons that change something begin with."""
PASSWORD = "correct horse battery staple"


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[RunningUp]:
    with running_up(module_folder, "--workers", "1") as running:
        running.until_ready()
        running.until_healthy("worker-1")
        yield running


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in", exact=True).click()


def pages_of(page: Page) -> list[str]:
    """What the rail offers, below the mark that leads to the first page."""
    rail = page.get_by_role("navigation", name="Pages")
    expect(rail.get_by_role("link", name="Models")).to_be_visible()
    return [link.inner_text().strip() for link in rail.get_by_role("link").all()][1:]


def heading(page: Page, name: str) -> None:
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()


def test_a_browser_is_led_to_the_page_where_a_key_opens_the_fleet(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url, path="/")
    watch.allow(REFUSED)  # the page asks who is signed in, and nobody is
    page = watch.page
    heading(page, SIGN_IN)
    assert page.url.startswith(f"{up.url}/ui/")

    sign_in(page, up.admin_key)

    heading(page, "Fleet")
    assert page.url == f"{up.url}/ui/fleet"
    expect(page.get_by_text("1 healthy")).to_be_visible()
    expect(page.get_by_text("worker-1").first).to_be_visible()
    assert pages_of(page) == ["Fleet", "Models", "Backends", "Activity", "Chat", "Rules", "Access"]
    page.reload()
    heading(page, "Fleet")


def test_whoever_signs_out_is_out_and_so_is_the_cookie(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url, key=up.admin_key)
    watch.allow(REFUSED)
    page = watch.page
    heading(page, "Fleet")
    [cookie] = page.context.cookies()
    assert re.fullmatch("corral_session_[a-z2-7]{8}", cookie["name"])
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")

    page.get_by_role("button", name="theme and sign out").click()
    page.get_by_role("menuitem", name="Sign out").click()

    heading(page, SIGN_IN)
    page.context.add_cookies([cookie])
    page.goto("/ui/fleet")
    heading(page, SIGN_IN)


def test_a_wrong_key_is_refused_with_a_sentence(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url)
    watch.allow(REFUSED)
    page = watch.page
    sign_in(page, "not-a-key")

    expect(page.get_by_role("alert")).to_contain_text("This key is not accepted.")
    assert page.context.cookies() == []
    sign_in(page, up.admin_key)
    heading(page, "Fleet")


def test_a_name_and_a_password_open_it_after_wrong_ones_were_limited(visit: Visits, up: RunningUp) -> None:
    answer = up.api("POST", "/api/v1/users", {"name": "ada", "password": PASSWORD, "role": "operator"})
    assert answer.status == 201, answer.body
    watch = visit(up.url)
    watch.allow(REFUSED)
    page = watch.page
    page.get_by_role("button", name="Use a name and a password").click()
    for password, outcome in (("wrong", "This name and password are not accepted."), (PASSWORD, "")):
        page.get_by_label("Name").fill("ada")
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in", exact=True).click()
        if outcome:
            expect(page.get_by_role("alert")).to_contain_text(outcome)
    heading(page, "Fleet")
    expect(page.get_by_role("button", name="ada: theme and sign out")).to_be_visible()


def test_guesses_of_a_password_are_limited_and_the_page_says_for_how_long(visit: Visits, up: RunningUp) -> None:
    answer = up.api("POST", "/api/v1/users", {"name": "grace", "password": PASSWORD, "role": "viewer"})
    assert answer.status == 201, answer.body
    for guess in range(20):
        wrong = {"name": "grace", "password": f"guess {guess}"}
        if up.call("POST", "/api/v1/session", wrong, key="").status == 429:
            break
    watch = visit(up.url)
    watch.allow(r"status of (401|429)")
    page = watch.page
    page.get_by_role("button", name="Use a name and a password").click()
    page.get_by_label("Name").fill("grace")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text(re.compile("[Tt]ry again|[Ww]ait"))


def test_a_viewer_sees_the_fleet_and_is_offered_no_act(visit: Visits, up: RunningUp) -> None:
    page = visit(up.url, key=up.new_key("a viewer", "viewer")).page
    heading(page, "Fleet")
    expect(page.get_by_text("1 healthy")).to_be_visible()
    assert "Chat" not in pages_of(page)
    for name in pages_of(page):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
        heading(page, name)
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        expect(page.get_by_role("button", name=ACTS)).to_have_count(0)
        expect(page.get_by_role("main").get_by_role("link", name=ACTS)).to_have_count(0)
    page.goto("/ui/chat")
    expect(page.get_by_text("Your key does not open this page.")).to_be_visible()


def test_a_viewer_who_calls_routes_by_hand_is_refused(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url, key=up.new_key("a curious viewer", "viewer"))
    watch.allow(r"status of 403")
    page = watch.page
    heading(page, "Fleet")
    node = up.nodes()["worker-1"]["id"]
    call = """async ([path, csrf]) => {
      const headers = { 'Content-Type': 'application/json', ...(csrf ? { 'X-Corral-CSRF': csrf } : {}) };
      const answer = await fetch(path, { method: 'POST', headers, body: '{}' });
      return [answer.status, (await answer.json()).error.code];
    }"""
    csrf = page.evaluate("async () => (await (await fetch('/api/v1/session')).json()).csrf")
    drain = f"/api/v1/nodes/{node}/drain"
    assert page.evaluate(call, [drain, ""]) == [403, "csrf"]
    assert page.evaluate(call, [drain, "guessed"]) == [403, "csrf"]
    status, code = page.evaluate(call, [drain, csrf])
    assert (status, code != "csrf") == (403, True)
    assert up.nodes()["worker-1"]["status"] == "healthy"


def test_a_key_for_inference_opens_models_and_chat_only(visit: Visits, up: RunningUp) -> None:
    page = visit(up.url, key=up.new_key("an app", "inference")).page
    heading(page, "Models")
    assert pages_of(page) == ["Models", "Chat"]
    page.goto("/ui/fleet")
    expect(page.get_by_text("Your key does not open this page. It needs the permission “fleet.read”")).to_be_visible()
