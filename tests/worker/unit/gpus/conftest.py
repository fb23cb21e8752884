"""Machines as Linux shows them below /sys and /proc, written down file by file."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Write = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def machine(root: Path) -> Write:
    """Writes files below the root; `-> target` makes a link, as sysfs is full of them."""

    def write(files: Mapping[str, str]) -> Path:
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content.startswith("-> "):
                path.symlink_to(content.removeprefix("-> "))
            else:
                path.write_text(content)
        return root

    return write
