"""Models in the browser: pulled with progress, loaded when somebody asks, and talking word by word."""

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.kit.browser import remember, remembered
from tests.kit.gguf import LLAMA, gguf
from tests.kit.hub_server import HuggingFaceServer
from tests.kit.models import QUESTION, write_model
from tests.kit.up import RunningUp, running_up

from .conftest import Visits

PULLED = gguf(**LLAMA, tokenizer__chat_template="{{ messages }}") + bytes(3_000_000)
HELD_AFTER = 1_000_000
"""Bytes of the pull after which the hub waits."""
HUGE = "huge <b>& bold"
"""A model with so long a context that no machine has the memory."""


@dataclass(frozen=True)
class ModelFleet:
    up: RunningUp
    hub: HuggingFaceServer


@pytest.fixture(scope="module")
def fleet(module_folder: Path) -> Iterator[ModelFleet]:
    """Two workers, a small chat model that nobody has asked yet, one that fits no machine, and a hub."""
    models = module_folder / "models"
    write_model(models, "chat", parameters={"model": "chat.gguf", "temperature": 0})
    write_model(models, HUGE, context_size=50_000_000)
    with HuggingFaceServer() as hub:
        hub.add_repository("org/Small-GGUF", {"small-Q4_K_M.gguf": PULLED})
        settings = {
            "CORRAL_MODELS_PATH": str(models),
            "CORRAL_HF_URL": hub.base,
            "CORRAL_MODELS_MIN_FREE": "0",
            "CORRAL_DOWNLOAD_CONNECTIONS": "1",
            "CORRAL_EXPOSE_NODE": "true",
        }
        with running_up(module_folder, "--workers", "2", **settings) as up:
            up.until_ready()
            up.until_healthy("worker-1", "worker-2")
            yield ModelFleet(up, hub)


def ask(page: Page, question: str, model: str) -> None:
    page.get_by_role("textbox", name=f"Your question to {model}").fill(question)
    page.get_by_role("button", name="Send").click()


def test_a_question_loads_the_model_and_is_answered_when_it_is_there(visit: Visits, fleet: ModelFleet) -> None:
    watch = visit(fleet.up.url, key=fleet.up.admin_key, path="/ui/chat?model=chat")
    page = watch.page
    remember(page, "loading", "chat is not loaded yet. Your question is sent by itself when it is ready.")
    ask(page, QUESTION, "chat")

    talk = page.get_by_role("list", name="Talk with chat")
    expect(talk).to_contain_text("Paris")
    expect(talk).to_contain_text(re.compile(r"chat on worker-\d · .*s to first token"))
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    assert remembered(page, "loading")

    page.get_by_role("link", name="Fleet", exact=True).click()
    expect(page.get_by_role("button", name=re.compile(r"2\s+healthy"))).to_be_visible()
    expect(page.get_by_text(re.compile(r"1 of \d models loaded"))).to_be_visible()


def test_an_answer_survives_whoever_looks_elsewhere_meanwhile(visit: Visits, fleet: ModelFleet) -> None:
    page = visit(fleet.up.url, key=fleet.up.admin_key, path="/ui/chat?model=chat").page
    ask(page, QUESTION, "chat")
    page.get_by_role("link", name="Models", exact=True).click()
    expect(page.get_by_role("heading", name="Models", level=1)).to_be_visible()

    page.get_by_role("link", name="Chat", exact=True).click()
    page.get_by_role("link", name=re.compile("^What is the capital")).click()

    expect(page.get_by_role("button", name="Regenerate")).to_be_visible()
    talk = page.get_by_role("list", name="Talk with chat")
    expect(talk).to_contain_text("Paris")
    page.reload()
    expect(talk).to_contain_text("Paris")


def test_an_answer_that_is_stopped_stays_as_far_as_it_came(visit: Visits, fleet: ModelFleet) -> None:
    """Words are shown as they come: there is something to stop when the first one is there."""
    page = visit(fleet.up.url, key=fleet.up.admin_key, path="/ui/chat?model=chat").page
    ask(page, "Write a long story about the sea, of five hundred words.", "chat")
    talk = page.get_by_role("list", name="Talk with chat")
    expect(talk).to_contain_text(re.compile(r"s to first token"))
    page.get_by_role("button", name="Stop").click()
    expect(talk).to_contain_text("Stopped.")
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible()


