"""People who do not tell colours apart, use a keyboard, a phone or a screen reader: axe-core finds nothing serious on
any page, in either theme, at either width.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.kit.browser import accessibility_faults
from tests.kit.models import write_model
from tests.kit.up import RunningUp, running_up

from .conftest import DESKTOP, PHONE, Visits

CONTRAST = "color-contrast"


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[RunningUp]:
    """A fleet with something on every page."""
    models = module_folder / "models"
    write_model(models, "chat")
    with running_up(module_folder, "--workers", "2", CORRAL_MODELS_PATH=str(models)) as running:
        running.until_ready()
        running.until_healthy("worker-1", "worker-2")
        yield running


def faults(page: Page) -> list[str]:
    """By all rules in the light theme, by that of contrast in the dark one: nothing else differs between them."""
    expect(page.get_by_role("status", name="Loading")).to_have_count(0)
    found = []
    for width, height in (DESKTOP, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="light")
        found += [f"{width} px, light: {fault}" for fault in accessibility_faults(page)]
        if sideways := page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth"):
            found.append(f"{width} px: {sideways} px must be scrolled to the side")
        page.emulate_media(color_scheme="dark")
        found += [f"{width} px, dark: {fault}" for fault in accessibility_faults(page, CONTRAST)]
    return found


def test_nothing_serious_before_signing_in(visit: Visits, up: RunningUp) -> None:
    watch = visit(up.url)
    watch.allow(r"status of 401")
    expect(watch.page.get_by_role("heading", name="Sign in to Corral")).to_be_visible()
    assert faults(watch.page) == []


@pytest.mark.parametrize(
    ("path", "heading"),
    [
        ("/ui/fleet", "Fleet"),
        ("/ui/fleet?view=table", "Fleet"),
        ("/ui/models", "Models"),
        ("/ui/backends", "Backends"),
        ("/ui/activity", "Activity"),
        ("/ui/chat", "Chat"),
        ("/ui/rules", "Rules"),
        ("/ui/access", "Access"),
        ("/ui/join", "Add a machine"),
    ],
)
def test_nothing_serious_on(visit: Visits, up: RunningUp, path: str, heading: str) -> None:
    page = visit(up.url, key=up.admin_key, path=path).page
    expect(page.get_by_role("heading", name=heading, level=1)).to_be_visible()
    assert faults(page) == []
