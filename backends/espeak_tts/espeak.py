"""libespeak-ng by its C interface. It has one state for the whole process, so one text is spoken at a time."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import espeakng_loader
from corral_backend_sdk import LoadFailed, RequestRefused
from voices import Voices

_SYNCHRONOUS: Final = 2
_DO_NOT_EXIT: Final = 0x8000
_UTF8: Final = 1
_SAY_ON: Final = 0
_STOP: Final = 1
_RATE: Final = 1
_PITCH: Final = 3
_NORMAL_RATE: Final = 175
_RATES: Final = (80, 450)
"""Words a minute: what espeak can do."""
_BUFFER_MILLISECONDS: Final = 200
_SEED: Final = 1
"""Seed of the noise in its voice, so that every process speaks its first text identically."""
_CALLBACK: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

Hand = Callable[[bytes], bool]
"""Takes a part of the sound; says whether more is wanted."""


class _Voice(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.POINTER(ctypes.c_char)),
        ("identifier", ctypes.c_char_p),
        ("rest", ctypes.c_ubyte * 16),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying:
    """A text and how to say it."""

    text: str
    voice: str
    """As `Voices.choose` gives it."""
    speed: float = 1.0
    pitch: int = 50


class Espeak:
    """The library, initialised."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._hand: Hand = _discard
        self._data = Path(espeakng_loader.get_data_path())
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self._library.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_Voice))
        self._callback = _CALLBACK(self._heard)  # the library keeps a pointer to it
        self.rate = self._library.espeak_Initialize(
            _SYNCHRONOUS, _BUFFER_MILLISECONDS, str(self._data.parent).encode(), _DO_NOT_EXIT
        )
        if self.rate <= 0:
            raise LoadFailed(f"espeak finds no data at {self._data}")
        self._library.espeak_SetSynthCallback(self._callback)
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(_SEED))

    def voices(self, *, default: str) -> Voices:
        """A code that several voices have is that of the one which names it first."""
        found: dict[str, tuple[int, str]] = {}
        for name, priority, identifier in self._names():
            found[name] = min(found.get(name, (priority, identifier)), (priority, identifier), key=itemgetter(0))
        variants = {file.name.lower() for file in (self._data / "voices" / "!v").iterdir()}
        languages = {name: identifier for name, (_, identifier) in found.items()}
        return Voices(languages=languages, variants=variants, default=default)

    def say(self, saying: Saying, hand: Hand) -> None:
        """Samples of 16 bits, part by part. Blocks until all is said, or no more is wanted: call it in a thread."""
        with self._busy:
            self._hand = hand
            try:
                self._say(saying)
            finally:
                self._hand = _discard

    def _say(self, saying: Saying) -> None:
        if self._library.espeak_SetVoiceByName(saying.voice.encode()) != 0:
            raise RequestRefused(f"the voice {saying.voice} is not known to espeak")
        slowest, fastest = _RATES
        rate = min(fastest, max(slowest, round(_NORMAL_RATE * saying.speed)))
        self._library.espeak_SetParameter(_RATE, rate, 0)
        self._library.espeak_SetParameter(_PITCH, saying.pitch, 0)
        text = ctypes.create_string_buffer(saying.text.encode())
        failure = self._library.espeak_Synth(text, ctypes.c_size_t(len(text)), 0, 1, 0, _UTF8, None, None)
        if failure != 0:
            raise RuntimeError(f"espeak failed with {failure}")

    def _heard(self, samples: Any, count: int, _: object) -> int:
        if count <= 0:
            return _SAY_ON
        return _SAY_ON if self._hand(ctypes.string_at(samples, 2 * count)) else _STOP

    def _names(self) -> Iterator[tuple[str, int, str]]:
        """Codes, names and identifiers in small letters, and the identifier, which espeak always takes."""
        listed = self._library.espeak_ListVoices(None)
        index = 0
        while listed[index]:
            voice = listed[index].contents
            index += 1
            identifier = voice.identifier.decode()
            for priority, code in _codes(voice.languages):
                yield code.lower(), priority, identifier
            for name in (voice.name.decode(), identifier):
                yield name.lower(), 0, identifier


def _codes(packed: Any) -> Iterator[tuple[int, str]]:
    """A byte of priority and a text, again and again, until the priority is 0. The lowest priority comes first."""
    position = 0
    while (priority := packed[position][0]) != 0:
        start = position = position + 1
        while packed[position] != b"\0":
            position += 1
        yield priority, bytes(packed[start:position]).decode(errors="replace")
        position += 1


def _discard(_: bytes) -> bool:
    return False
