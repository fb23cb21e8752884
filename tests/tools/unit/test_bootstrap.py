"""`tools/bootstrap.py`: the way in, for Pythons of any age."""

import ast
import subprocess
import sys
from pathlib import Path

PRETEND_TO_BE_OLD = "import runpy, sys; sys.version_info = (3, 9, 1); runpy.run_path(sys.argv[1])"


def test_an_old_python_is_told_what_to_do(root: Path) -> None:
    command = [sys.executable, "-c", PRETEND_TO_BE_OLD, root / "tools/bootstrap.py"]
    result = subprocess.run(command, capture_output=True, text=True)

    assert result.returncode == 1
    assert result.stderr == (
        "Corral needs Python 3.11 or newer; this is 3.9. Name a newer one, as in: make PYTHON=python3.12\n"
    )


def test_an_old_python_can_read_it(root: Path) -> None:
    text = (root / "tools/bootstrap.py").read_bytes().decode("ascii")

    ast.parse(text, feature_version=(3, 4))


def test_wrong_usage_fails(root: Path) -> None:
    result = subprocess.run([sys.executable, root / "tools/bootstrap.py", "run"], capture_output=True, text=True)

    assert result.returncode == 2
    assert "run needs a command" in result.stderr
