"""A real chat model for tests and demonstrations: SmolLM2-135M-Instruct.

`make setup`, and with it `make test`, keeps it in `.build`: see tools/environment/.
"""

import json
import os
from pathlib import Path
from typing import Final

QUESTION: Final = "What is the capital of France? Answer in one sentence."
"""A small model: without the second sentence it answers in French."""
CONTEXT: Final = 512
"""Tokens: little, so that it is soon full."""
_WEIGHTS: Final = "chat.gguf"
_BUILD: Final = Path(__file__).parents[2] / ".build"


def chat_model() -> Path:
    """The model's file. AssertionError when set-up could not fetch it."""
    weights = sorted(_BUILD.glob("models-*/SmolLM2-135M-Instruct.gguf"))
    if not weights:
        raise AssertionError("the chat model is not in .build: `make setup` fetches it, or says why it cannot")
    return weights[-1]


def write_model(folder: Path, name: str, *, backend: str = "llama-cpp", **more: object) -> None:
    """A configuration in a directory of models. Those of llama.cpp share the weights of the chat model there."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / _WEIGHTS
    if backend == "llama-cpp" and not weights.exists():
        os.symlink(chat_model(), weights)
    configuration = {
        "name": name,
        "backend": backend,
        "parameters": {"model": _WEIGHTS},
        "context_size": CONTEXT,
        "threads": 1,
        "template": {"use_tokenizer_template": True},
        **more,
    }
    draft = folder / f".{name}.draft"
    draft.write_text(json.dumps(configuration), encoding="utf-8")
    draft.replace(folder / f"{name}.yaml")  # every JSON is YAML, and nobody reads half a file
