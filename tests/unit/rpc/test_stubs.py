"""The generated code fits the contract."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_committed_stubs_are_those_of_the_proto_file() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "tools" / "make_stubs.py", "--check"], capture_output=True, encoding="utf-8"
    )
    assert (checked.returncode, checked.stdout) == (0, "")
