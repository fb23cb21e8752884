"""How large an entry of a gallery is: what it says, or what the names of its files suggest. Pure.

Names of GGUF files tell parameters and quantisation: `Qwen3-8B-Q4_K_M.gguf` has eight billion weights of about 4.8
bits. It is a guess, and called one.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from corral.galleries.model_entries import GalleryModel
from corral.galleries.model_variants import parse_size

_PARAMETERS: Final = re.compile(
    r"(?<![a-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)([bm])(?![a-z0-9])", re.IGNORECASE
)
_QUANTISATION: Final = re.compile(
    r"(?<![a-z0-9])(i?q[1-8]_[a-z0-9]+(?:_[a-z]+)?|q8_0|bf16|f16|fp16|f32|mxfp4)(?![a-z0-9])", re.IGNORECASE
)
_BITS: Final[Mapping[str, float]] = {
    "Q8": 8.5, "Q6": 6.6, "Q5": 5.7, "Q4": 4.8, "Q3": 3.9, "Q2": 3.0, "Q1": 2.0,
    "IQ4": 4.4, "IQ3": 3.5, "IQ2": 2.6, "IQ1": 1.8, "BF16": 16, "F16": 16, "FP16": 16, "F32": 32, "MXFP4": 4.3,
}  # fmt: skip
"""Bits that one weight takes on average, by the beginning of the quantisation's name."""
_UNITS: Final = {"b": 1e9, "m": 1e6}


class EntrySize(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int
    is_guess: bool


def size_of_entry(entry: GalleryModel) -> EntrySize | None:
    """Return the size of an entry's files; None if it cannot be derived."""
    stated = parse_size(entry.size) if entry.size else None
    if stated is not None:
        return EntrySize(bytes=stated, is_guess=False)
    guesses = [guessed_bytes(file.filename, entry.name) for file in entry.files]
    file_sizes = [guess for guess in guesses if guess is not None]
    return EntrySize(bytes=sum(file_sizes), is_guess=True) if file_sizes else None


def guessed_bytes(file_name: str, name: str = "") -> int | None:
    """Return how large a GGUF file of this name probably is. The model's `name` may tell the parameters too."""
    lower = file_name.lower()
    if not lower.endswith(".gguf") or "mmproj" in lower:
        return None
    bits = _BITS.get(quantisation_of(lower).partition("_")[0])
    parameters = _PARAMETERS.search(lower) or _PARAMETERS.search(name)
    if bits is None or parameters is None:
        return None
    count = int(parameters[1] or 1) * float(parameters[2]) * _UNITS[parameters[3].lower()]
    return int(count * bits / 8)


def quantisation_of(file_name: str) -> str:
    """Return the quantisation in the name of a file, such as `Q4_K_M`; empty if there is none."""
    match = _QUANTISATION.search(file_name)
    return "" if match is None else match[1].upper()
