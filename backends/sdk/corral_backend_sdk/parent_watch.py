"""Ends the process when the one that started it is gone, so that no backend outlives its worker."""

import os
import re
import threading
from collections.abc import Mapping
from typing import Final

_OFF: Final = frozenset({"false", "0", "no", "off"})
_DEFAULT_SECONDS: Final = 2.0
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def watch_parent(environ: Mapping[str, str]) -> None:
    """Look every so often, in a thread of its own: an engine that blocks the event loop must not keep us alive."""
    parent = os.getppid()
    if parent <= 1 or environ.get("LOCALAI_BACKEND_PARENT_WATCH", "").strip().lower() in _OFF:
        return
    period = seconds_of(environ.get("LOCALAI_BACKEND_PARENT_WATCH_INTERVAL", ""))
    threading.Thread(target=_watch, args=(parent, period), name="parent watch", daemon=True).start()


def _watch(parent: int, period: float) -> None:
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(period)
    os._exit(1)


def seconds_of(text: str) -> float:
    """A duration as Go writes it (`1m30s`), or bare seconds; anything else, and nothing, is the default."""
    text = text.strip()
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        try:
            total = float(text)
        except ValueError:
            return _DEFAULT_SECONDS
    return total if 0 < total < float("inf") else _DEFAULT_SECONDS
