"""Sounds as numbers: any WAV file as one channel at the rate that a model wants. The only module that needs numpy."""

from functools import lru_cache
from math import ceil, gcd
from pathlib import Path
from typing import Any, Final

import numpy as np

from corral_backend_sdk.backend import RequestRefused
from corral_backend_sdk.wave_files import WaveFile, parse_wave

Samples = Any
"""A numpy array of 32-bit floats from -1 to 1."""
_REACH: Final = 16
"""Samples on either side that a new one is made of: more is sharper and slower."""
_BLOCK: Final = 8192
_MOST_BYTES: Final = 256 * 1024 * 1024


def read_sound(path: str, *, rate: int, most_seconds: float) -> Samples:
    """Read a sound at this rate. Raise RequestRefused when the file cannot be used. Slow: call it in a thread."""
    sound = _parsed(path)
    if sound.seconds > most_seconds:
        raise RequestRefused(f"the sound lasts {sound.seconds:.0f} seconds, and {most_seconds:.0f} are the most")
    return resample(_mono(sound), source=sound.rate, target=rate)


def _parsed(path: str) -> WaveFile:
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise RequestRefused(f"the file is larger than {_MOST_BYTES} bytes")
        return parse_wave(file.read_bytes())
    except OSError as error:
        raise RequestRefused(f"the file with the sound cannot be read: {error.strerror}") from error


def _mono(sound: WaveFile) -> Samples:
    """The mean of all channels."""
    numbers = _floats(sound).reshape(-1, sound.channels)
    mixed = numbers[:, 0] if sound.channels == 1 else numbers.mean(axis=1, dtype=np.float32)
    return np.clip(np.nan_to_num(mixed), -1.0, 1.0)


def _floats(sound: WaveFile) -> Samples:
    if sound.is_float:
        return np.frombuffer(sound.samples, f"<f{sound.bits // 8}").astype(np.float32)
    match sound.bits:
        case 8:
            return (np.frombuffer(sound.samples, np.uint8).astype(np.float32) - 128) / 128
        case 24:  # as the upper bytes of 32 bits
            wide = np.zeros((len(sound.samples) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(sound.samples, np.uint8).reshape(-1, 3)
            return wide.view("<i4").ravel().astype(np.float32) / 2**31
        case bits:
            return np.frombuffer(sound.samples, f"<i{bits // 8}").astype(np.float32) / 2 ** (bits - 1)


def resample(sound: Samples, *, source: int, target: int) -> Samples:
    """Return the sound at another sample rate, low-pass filtered where needed."""
    if source == target:
        return sound
    up, down = target // gcd(source, target), source // gcd(source, target)
    filters = _filters(up, down)
    reach = filters.shape[1] // 2
    padded = np.pad(sound, (reach - 1, reach + 1))
    made = np.empty(max(1, len(sound) * up // down), np.float32)
    taps = np.arange(2 * reach)
    for start in range(0, len(made), _BLOCK):
        places = np.arange(start, min(start + _BLOCK, len(made))) * down
        windows = padded[(places // up)[:, None] + taps]
        made[start : start + _BLOCK] = np.einsum("ij,ij->i", windows, filters[places % up])
    return made


@lru_cache(maxsize=8)
def _filters(up: int, down: int) -> Samples:
    """A windowed sinc for each place that a new sample can have between two old ones."""
    cut = min(1.0, up / down)
    reach = ceil(_REACH / cut)
    distances = np.arange(1 - reach, reach + 1)[None, :] - (np.arange(up) / up)[:, None]
    weights = np.sinc(distances * cut) * np.cos(np.clip(distances / reach, -1, 1) * np.pi / 2) ** 2
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
