"""WAV files: what is in one, and how one is written. Standard library only; `sounds` makes numbers of them.

Python's own `wave` refuses what many programs write: numbers with a point, 24 bits in the newer form of the header, and
files that were streamed, whose sizes nobody filled in.
"""

import struct
from dataclasses import dataclass
from typing import Final

from corral_backend_sdk.backend import RequestRefused

_PCM: Final = 1
_FLOAT: Final = 3
_EXTENSIBLE: Final = 0xFFFE
_WIDTHS: Final = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
_RATES: Final = range(1000, 384_001)
_MOST_CHANNELS: Final = 16
_OTHERS: Final = {
    b"ID3": "MP3",
    b"\xff\xfb": "MP3",
    b"\xff\xf3": "MP3",
    b"fLaC": "FLAC",
    b"OggS": "Ogg",
    b"\x1aE\xdf\xa3": "WebM",
    b"RF64": "RF64",
}
"""How files of other kinds begin."""
_UNKNOWN_SIZE: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveFile:
    """Samples as the file has them: of all channels in turn."""

    rate: int
    channels: int
    bits: int
    is_float: bool
    samples: bytes

    @property
    def seconds(self) -> float:
        return len(self.samples) / (self.rate * self.channels * self.bits // 8)


def parse_wave(content: bytes) -> WaveFile:
    """Parse a WAV file. Raise RequestRefused when it cannot be used."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise RequestRefused(_not_wave(content))
    form, position = b"", 12
    while position + 8 <= len(content):
        name, size = content[position : position + 4], struct.unpack_from("<I", content, position + 4)[0]
        start = position + 8
        if name == b"fmt ":
            form = content[start : start + size]
        elif name == b"data":
            if not form:
                break
            return _described(form, content, start, size)
        position = start + size + size % 2
    raise RequestRefused("the WAV file has no sound in it: it is cut off, or damaged")


def _not_wave(content: bytes) -> str:
    if not content:
        return "the sound is empty: the file has no bytes"
    kind = next((kind for start, kind in _OTHERS.items() if content.startswith(start)), "")
    if content[4:8] == b"ftyp":
        kind = "MP4"
    return f"the sound must be a WAV file; this is {kind}" if kind else "the sound is not a WAV file"


def _described(form: bytes, content: bytes, start: int, size: int) -> WaveFile:
    if len(form) < 16:
        raise RequestRefused("the WAV file's header is damaged")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if tag == _EXTENSIBLE and len(form) >= 26:
        tag = struct.unpack_from("<H", form, 24)[0]
    if tag not in _WIDTHS:
        raise RequestRefused(f"the WAV file is compressed (format {tag}); send PCM")
    if bits not in _WIDTHS[tag]:
        raise RequestRefused(f"the WAV file has {bits} bits a sample; send 16")
    if not 1 <= channels <= _MOST_CHANNELS or rate not in _RATES:
        raise RequestRefused(f"the WAV file says {channels} channels and {rate} samples a second, which cannot be")
    whole = channels * bits // 8
    length = len(content) - start if size in (0, _UNKNOWN_SIZE) else min(size, len(content) - start)
    samples = content[start : start + length // whole * whole]
    if not samples:
        raise RequestRefused("the sound is empty: the WAV file has no samples")
    return WaveFile(rate=rate, channels=channels, bits=bits, is_float=tag == _FLOAT, samples=samples)


def wave_header(rate: int, size: int | None) -> bytes:
    """Return the header for `size` bytes of mono samples of 16 bits; None when the size is not known yet."""
    told = _UNKNOWN_SIZE if size is None else size
    whole = _UNKNOWN_SIZE if size is None else size + 36
    form = struct.pack("<IHHIIHH", 16, _PCM, 1, rate, rate * 2, 2, 16)
    return b"RIFF" + struct.pack("<I", whole) + b"WAVEfmt " + form + b"data" + struct.pack("<I", told)
