"""The first model of a new `corral up` fleet, so that the first question needs no configuration.

It is provided once: a deleted one is not restored, and a directory with models gets none.
"""

import logging
import os
import shutil
from pathlib import Path
from typing import Final

from corral.base.errors import PathNotUsable
from corral.base.private_files import write_private

log = logging.getLogger(__name__)

NAME: Final = "smollm2"
_WEIGHTS: Final = "SmolLM2-135M-Instruct.gguf"
_MARKER: Final = ".first-model-given"
_MOST_THREADS: Final = 4
_CONFIGURATION: Final = """\
# A toy: a very small chat model, given to a new fleet. Change it, or delete it: it does not come back.
name: {name}
backend: llama-cpp
parameters:
  model: {weights}
  # Chosen with fifty questions: without the penalty it repeats itself in every fourth answer.
  temperature: 0
  repeat_penalty: 1.1
  max_tokens: 512
context_size: 2048
threads: {threads}
template:
  use_tokenizer_template: true
"""


def first_model_of(provisions: Path) -> Path | None:
    """Return the weights that the setup has downloaded; None if there are none."""
    weights = provisions / "first-model.gguf"
    return weights.resolve() if weights.exists() else None


def give_first_model(models: Path, source: Path | None) -> bool:
    """Provide the first model; return whether the fleet has it. Failures are logged and do not prevent the start."""
    file, marker, weights = models / f"{NAME}.yaml", models / _MARKER, models / _WEIGHTS
    if marker.exists() or any(entry.suffix in (".yaml", ".yml") for entry in models.iterdir()):
        return file.exists()
    if source is None:
        return False
    try:
        _bring(source, weights)
        write_private(file, configuration().encode())
        write_private(marker, b"")
    except (OSError, PathNotUsable) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        log.warning(
            "the fleet starts without a model: %s cannot be copied to %s (%s); the next start tries again",
            source,
            models,
            reason,
            extra={"event": "up.no_first_model"},
        )
        return False
    return True


def _bring(source: Path, weights: Path) -> None:
    """Link or copy the weights, all or nothing: what is left of a copy would keep the room that the fleet needs."""
    draft = weights.with_suffix(".part")
    draft.unlink(missing_ok=True)
    try:
        os.link(source, draft)
    except OSError:
        try:
            shutil.copyfile(source, draft)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    draft.replace(weights)


def configuration() -> str:
    """Return the model's file. One core stays free: engines that compete for cores are slower with more threads."""
    threads = min(_MOST_THREADS, max(1, (os.cpu_count() or 1) - 1))
    return _CONFIGURATION.format(name=NAME, weights=_WEIGHTS, threads=threads)
