"""Real speech for tests: espeak says it, and what was said is known."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from corral.rpc.messages import ModelOptions, TTSRequest
from tests.kit.backends import SOON, RunningBackend, running_backend

SENTENCE: Final = "Would you like to see the president?"
"""Among the sentences that PocketSphinx, which was made for people, understands from a robot."""
UNDERSTOOD: Final = "like to see"
"""The part of it that is understood in any case: espeak never says a text twice in quite the same way."""
VOICE: Final = "nova"
HEADER_BYTES: Final = 44


@asynccontextmanager
async def loaded_backend(folder: str, *options: str) -> AsyncIterator[RunningBackend]:
    """A backend that brings its model along, loaded as `m`."""
    async with running_backend(folder) as backend:
        await backend.client.load(ModelOptions(Model="m", Options=options), timeout=SOON)
        yield backend


async def say(backend: RunningBackend, target: Path, text: str = SENTENCE, *, voice: str = VOICE) -> Path:
    """A WAV file with the text, spoken by a backend of `espeak_tts`."""
    await backend.client.speak(TTSRequest(text=text, voice=voice, dst=str(target)), timeout=SOON)
    return target


def samples_of(wave: bytes) -> list[float]:
    """Return the samples of a file as espeak's backend writes it: mono, 16 bits."""
    sound = wave[HEADER_BYTES:]
    return [sample / 32768 for sample in struct.unpack(f"<{len(sound) // 2}h", sound)]


def rate_of(wave: bytes) -> int:
    rate: int = struct.unpack_from("<I", wave, 24)[0]
    return rate


def wave_file(samples: bytes, *, rate: int = 16_000, channels: int = 1, bits: int = 16, tag: int = 1) -> bytes:
    """A WAV file of any kind, also of kinds that there are not."""
    frame = channels * bits // 8
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * frame, frame, bits)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body
