"""What became different about a node without a person's doing, in lines that people read."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from corral.cli.output import plain
from corral.cli.units import moment, size
from corral.wire.nodes import NodeChangeView

_SIZES: Final = frozenset({"total_ram", "total_vram"})
_GPUS: Final = "gpus"


def change_lines(change: NodeChangeView, now: datetime) -> str:
    """`changed 2026-03-01 12:00:05 (2h 5m ago)` and a line for each fact that differs."""
    head = f"{plain(change.kind.removeprefix('node.'))} {moment(change.at, now)}"
    names = [name for name in change.after if change.before.get(name) != change.after[name]]
    facts = [f"  {plain(name)}: {_shown(name, change.before.get(name))} → {_after(name, change)}" for name in names]
    return "\n".join([head, *facts])


def _after(name: str, change: NodeChangeView) -> str:
    return _shown(name, change.after[name])


def _shown(name: str, value: object) -> str:
    if name in _SIZES and isinstance(value, int):
        return size(value)
    if isinstance(value, Mapping):
        entries = [f"{key} {_entry(name, each)}" for key, each in value.items()]
        return plain(", ".join(entries)) or "none"
    return plain(str(value)) if value not in (None, "") else "none"


def _entry(name: str, value: object) -> str:
    return size(value) if name == _GPUS and isinstance(value, int) else str(value)
