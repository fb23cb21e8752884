"""A machine joins with the very command that the page copies, and a person approves it there."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.kit.ports import lasting_range
from tests.kit.up import STOP_SECONDS, RunningUp, environment, running_up

from .conftest import Visits

MACHINE = "new-machine"
_PORTS = 10


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[RunningUp]:
    with running_up(module_folder, "--workers", "0") as running:
        running.until_ready()
        yield running


@contextmanager
def pasted(folder: Path, command: str) -> Iterator[None]:
    """A shell of the new machine, on which `corral` is this checkout's; whatever it started is gone at the end."""
    folder.mkdir()
    ports = lasting_range(_PORTS)
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CORRAL_NODE_NAME": MACHINE,
        "CORRAL_DATA": str(folder / "worker"),
        "CORRAL_ADDRESS": f"127.0.0.1:{ports[1]}",
        "CORRAL_HTTP_ADDRESS": f"127.0.0.1:{ports[0]}",
        "CORRAL_MAX_PORT": str(ports[-1]),
    }
    with (folder / "worker.log").open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-c", command],
            env=environment(folder, **own),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(timeout=STOP_SECONDS)


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in", exact=True).click()


def test_a_machine_joins_with_a_click_a_paste_and_an_approval(visit: Visits, up: RunningUp, tmp_path: Path) -> None:
    watch = visit(up.url, path="/ui/join")
    watch.allow("status of 401")
    page = watch.page
    sign_in(page, up.admin_key)
    steps = page.get_by_role("listitem")

    page.get_by_role("button", name="Make and copy the command").click()
    expect(page.get_by_text("It is copied: paste it into a shell of the machine.")).to_be_visible()
    command = str(page.evaluate("() => navigator.clipboard.readText()"))
    assert command == page.get_by_role("region", name="Join command", exact=True).inner_text()
    expect(steps.filter(has_text="Machine seen")).to_contain_text("Waiting for the machine.")

    with pasted(tmp_path / "machine", command):
        expect(steps.filter(has_text="Machine seen")).to_contain_text(f"{MACHINE} has registered.")
        expect(steps.filter(has_text="Approved")).to_contain_text("It waits for you.")
        expect(page.get_by_role("definition").filter(has_text=up.nodes()[MACHINE]["fingerprint"])).to_be_visible()

        page.get_by_role("button", name=f"Approve {MACHINE}").click()

        expect(steps.filter(has_text="Healthy")).to_contain_text("Its heartbeats arrive, and it takes work.")
        page.get_by_role("link", name="Fleet", exact=True).click()
        expect(page.get_by_role("button", name=f"{MACHINE} Healthy")).to_be_visible()


def test_the_code_is_no_word_of_a_command_and_the_page_says_how_to_get_corral(visit: Visits, up: RunningUp) -> None:
    page = visit(up.url, key=up.admin_key, path="/ui/join").page
    page.get_by_role("button", name="Make and copy the command").click()
    command = page.get_by_role("region", name="Join command", exact=True).inner_text()
    start, _, program = command.partition("|")
    assert start.split()[1] not in program
    assert "--code-descriptor 0" in program

    page.get_by_text("Put Corral on the machine first").click()

    setup = page.get_by_role("region", name="Command that sets up and joins")
    expect(setup).to_contain_text("python3 tools/bootstrap.py setup")
    expect(setup).to_contain_text('export PATH="$PWD/.venv/bin:$PATH"')
    expect(setup).to_contain_text(program.strip())