def test_the_log_of_a_node_has_what_its_engines_wrote(visit: Visits, fleet: ModelFleet) -> None:
    page = visit(fleet.up.url, key=fleet.up.admin_key, path="/ui/chat?model=chat").page
    ask(page, QUESTION, "chat")
    expect(page.get_by_role("list", name="Talk with chat")).to_contain_text("Paris")
    node_id = fleet.up.api("GET", "/api/v1/models/chat").json()["replicas"][0]["node_id"]

    page = visit(fleet.up.url, key=fleet.up.admin_key, path=f"/ui/nodes/{node_id}?tab=logs&log=chat").page

    log = page.get_by_role("log", name=re.compile("^Log of chat on worker-"))
    expect(log).to_contain_text("serves at 127.0.0.1")
    page.get_by_role("searchbox", name="Find in the log").fill("nothing has this")
    expect(log).not_to_contain_text("serves at")
    page.get_by_role("searchbox", name="Find in the log").fill("SERVES")
    expect(log).to_contain_text("serves at 127.0.0.1")


def test_a_model_is_pulled_after_its_plan_and_with_progress(visit: Visits, fleet: ModelFleet) -> None:
    page = visit(fleet.up.url, key=fleet.up.admin_key, path="/ui/models").page
    page.get_by_role("button", name="Pull a model").click()
    dialog = page.get_by_role("dialog", name="Pull a model")
    dialog.get_by_role("textbox", name="Reference").fill("hf://org/Small-GGUF")
    dialog.get_by_role("button", name="Show the plan").click()
    expect(dialog).to_contain_text("Licence")
    expect(dialog).to_contain_text(re.compile(r"Download\s*2\.9 MiB"))
    gate, planned = threading.Event(), fleet.hub.sent

    def hold(_: HuggingFaceServer) -> None:
        if fleet.hub.sent - planned > len(PULLED) + HELD_AFTER:  # the act plans again, which reads the file once
            gate.wait(120)

    fleet.hub.before_chunk = hold  # type: ignore[assignment]
    try:
        dialog.get_by_role("button", name=re.compile(r"^Pull small .*MiB")).click()
        expect(dialog.get_by_text("Downloading").first).to_be_visible()
        expect(dialog.get_by_role("progressbar", name="pull of small")).to_have_attribute(
            "aria-valuenow", re.compile(r"^[1-9]\d(\.\d+)?$")
        )
        expect(dialog).to_contain_text(re.compile(r"of 2\.9 MiB"))
    finally:
        gate.set()
    expect(dialog).to_contain_text("small is there. The first request loads it.")
    dialog.get_by_role("button", name="Close").last.click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("link", name="small", exact=True)).to_be_visible()
    fleet.hub.hang_up()


def test_a_reference_that_was_mistyped_can_be_corrected(visit: Visits, fleet: ModelFleet) -> None:
    watch = visit(fleet.up.url, key=fleet.up.admin_key, path="/ui/models")
    watch.allow("status of 400")
    watch.page.get_by_role("button", name="Pull a model").click()
    dialog = watch.page.get_by_role("dialog", name="Pull a model")
    reference = dialog.get_by_role("textbox", name="Reference")
    reference.fill("hf://nope")
    reference.press("Enter")
    expect(dialog).to_contain_text("'hf://nope' must name a repository as hf://owner/name")
    dialog.get_by_role("button", name="Back").click()
    expect(reference).to_have_value("hf://nope")


def test_a_model_that_fits_no_machine_says_why(visit: Visits, fleet: ModelFleet) -> None:
    page = visit(fleet.up.url, key=fleet.up.admin_key, path="/ui/models").page
    page.get_by_role("link", name=HUGE).click()
    expect(page.get_by_role("heading", name=HUGE, level=1)).to_be_visible()
    expect(page.get_by_text(re.compile(r"2 × not enough RAM \(needs 1\.1 TiB, best free"))).to_be_visible()
    page.get_by_role("link", name="Every node's verdict").click()
    expect(page.get_by_role("heading", name="Nodes that cannot take one more (2)")).to_be_visible()
    for worker in ("worker-1", "worker-2"):
        expect(page.get_by_role("listitem").filter(has_text=worker)).to_contain_text(re.compile(r"free of [\d.]+ TiB"))
