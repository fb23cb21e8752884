"""Silero VAD: where in a sound somebody speaks. The model comes with the package `silero-vad`. gRPC only.

Sounds are mono at 16,000 samples a second, as numbers from -1 to 1. `ModelOptions.Options`, each `name:value`:

    threshold:0.5           how likely speech must be
    min_speech_ms:250       what is shorter is no speech
    min_silence_ms:100      what is shorter is no pause
    pad_ms:30               added on both sides
"""

import asyncio
import importlib.util
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from corral_backend_sdk import (
    Backend,
    LoadFailed,
    ModelOptions,
    RequestRefused,
    VADRequest,
    VADResponse,
    VADSegment,
    option_values,
    serve,
)
from segments import Rules, segments_of

_RATE: Final = 16_000
_WINDOW: Final = 512
_CONTEXT: Final = 64
"""Samples of the window before that the model wants to see again."""
_STATE: Final = (2, 1, 128)
_MOST_SECONDS: Final = 1800
_MODEL: Final = "data/silero_vad.onnx"


class SileroVad(Backend):
    """Listens to several sounds at once: each has its own state."""

    name = "silero-vad"
    _session: Any = None
    _rules = Rules()

    async def load(self, options: ModelOptions) -> str:
        self._rules = _rules(option_values(options.Options))
        self._session = await asyncio.to_thread(_open, max(1, options.Threads))
        return "Loading succeeded"

    async def free(self) -> None:
        self._session = None

    async def vad(self, request: VADRequest) -> VADResponse:
        sound = np.array(request.audio, np.float32)
        if not len(sound):
            raise RequestRefused("the sound is empty: audio has no samples")
        if len(sound) > _MOST_SECONDS * _RATE:
            raise RequestRefused(f"the sound lasts more than {_MOST_SECONDS} seconds at {_RATE} samples a second")
        if not np.isfinite(sound).all():
            raise RequestRefused("audio has samples that are no numbers")
        gone = threading.Event()
        try:
            likelihoods = await asyncio.to_thread(_listen, self._session, np.clip(sound, -1.0, 1.0), gone)
        finally:
            gone.set()
        length = len(sound) / _RATE
        found = segments_of(likelihoods, step=_WINDOW / _RATE, length=length, rules=self._rules)
        return VADResponse(segments=[VADSegment(start=start, end=end) for start, end in found])


def _listen(session: Any, sound: Any, gone: threading.Event) -> list[float]:
    """Return the speech probability of each window; stop when the client is gone."""
    count = -(-len(sound) // _WINDOW)
    windows = np.pad(sound, (0, count * _WINDOW - len(sound))).reshape(count, _WINDOW)
    state, context = np.zeros(_STATE, np.float32), np.zeros((1, _CONTEXT), np.float32)
    rate = np.array(_RATE, np.int64)
    likelihoods: list[float] = []
    for window in windows[:, None, :]:
        if gone.is_set():
            break
        given = np.concatenate((context, window), axis=1)
        likelihood, state = session.run(None, {"input": given, "state": state, "sr": rate})
        likelihoods.append(float(likelihood[0, 0]))
        context = given[:, -_CONTEXT:]
    return likelihoods


def _open(threads: int) -> Any:
    """The file is found without importing the package, whose own code needs torch."""
    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        raise LoadFailed("the package silero-vad is not installed")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    path = Path(package.origin).parent / _MODEL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _rules(values: Mapping[str, str]) -> Rules:
    plain = Rules()
    return Rules(
        threshold=_number(values, "threshold", plain.threshold, most=1.0),
        min_speech=_number(values, "min_speech_ms", plain.min_speech * 1000, most=60_000) / 1000,
        min_silence=_number(values, "min_silence_ms", plain.min_silence * 1000, most=60_000) / 1000,
        pad=_number(values, "pad_ms", plain.pad * 1000, most=60_000) / 1000,
    )


def _number(values: Mapping[str, str], name: str, default: float, *, most: float) -> float:
    try:
        number = float(values.get(name, default))
    except ValueError:
        number = float("nan")
    if not 0 <= number <= most:
        raise LoadFailed(f"the option {name} must be a number from 0 to {most:g}, and is {values[name]}")
    return number


if __name__ == "__main__":
    serve(SileroVad)
