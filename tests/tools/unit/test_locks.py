"""What the locks say."""

import json
import re
from pathlib import Path
from types import ModuleType

import pytest


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[.*\])?==(\S+)", lock.read_text(), flags=re.MULTILINE))


ROOT = Path(__file__).resolve().parents[3]
LOCKS = [*ROOT.glob("requirements/*.txt"), *ROOT.glob("backends/*/requirements.txt")]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.relative_to(ROOT)))
def test_a_lock_holds_hashes_and_no_addresses(lock: Path) -> None:
    text = lock.read_text()
    requirements = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]

    assert requirements
    assert all("--hash=sha256:" in requirement for requirement in requirements)
    assert not re.search(r"://|--index-url|--find-links| @ ", text)


NPM_LOCKS = [*ROOT.glob("requirements/*/package-lock.json"), *ROOT.glob("ui/package-lock.json")]


@pytest.mark.parametrize("lock", NPM_LOCKS, ids=lambda lock: str(lock.relative_to(ROOT)))
def test_a_lock_of_npm_holds_hashes_and_no_addresses(lock: Path) -> None:
    packages = {name: package for name, package in json.loads(lock.read_text())["packages"].items() if name}

    assert packages
    assert [name for name, package in packages.items() if not package["integrity"].startswith("sha512-")] == []
    assert [name for name, package in packages.items() if "resolved" in package] == []


def test_the_developers_lock_is_the_other_one_and_more(root: Path) -> None:
    runtime, dev = (pins(root / "requirements" / f"{name}.txt") for name in ("runtime", "dev"))

    assert runtime.items() < dev.items()


def test_backends_are_locked_in_the_versions_of_corral_itself(environment: ModuleType, root: Path) -> None:
    checkout = environment.checkout.Checkout(root)
    locked = [target for target, _ in environment.locks.lock_inputs(checkout) if "backends/" in target]
    runtime = pins(root / "requirements/runtime.txt")

    assert {"backends/echo/requirements.txt", "backends/llama_cpp/requirements.txt"} <= set(locked)
    for target in locked:
        assert {
            name: version for name, version in pins(root / target).items() if name in runtime
        }.items() <= runtime.items()


def test_the_build_tool_is_locked_as_well(root: Path) -> None:
    assert "hatchling" in pins(root / "requirements/runtime.txt")
