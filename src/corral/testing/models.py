"""A real chat model for tests, and for whoever wants to see Corral answer: SmolLM2-135M-Instruct.

`make setup`, and with it `make test`, keeps it in `.build`: see tools/environment.py.
"""

from pathlib import Path
from typing import Final

QUESTION: Final = "What is the capital of France? Answer in one sentence."
"""A small model: without the second sentence it answers in French."""
_BUILD: Final = Path(__file__).parents[3] / ".build"


def chat_model() -> Path:
    """The model's file. AssertionError when set-up could not fetch it."""
    found = sorted(_BUILD.glob("models-*/SmolLM2-135M-Instruct.gguf"))
    if not found:
        raise AssertionError("the chat model is not in .build: `make setup` fetches it, or says why it cannot")
    return found[-1]
