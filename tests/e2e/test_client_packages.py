"""Client packages that people have, each against one real fleet: what works, and what is refused by name.

The packages want other versions than we do, so they have an environment of their own in `.build`. For each there is a
script in `tests/clients` that runs all its cases and tells how each went.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.models import write_model

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "tests" / "clients"
EVERYWHERE = {
    "chat",
    "stream",
    "cancel",
    "tools",
    "context length",
    "picture to a text model",
    "chat to an embedding model",
    "malformed tools",
    "empty messages",
    "temperature",
}
WITH_EMBEDDINGS = {"openai", "litellm", "langchain"}
WITH_SPEECH = {"openai", "litellm"}
SECONDS = 200


@pytest.fixture(scope="module")
def fleet(module_folder: Path, run_up: Any) -> Iterator[Any]:
    folder = module_folder
    models = folder / "models"
    write_model(models, "chat")
    write_model(models, "embed", embeddings=True, template={})
    nothing = {"parameters": {"model": "none"}}
    write_model(models, "echo", backend="echo", **nothing)
    write_model(models, "slow", backend="echo", **nothing, options=["tokens:400", "rate:2"])
    write_model(models, "failing", backend="echo", **nothing, options=["error_after:2"])
    with run_up(folder, "--workers", "1", CORRAL_MODELS_PATH=str(models), CORRAL_LOAD_WAIT="80s") as running:
        running.until_ready()
        yield running


def python_of_clients() -> Path:
    found = sorted(ROOT.glob(".build/clients-*/bin/python"))
    assert found, "the client packages are not in .build: `make setup` fetches them, or says why it cannot"
    return found[-1]


@pytest.mark.parametrize("package", ["openai", "anthropic", "litellm", "agents", "langchain"])
def test_every_case_passes_or_is_refused_by_name(fleet: Any, package: str, tmp_path: Path) -> None:
    state = fleet.state()
    variables = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "CORRAL_URL": state["url"],
        "CORRAL_KEY": state["keys"]["admin"],
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_KEY": "nobody's",
    }
    script = CLIENTS / f"{package}_client.py"
    done = subprocess.run(
        [python_of_clients(), script], env=variables, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = [f"{outcome['case']}: {outcome['error']}" for outcome in outcomes if outcome["error"]]
    assert not failed, "\n".join(failed)
    wanted = EVERYWHERE | ({"embeddings"} if package in WITH_EMBEDDINGS else set())
    wanted |= {"speech from a chat model"} if package in WITH_SPEECH else set()
    assert wanted <= {outcome["case"] for outcome in outcomes}, done.stderr[-2000:]
