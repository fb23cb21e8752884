"""What a worker tells while it installs or upgrades a backend. Events may get lost; the reply is the truth.

A field with a default factory is always sent, any other default is not, as LocalAI's peers do it.
"""

from enum import StrEnum
from typing import Final

import msgspec

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Phase(StrEnum):
    """Words that frontends show. LocalAI's worker only ever sends the second."""

    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    EXTRACTING = "extracting"
    VERIFYING = "verifying"
    """Corral's own: everything is there, and is looked at once more."""
    STARTING = "starting"


class InstallBytes(msgspec.Struct, kw_only=True):
    """The same as the words of an event, in numbers, and their order: what Corral's workers add."""

    sequence: int
    """Larger in each event of one operation at one node."""
    current: int
    total: int
    """0 while it is not known."""
    attempt: int = 0
    """Larger each time that the node begins on the same operation; the numbers of events begin anew with it."""


class InstallProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Published on the subject of its operation, for installs and upgrades alike."""

    op_id: str = msgspec.field(default_factory=str)
    node_id: str = msgspec.field(default_factory=str)
    backend: str = msgspec.field(default_factory=str)
    file_name: str = ""
    current: str = ""
    """A size for people, see `size_text`."""
    total: str = ""
    percentage: float = msgspec.field(default_factory=float)
    """From 0 to 100. LocalAI's worker begins anew with each layer and again when it extracts."""
    phase: str = ""
    corral: InstallBytes | None = None


def size_of(text: str) -> int:
    """The bytes that such words stand for, as exactly as they say; 0 when they are none."""
    number, _, unit = text.partition(" ")
    if unit != "B" and unit not in _UNITS:
        return 0
    try:
        size = float(number) * (1024 ** (_UNITS.index(unit) + 1) if unit != "B" else 1)
    except ValueError:
        return 0
    return int(size) if 0 <= size < 2**63 else 0


def size_text(size: int) -> str:
    """A size in the words of LocalAI's worker: `512 B`, `3.6 KiB`, `72.4 MiB`. Its frontends read numbers out of it."""
    if size < 1024:
        return f"{size} B"
    power = 1
    while size >= 1024 ** (power + 1) and power < len(_UNITS):
        power += 1
    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}"
