"""`corral run` with hubs that speak the real protocols: from an empty data directory to a streamed answer."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.model_hubs import ModelHubs
from tests.kit.models import QUESTION
from tests.kit.ports import lasting_port

Run = Callable[..., subprocess.CompletedProcess[str]]
SCHEMES = ("hf", "ollama", "oci", "https", "file", "gallery")


@pytest.fixture(scope="module")
def hubs(module_folder: Path) -> Iterator[ModelHubs]:
    with ModelHubs(module_folder / "hubs") as running:
        yield running


@pytest.fixture
def run(corral: Any, hubs: ModelHubs, tmp_path: Path) -> Iterator[Run]:
    """Runs a command for a fleet that does not exist yet; it is stopped afterwards."""
    fixed = {
        **hubs.settings,
        "CORRAL_DATA": str(tmp_path / "fleet"),
        "CORRAL_PORT": "0",
        "CORRAL_NATS_PORT": str(lasting_port()),
        "CORRAL_WORKERS": "1",
        "CORRAL_PROVISIONS": str(tmp_path / "none"),
    }
    yield lambda *arguments, **variables: corral(*arguments, **{**fixed, **variables})
    corral("down", "--data", fixed["CORRAL_DATA"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_command_from_nothing_to_an_answer(run: Run, hubs: ModelHubs, scheme: str) -> None:
    reference = hubs.references[scheme]
    before = hubs.sent
    first = run("run", reference, QUESTION, "--temperature", "0", "--up")
    assert first.returncode == 0, first.stderr
    assert "Paris" in first.stdout
    fetched = hubs.sent - before
    assert fetched < hubs.bytes * 1.1, "no byte comes twice, but for what was looked at first"

    before = hubs.sent
    again = run("run", reference, QUESTION)
    assert (again.returncode, again.stderr) == (0, ""), "it is there, and the hub is not asked"
    assert hubs.sent == before
