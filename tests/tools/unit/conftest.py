"""The tools are scripts beside the product: tests get their packages by path."""

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load(name: str) -> ModuleType:
    """A package of the tools, with all its modules."""
    spec = importlib.util.spec_from_file_location(f"corral_tools_{name}", ROOT / "tools" / name / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    for part in pkgutil.iter_modules(module.__path__):
        importlib.import_module(f"{spec.name}.{part.name}")
    return module


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def code_rules() -> ModuleType:
    return load("code_rules")


@pytest.fixture(scope="session")
def environment() -> ModuleType:
    return load("environment")


@pytest.fixture
def checkout(environment: ModuleType, tmp_path: Path) -> Any:
    """A checkout with the files that are read."""
    files = {
        "pyproject.toml": "[project]",
        "src/corral/__init__.py": "__version__ = '1'",
        "requirements/bootstrap.txt": "uv==1",
        "requirements/chat-model.txt": "model==1",
        "requirements/clients.txt": "client==1",
        "requirements/node.txt": "node==1",
        "requirements/browser/package.json": "{}",
        "requirements/browser/package-lock.json": "{}",
        "requirements/browser/.npmrc": "",
        "requirements/runtime.txt": "a==1",
        "requirements/dev.txt": "a==1\nb==1",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return environment.checkout.Checkout(tmp_path)
