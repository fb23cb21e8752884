"""How much of a machine's video memory models may use: `80%`, `0.8`, `12GB`, `8GiB`, or a number of bytes."""

import re
from dataclasses import dataclass
from typing import Final, Self

_UNITS: Final = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
_PERCENT = re.compile(_NUMBER + r"\s*%")
_SIZE = re.compile(_NUMBER + r"\s*([kmgt]i?b|b)")
_BARE = re.compile(_NUMBER)
MAX_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class VramBudget:
    """A share of the whole, or a number of bytes, or neither: no budget."""

    fraction: float | None = None
    size: int | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Read the grammar; ValueError with a sentence when it does not fit."""
        cleaned = text.strip().lower()
        if not cleaned or cleaned == "0":
            return cls()
        if len(cleaned) > MAX_LENGTH:
            raise ValueError(f"vram budget exceeds {MAX_LENGTH} characters")
        if match := _PERCENT.fullmatch(cleaned):
            return cls(fraction=_checked_fraction(float(match[1]) / 100, text))
        if match := _SIZE.fullmatch(cleaned):
            return cls(size=_checked_size(float(match[1]) * _UNITS[match[2]], text))
        if match := _BARE.fullmatch(cleaned):
            return cls._read_bare(float(match[1]), text)
        raise ValueError(f'vram budget "{text}" is not a percentage, a fraction or a size (80%, 0.8, 12GB, 8GiB)')

    @classmethod
    def _read_bare(cls, number: float, text: str) -> Self:
        if number <= 1:
            return cls(fraction=_checked_fraction(number, text))
        if not number.is_integer():
            raise ValueError(f'vram budget "{text}" is neither a fraction up to 1 nor a whole number of bytes')
        return cls(size=_checked_size(number, text))

    @classmethod
    def read_lenient(cls, text: str) -> Self:
        """For what workers report: nonsense means no budget."""
        try:
            return cls.read(text)
        except ValueError:
            return cls()

    def ceiling(self, total: int) -> int:
        """The budget in bytes on a machine with so much memory; 0 when there is no budget."""
        if self.fraction is not None:
            return int(total * self.fraction)
        if self.size is not None:
            return min(self.size, total) if total else self.size
        return 0


def _checked_fraction(fraction: float, text: str) -> float:
    if fraction > 1:
        raise ValueError(f'vram budget "{text}" exceeds 100%')
    if fraction <= 0:
        raise ValueError(f'vram budget "{text}" must be more than zero')
    return fraction


def _checked_size(size: float, text: str) -> int:
    if size < 1:
        raise ValueError(f'vram budget "{text}" must be more than zero')
    if size >= 2**63:
        raise ValueError(f'vram budget "{text}" is larger than any machine')
    return int(size)
