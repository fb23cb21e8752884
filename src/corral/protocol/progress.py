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
    STARTING = "starting"


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


def size_text(size: int) -> str:
    """A size in the words of LocalAI's worker: `512 B`, `3.6 KiB`, `72.4 MiB`. Its frontends read numbers out of it."""
    if size < 1024:
        return f"{size} B"
    power = 1
    while size >= 1024 ** (power + 1) and power < len(_UNITS):
        power += 1
    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}"
