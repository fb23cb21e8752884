"""The backends' own modules, which are no part of Corral's package."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BACKENDS = Path(__file__).parents[3] / "backends"


@pytest.fixture(autouse=True)
def backends_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("sdk", "llama_cpp"):
        monkeypatch.syspath_prepend(str(BACKENDS / name))
    yield
    for name in [name for name in sys.modules if name.startswith(("corral_backend_sdk", "llama_"))]:
        del sys.modules[name]
