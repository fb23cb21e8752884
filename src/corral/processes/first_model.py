"""The model that a new fleet of `corral up` starts with, so that the first question needs no configuration.

Given once: whoever deletes it does not get it again, and a directory with models of its own gets nothing.
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
_GIVEN: Final = ".first-model-given"
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
    """The weights that set-up has put there; None when it could not."""
    weights = provisions / "first-model.gguf"
    return weights.resolve() if weights.exists() else None


def give_first_model(models: Path, source: Path | None) -> bool:
    """Whether the fleet has the first model. What goes wrong is said and keeps nobody from starting."""
    file, given = models / f"{NAME}.yaml", models / _GIVEN
    if given.exists() or has_models(models):
        return file.exists()
    if source is None:
        return False
    try:
        _copy(source, models / _WEIGHTS)
        write_private(file, configuration().encode())
        write_private(given, b"")
    except (OSError, PathNotUsable) as error:
        log.warning(
            "the fleet starts without a model, because the first one could not be had: %s",
            error,
            extra={"event": "up.no_first_model"},
        )
        return False
    return True


def has_models(models: Path) -> bool:
    return any(file.suffix in (".yaml", ".yml") for file in models.iterdir())


def configuration() -> str:
    """The model's file. One core is left for others: engines that fight for cores are slower with more threads."""
    threads = min(_MOST_THREADS, max(1, (os.cpu_count() or 1) - 1))
    return _CONFIGURATION.format(name=NAME, weights=_WEIGHTS, threads=threads)


def _copy(source: Path, target: Path) -> None:
    """A second name for the same file where that is possible; never half a file under the right name."""
    draft = target.with_suffix(".part")
    draft.unlink(missing_ok=True)
    try:
        os.link(source, draft)
    except OSError:
        shutil.copyfile(source, draft)
    draft.replace(target)
