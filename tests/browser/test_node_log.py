"""What an engine prints, in the page of its node: also a line that nobody would want to read."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.kit.backend_scripts import write_serving_backend
from tests.kit.backends import BACKENDS
from tests.kit.models import write_model
from tests.kit.up import RunningUp, running_up
from tests.kit.waiting import wait_until

from .conftest import PHONE, Visits

TALKS = "print('<b>a long line</b>' + 'x' * 1_000_000, flush=True)\nprint('a short line', flush=True)"
MOST_SHOWN = 40_000
"""Characters: enough for the beginning of the long line, far less than all of it."""


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[RunningUp]:
    """The engine of the model `talker` has printed a line of a megabyte, and a short one."""
    write_serving_backend(module_folder / "backends", "talker", body=TALKS)
    write_model(module_folder / "models", "talker", backend="talker", parameters={"model": "talker.bin"})
    settings = {
        "CORRAL_MODELS_PATH": str(module_folder / "models"),
        "CORRAL_SYSTEM_BACKENDS_PATH": str(module_folder / "backends"),
        "CORRAL_BACKEND_READ_PATHS": str(BACKENDS),
    }
    with running_up(module_folder, "--workers", "1", **settings) as running:
        running.until_ready()
        running.until_healthy("worker-1")
        answer = running.api("POST", "/api/v1/model-loads", {"name": "talker"})
        assert answer.status == 202, answer.body
        yield running


def log_path(up: RunningUp) -> str:
    """The page of the node's log, once there is one."""
    node = up.nodes()["worker-1"]["id"]
    listed = f"/api/v1/nodes/{node}/logs"
    wait_until(lambda: up.api("GET", listed).json() == ["talker"], "the log of the engine", seconds=120)
    return f"/ui/nodes/{node}?tab=logs"


def is_as_wide_as_its_window(page: Page) -> bool:
    return bool(page.evaluate("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def test_a_line_of_a_megabyte_is_cut_told_and_in_nobodys_way(visit: Visits, up: RunningUp) -> None:
    page = visit(up.url, key=up.admin_key, path=log_path(up)).page
    log = page.get_by_role("log")
    expect(log).to_contain_text("a short line")
    expect(log).to_contain_text("<b>a long line</b>xxxx")
    expect(log).to_contain_text(re.compile(r"the line has 9\d\d KiB"))

    assert len(log.inner_text()) < MOST_SHOWN
    assert page.get_by_role("main").locator("b").count() == 0
    assert is_as_wide_as_its_window(page)
    page.get_by_text("Wrap", exact=True).click()
    expect(page.get_by_role("checkbox", name="Wrap")).not_to_be_checked()
    assert is_as_wide_as_its_window(page)
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert is_as_wide_as_its_window(page)

    page.get_by_role("searchbox", name="Find in the log").fill("SHORT")
    expect(log).not_to_contain_text("a long line")
    expect(log).to_contain_text("a short line")
